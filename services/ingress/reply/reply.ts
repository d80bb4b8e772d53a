import { Readable } from 'node:stream'
import { ServiceError } from '#shared/error.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'
import type { WireFormat } from './errors.ts'

/** Form of an answer: a whole one as JSON or as text, a stream, or the event history of a job. */
export type ReplyForm = 'json' | 'text' | 'stream' | 'events'

/** How a call ended, as the handler reports it. */
export type Outcome =
  | { readonly type: 'completed' }
  | {
      readonly type: 'failed'
      /** Any thrown value; the reply classifies it. */
      readonly thrown: unknown
      /** Set if the failure is the stored end of a job, in this format. A repeated request returns the same failure. */
      readonly keptAs?: WireFormat
    }

/**
 * Destination of one call's answer, over HTTP or a WebSocket. Handlers throw failures, before or after output. The code
 * that called the handler passes them to {@link Reply.end}, which reports to the caller, the access log and the
 * metrics.
 */
export interface Reply {
  /**
   * Aborts when the answer is no longer wanted: the caller disconnected, cancelled or lost its key. {@link refusalOf}
   * distinguishes the last case.
   */
  readonly left: AbortSignal
  /**
   * Aborts with {@link left}, and also when this process drains. For waits on work that continues without the caller.
   */
  readonly leaving: AbortSignal
  /** True if output would reach no client. */
  readonly hasLeft: boolean
  setHeader(name: string, value: string): void
  /**
   * Reports the job that runs the call.
   *
   * @param cancel Requests the end of a job that outlives the call. Without it, the job ends with {@link left}.
   */
  accepted(jobId: string, cancel?: () => void): void
  /**
   * Announces the form of the answer, so that keep-alives can be sent while the caller waits.
   *
   * @param failed Error frame of a stream after its head; default: that of the format.
   */
  open(form: ReplyForm, failed?: (error: ServiceError) => Frame): void
  /**
   * Sends frames of a stream. Returns a promise only if the send buffer is full: one promise per token would cost more
   * than the token's encoding.
   *
   * @param isOutput False delays the frames until the first output, so that the call can still fail as a whole.
   * @throws ServiceError `slow_reader`, through the promise
   */
  frames(frames: readonly Frame[], isOutput?: boolean): Promise<void> | undefined
  /**
   * Sends a whole answer.
   *
   * @param value A string is sent as text, any other value as JSON.
   * @param status Default: 200.
   * @throws ServiceError `slow_reader`
   */
  whole(value: unknown, status?: number): Promise<void>
  /**
   * Sends bytes as they are read. Without a length, the end is that of the source. The source is read to its end or
   * destroyed.
   *
   * @throws ServiceError `slow_reader`
   */
  bytes(source: Readable, head: { readonly type: string; readonly length?: number }): Promise<void>
  /** Ends the call, logs and counts it. Only the first call has an effect. */
  end(outcome: Outcome): void
}

export const COMPLETED: Outcome = { type: 'completed' }

/** The error for a caller that is still connected, such as a revoked key; undefined if the caller left. */
export function refusalOf({ reason }: AbortSignal): ServiceError | undefined {
  return reason instanceof ServiceError ? reason : undefined
}

/** @throws ServiceError if the caller's key was revoked meanwhile */
export function throwIfRefused({ left }: Reply): void {
  const refusal = refusalOf(left)
  if (refusal) throw refusal
}

/**
 * Next events, at least one; undefined after the last.
 *
 * @throws ServiceError if the job failed
 */
export interface Output {
  /** Time of the first output that a caller would notice. */
  readonly firstOutputAtMs: number | undefined
  /** Returns at least one event; undefined after the last one. @throws ServiceError if the job failed */
  next(): Promise<unknown[] | undefined>
}

/**
 * Sends a job's output until its end. The next events are taken only after the previous were sent. If the caller reads
 * slowly, then the job's buffer fills, which pauses the worker.
 */
export async function sendStream(
  reply: Reply,
  output: Output,
  stream: AnswerStream,
  onEvent: (event: unknown) => void = () => {},
): Promise<void> {
  reply.open('stream', stream.failed?.bind(stream))
  for (;;) {
    const events = await output.next()
    if (reply.hasLeft) return
    if (!events) break
    const frames: Frame[] = []
    for (const event of events) {
      onEvent(event)
      for (const frame of stream.push(event)) frames.push(frame)
    }
    // Frames before the first output, such as the start of a message, wait for it: the attempt may still fail with a
    // status.
    const drained = reply.frames(frames, output.firstOutputAtMs !== undefined)
    if (drained) await drained
  }
  await reply.frames(stream.end())
}

/**
 * Sends a job's output as bytes until its end. A failure before the first byte becomes an HTTP error. A later one cuts
 * the connection, so that a client cannot mistake a part for the whole.
 */
export async function sendBytes(
  reply: Reply,
  output: Output,
  type: string,
  of: (event: unknown) => Buffer | undefined,
  onEvent: (event: unknown) => void = () => {},
): Promise<void> {
  const pieces = (events: readonly unknown[]) =>
    events.flatMap((event) => {
      onEvent(event)
      return of(event) ?? []
    })
  const first = pieces((await output.next()) ?? [])
  if (reply.hasLeft) return
  async function* rest() {
    yield* first
    for (let events = await output.next(); events; events = await output.next()) yield* pieces(events)
  }
  await reply.bytes(Readable.from(rest(), { objectMode: false }), { type })
}
