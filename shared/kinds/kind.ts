import type { z } from 'zod'
import type { FormatName } from '#schemas/admin/requests.ts'
import type { PoolName } from '#schemas/job.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import type { Answer } from './answer.ts'
import type { Composition } from './composition.ts'

/**
 * A kind of job, used by ingress and worker. The ingress creates jobs of this kind and encodes their results. The worker runs the jobs
 * ({@link Handler}).
 */
export interface Kind<Request = unknown, Event = unknown> {
  readonly name: string
  readonly pool: PoolName
  readonly request: z.ZodType<Request>
  readonly childrenAtOnce?: number
  /** Time in ms before the deadline that a composed job reserves for writing its result. Default: a fraction of the job's total time. */
  readonly wrapUpMs?: number
  /** Maximum bytes of a complete answer. A larger answer is rejected. Default: 8 MiB. */
  readonly answerBytesMax?: number
  /** Merges two consecutive events into one event, to reduce the number of records. Undefined if both must stay separate. */
  merge(previous: Event, next: Event): Event | undefined
  /** Whether the event contains output. A job is not retried after output, because the caller would receive the output twice. */
  isOutput(event: Event): boolean
  answer(endpoint?: string): Answer<Event>
  /** Returns the check of a whole answer for the format that the request demands. Undefined if the request demands none. */
  formatCheck?(request: Request): FormatCheck<Event> | undefined
}

export interface FormatCheck<Event = unknown> {
  /** Returns the requested format that the events of a whole answer do not have. */
  ignoredBy(events: readonly Event[]): FormatName | undefined
}

export interface Progress {
  readonly phase: string
  readonly percent: number | null
  readonly message: string
  readonly counts?: Readonly<Record<string, number>>
  /** For a batch: model, tokens and cost of those requests that have ended. The cost is undefined if the model has no price. */
  readonly model?: string
  readonly usage?: { readonly input_tokens: number; readonly cached_tokens: number; readonly output_tokens: number }
  readonly cost_nanos?: number
}

export interface AttemptContext {
  /** Aborts on a cancel, a drain or the deadline. The handler must stop within a second. */
  readonly signal: AbortSignal
  /** The text `job_id:attempt`. The handler sends it with external requests, so that a server can detect a repeated request. */
  readonly idempotencyKey: string
  readonly tenant: string
  readonly traceparent: string | undefined
  /** Called before the request is sent to a server of the model. If an attempt calls this more than once, then the last server is recorded. */
  readonly onServer: (model: string, server: number, host: string) => void
  /** Called with the progress of the job. Undefined if the caller receives output instead of progress. */
  readonly onProgress: ((progress: Progress) => void) | undefined
  /** The steps and child jobs of a composed job. Undefined for an attached job, which cannot have any. */
  readonly composition?: Composition | undefined
}

export interface Handler<Request = unknown, Event = unknown> extends Kind<Request, Event> {
  /**
   * Parses and validates the body.
   *
   * @throws Error if the body is invalid, or not supported by this version
   */
  parse(body: unknown): Request | Promise<Request>
  /**
   * True if `run` may receive the body without a call of {@link parse}, if an ingress in the same process has already validated the body.
   * Default: false.
   */
  readonly acceptsUnparsed?: boolean
  run(request: Request, context: AttemptContext): AsyncIterable<Event>
}

/**
 * Creates a handler for a kind.
 *
 * @param parse Default: validates the whole body and ignores fields of newer versions
 * @param acceptsUnparsed See {@link Handler.acceptsUnparsed}
 */
export function handle<Request, Event>(
  kind: Kind<Request, Event>,
  run: Handler<Request, Event>['run'],
  parse?: Handler<Request, Event>['parse'],
  acceptsUnparsed = false,
): Handler<Request, Event> {
  const reader = tolerant(kind.request)
  return { ...kind, run, parse: parse ?? ((body) => reader.parse(body)), acceptsUnparsed: acceptsUnparsed }
}
