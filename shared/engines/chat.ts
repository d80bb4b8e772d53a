import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'

/**
 * The chat engine port: something that turns a {@link GenerateRequest} into {@link GenerateEvent}s.
 *
 * Promises every engine keeps (test/shared/engines/chat-engine.test.ts):
 * - `start` comes first, then deltas, one `finish` for each choice, `usage` last and once.
 * - The texts of a choice join to the whole answer; no delta splits a surrogate pair.
 * - Leaving the loop early, or aborting `signal`, stops the work within a second: an upstream's socket is closed.
 * - A failure is thrown as a ServiceError whose code says whether another try can help. Never a quiet, short answer:
 *   an upstream that ends without a finish is an error.
 * - `stop` strings never appear in the text, nor does a prefix of one that is later completed.
 */
export interface ChatEngine {
  /** Calls it bears at once now; undefined: as many as its config says. */
  readonly places?: number
  /**
   * Which raw prompts of completions it goes on from: `all` of a request in one call, or `one` a call (completions.ts splits
   * them). Undefined: none; it gets a prompt as a turn of the user, and a request without `completion`.
   */
  readonly completes?: 'all' | 'one' | undefined
  /** @throws ServiceError */
  generate(request: GenerateRequest, options: GenerateOptions): AsyncIterable<GenerateEvent>
  /** Counts the prompt's tokens as the engine would. Undefined: it cannot; the caller estimates. */
  countTokens?(request: GenerateRequest, options: GenerateOptions): Promise<number | undefined>
  /** Does now what the first call would have to wait for. Undefined: there is nothing. @throws ServiceError */
  preload?(signal: AbortSignal): Promise<void>
  /** Releases memory, processes and sockets. */
  close(): Promise<void>
}

/** What the worker gives an engine beside the request. */
export interface GenerateOptions {
  /** Aborts on cancel and at the deadline. */
  readonly signal: AbortSignal
  /** `job_id:attempt`, sent upstream as Idempotency-Key where the dialect knows one. */
  readonly idempotencyKey: string
  /** Id of the project that the job belongs to: an engine reuses prompts within one project only. Undefined: never. */
  readonly tenant?: string | undefined
  /** W3C Trace Context, passed on. */
  readonly traceparent?: string | undefined
}
