import type { z } from 'zod'
import type { PoolName } from '#schemas/job.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import type { Answer } from './answer.ts'
import type { Composition } from './composition.ts'

/**
 * A kind of job, described once for both sides of the queue. The ingress creates such jobs and encodes their results. The worker
 * runs them ({@link Handler}).
 */
export interface Kind<Request = unknown, Event = unknown> {
  readonly name: string
  readonly pool: PoolName
  readonly request: z.ZodType<Request>
  readonly childrenAtOnce?: number
  /** Time before its deadline, in ms, at which a composed job starts to write its result. Default: a fraction of its total time. */
  readonly wrapUpMs?: number
  /** Bytes of a complete answer above which it is refused; default: 8 MiB. */
  readonly answerBytesMax?: number
  /** Merges an event into the previous one; undefined: keep both. */
  merge(previous: Event, next: Event): Event | undefined
  /** True if the event contains output. After such an event, a second run would send the caller the output twice. */
  isOutput(event: Event): boolean
  /** Encoder of results for an API endpoint. The result of a durable job is stored in this format. */
  answer(endpoint?: string): Answer<Event>
}

/** Progress of a job, for display to users (docs/internals/protocol.md, The job object). */
export interface Progress {
  /** Current activity, in one or two words. */
  readonly phase: string
  /** 0 to 100; null if unknown. */
  readonly percent: number | null
  readonly message: string
  /** Amounts by name, if there is something to count. */
  readonly counts?: Readonly<Record<string, number>>
}

export interface AttemptContext {
  /** Aborts on cancel, drain and deadline. The handler must stop within a second. */
  readonly signal: AbortSignal
  /** `job_id:attempt`, to make external effects idempotent. */
  readonly idempotencyKey: string
  readonly tenant: string
  readonly traceparent: string | undefined
  /** Receives progress; undefined if the caller receives the output itself. */
  readonly onProgress: ((progress: Progress) => void) | undefined
  /** Recorded steps and child jobs; undefined for an attached job. */
  readonly composition?: Composition | undefined
}

export interface Handler<Request = unknown, Event = unknown> extends Kind<Request, Event> {
  /** Parses and checks the body. @throws If the body is not valid for this version */
  parse(body: unknown): Request | Promise<Request>
  /** If true, then a body from an ingress in the same process is passed to `run` without {@link parse}. Default: false. */
  readonly acceptsUnparsed?: boolean
  /** Yields events until the job is done. @throws ServiceError */
  run(request: Request, context: AttemptContext): AsyncIterable<Event>
}

/**
 * Makes a handler from a kind.
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
