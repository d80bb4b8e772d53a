import type { z } from 'zod'
import type { PoolName } from '#schemas/job.ts'
import { tolerant } from '#shared/tolerant.ts'
import type { Answer } from './answer.ts'
import type { Composition } from './composition.ts'

/**
 * A kind of job, described once for both sides of the queue: the ingress that makes such jobs and reads what comes of them, and
 * the worker that runs them ({@link Handler}).
 */
export interface Kind<Request = unknown, Event = unknown> {
  /** What to do in the pool, such as `generate`. */
  readonly name: string
  readonly pool: PoolName
  /** The body of its jobs, as it travels. */
  readonly request: z.ZodType<Request>
  /** Children that one of its jobs may have at once; default: 50. */
  readonly childrenAtOnce?: number
  /** How long before its deadline a composed job of it is to write what there is; default: a share of its time. */
  readonly wrapUpMs?: number
  /** Bytes of a whole answer at which it is refused; default: 8 MiB. */
  readonly answerBytesMax?: number
  /** Joins an event to the one before it; undefined when the two must stay apart. */
  merge(previous: Event, next: Event): Event | undefined
  /** Whether a caller would see the event twice if the job ran again. */
  isOutput(event: Event): boolean
  /** How its output reads for callers of an endpoint; durable jobs are kept in these words. */
  answer(endpoint?: string): Answer<Event>
}

/** How far a job is, for people who wait (docs/protocol.md, The job object). */
export interface Progress {
  /** What is being done, in a word or two. */
  readonly phase: string
  /** 0 to 100; null where nobody knows. */
  readonly percent: number | null
  readonly message: string
  /** Amounts by name, where there is something to count. */
  readonly counts?: Readonly<Record<string, number>>
}

/** What an attempt may use beside its body. */
export interface AttemptContext {
  /** Aborts on cancel, drain and deadline. The work must stop within a second. */
  readonly signal: AbortSignal
  /** `job_id:attempt`, to make outside effects idempotent. */
  readonly idempotencyKey: string
  /** Whose job it is. */
  readonly tenant: string
  readonly traceparent: string | undefined
  /** Hears how far the work is; undefined where the caller watches the output itself. */
  readonly onProgress: ((progress: Progress) => void) | undefined
  /** What it remembers, and the jobs it has others do; undefined for a job that its caller holds. */
  readonly composition?: Composition | undefined
}

/** A kind as a worker runs it. */
export interface Handler<Request = unknown, Event = unknown> extends Kind<Request, Event> {
  /** The body as it is run, or a promise of it. @throws When it is not what an ingress sends */
  parse(body: unknown): Request | Promise<Request>
  /** A body that was handed over inside this process, as the ingress made it, is run as it is; default: it is parsed as any other. */
  readonly takesAsMade?: boolean
  /** Yields events until the job is done. @throws ServiceError */
  run(request: Request, context: AttemptContext): AsyncIterable<Event>
}

/**
 * Makes a kind runnable.
 *
 * @param parse Default: checks the body as a whole, and ignores what newer versions add to it.
 * @param takesAsMade See {@link Handler.takesAsMade}.
 */
export function handle<Request, Event>(
  kind: Kind<Request, Event>,
  run: Handler<Request, Event>['run'],
  parse?: Handler<Request, Event>['parse'],
  takesAsMade = false,
): Handler<Request, Event> {
  const reader = tolerant(kind.request)
  return { ...kind, run, parse: parse ?? ((body) => reader.parse(body)), takesAsMade }
}
