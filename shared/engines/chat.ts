import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'

/**
 * The chat engine port: an engine converts a {@link GenerateRequest} into {@link GenerateEvent}s.
 *
 * Contract of every engine (test/shared/engines/chat-engine.test.ts):
 *
 * 1. The first event is `start`, then deltas, one `finish` per choice, and `usage` last and once.
 * 2. The texts of a choice concatenate to the whole answer; no delta splits a surrogate pair.
 * 3. If the consumer leaves the loop or `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 4. An error is thrown as a ServiceError whose code says whether a retry can help. An upstream that ends without a finish is an error,
 *    never a short answer.
 * 5. No `stop` string appears in the text, nor does a prefix of one that is later completed.
 */
export interface ChatEngine {
  /** Current maximum of concurrent calls. Undefined: the configured limit applies. */
  readonly places?: number
  /**
   * Raw prompts that the engine can complete: `all` prompts of a request in one call, or `one` per call (completions.ts splits them).
   *
   * Undefined: none. Then a prompt is sent as a user turn, in a request without `completion`.
   */
  readonly completes?: 'all' | 'one' | undefined
  /** @throws ServiceError */
  generate(request: GenerateRequest, options: GenerateOptions): AsyncIterable<GenerateEvent>
  /** Counts the prompt's tokens with the engine's tokenizer. Undefined: not supported; the caller estimates. */
  countTokens?(request: GenerateRequest, options: GenerateOptions): Promise<number | undefined>
  /** Does the work that the first call would otherwise wait for. Undefined: there is none. @throws ServiceError */
  preload?(signal: AbortSignal): Promise<void>
  close(): Promise<void>
}

/** Context of a call, next to the request. */
export interface GenerateOptions {
  /** Aborts on cancel and at the deadline. */
  readonly signal: AbortSignal
  /** `job_id:attempt`, sent upstream as Idempotency-Key if the API has one. */
  readonly idempotencyKey: string
  /** Project of the job. An engine shares its prompt cache only within one project. Undefined: no sharing. */
  readonly tenant?: string | undefined
  /** W3C Trace Context, passed on to the upstream. */
  readonly traceparent?: string | undefined
}
