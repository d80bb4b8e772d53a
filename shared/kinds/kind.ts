import type { z } from 'zod'
import type { PoolName } from '#schemas/job.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import type { Answer } from './answer.ts'
import type { Composition } from './composition.ts'

/**
 * A kind of job, described once for the ingress and the worker. The ingress creates jobs of this kind and encodes their results. The worker runs the
 * jobs ({@link Handler}).
 */
export interface Kind<Request = unknown, Event = unknown> {
  readonly name: string
  readonly pool: PoolName
  readonly request: z.ZodType<Request>
  readonly childrenAtOnce?: number
  /** Time in ms before the deadline in which a composed job writes its result. Default: a fraction of the job's total time. */
  readonly wrapUpMs?: number
  /** Maximum bytes of a complete answer. A larger answer is rejected. Default: 8 MiB. */
  readonly answerBytesMax?: number
  /** Merges an event into the previous event. Undefined if both must stay separate. */
  merge(previous: Event, next: Event): Event | undefined
  /** Whether the event contains output. A job is not retried after output, because the caller would receive the output twice. */
  isOutput(event: Event): boolean
  answer(endpoint?: string): Answer<Event>
}

export interface Progress {
  readonly phase: string
  readonly percent: number | null
  readonly message: string
  readonly counts?: Readonly<Record<string, number>>
}

export interface AttemptContext {
  /** Aborts on a cancel, a drain or the deadline. The handler must stop within a second. */
  readonly signal: AbortSignal
  /** The text `job_id:attempt`, with which the handler makes external effects idempotent. */
  readonly idempotencyKey: string
  readonly tenant: string
  readonly traceparent: string | undefined
  /** Called before the request is sent to a server of the model. The last call of an attempt counts. */
  readonly onServer: (model: string, server: number, host: string) => void
  /** Called with the progress of the job. Undefined if the caller receives the output of the job instead. */
  readonly onProgress: ((progress: Progress) => void) | undefined
  /** Recorded steps and child jobs. Undefined for an attached job. */
  readonly composition?: Composition | undefined
}

export interface Handler<Request = unknown, Event = unknown> extends Kind<Request, Event> {
  /** Parses and validates the body. @throws Error if the body is not valid for this version */
  parse(body: unknown): Request | Promise<Request>
  /** If true, then `run` accepts a body from an ingress in the same process without {@link parse}. Default: false. */
  readonly acceptsUnparsed?: boolean
  run(request: Request, context: AttemptContext): AsyncIterable<Event>
}

/**
 * Makes a handler from a kind.
 *
 * @param parse Default: validates the whole body and ignores fields of newer versions
 * @param acceptsUnparsed Whether `run` accepts a body that {@link Handler.parse} did not validate
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
