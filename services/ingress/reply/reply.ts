import { Readable } from 'node:stream'
import { jsonTextSoon } from '#shared/json/write.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { WireFormat } from './errors.ts'

/** Form of an answer: one JSON value, plain text, a stream, or the event history of a job. */
export type ReplyForm = 'json' | 'text' | 'stream' | 'events'

/** How a call ended, as the handler reports it. */
export type Outcome =
  | { readonly type: 'completed' }
  | {
      readonly type: 'failed'
      /** Any thrown value. The reply converts it to an error. */
      readonly thrown: unknown
      /** Format of a failure that is stored as the result of the job. A repeated request returns the same failure. */
      readonly keptAs?: WireFormat
    }

/**
 * Destination of the answer to one call, over HTTP or a WebSocket. Handlers throw failures, before or after output. The
 * code that called the handler passes a failure to {@link Reply.end}, which informs the caller, the access log and the
 * metrics.
 */
export interface Reply {
  /**
   * Aborts when the answer is no longer needed: the caller disconnected or cancelled, or its key was revoked. {@link
   * refusalOf} identifies a revoked key.
   */
  readonly disconnected: AbortSignal
  /**
   * Aborts with {@link disconnected}, and also when this process drains. For waits on work that continues without the caller.
   */
  readonly disconnectedOrDraining: AbortSignal
  /** True if the client is no longer connected. */
  readonly isDisconnected: boolean
  setHeader(name: string, value: string): void
  /**
   * Sets the job that runs the call.
   *
   * @param cancel Requests the cancellation of a job that continues after the call. Other jobs are cancelled by {@link
   * left}.
   */
  accepted(jobId: string, cancel?: () => void): void
  /**
   * Sets the form of the answer, so that keep-alives can be sent while the caller waits.
   *
   * @param failed Returns the error frame of a stream that fails after its head; default: the frame of the API format
   */
  open(form: ReplyForm, failed?: (error: ServiceError) => Frame): void
  /**
   * Sends frames of a stream. Returns a promise only if the send buffer is full, because one promise per token would
   * cost more than encoding the token.
   *
   * @param isOutput False delays the frames until the first output, so that the call can still fail with an HTTP error
   * @throws ServiceError `slow_reader`, through the promise
   */
  frames(frames: readonly Frame[], isOutput?: boolean): Promise<void> | undefined
  /**
   * Sends a whole answer.
   *
   * @param value A string is sent as text, any other value as JSON
   * @param status Default: 200
   * @throws ServiceError `slow_reader`
   */
  whole(value: unknown, status?: number): Promise<void>
  /**
   * Sends bytes while they are read. If no length is given, then the answer ends with the source. The source is always
   * read to its end or destroyed.
   *
   * @throws ServiceError `slow_reader`
   */
  bytes(source: Readable, head: { readonly type: string; readonly length?: number }): Promise<void>
  /** Ends the call: writes the log line and the metrics. Further calls have no effect. */
  end(outcome: Outcome): void
}

export const COMPLETED: Outcome = { type: 'completed' }

/** Error for a caller that is still connected, such as one with a revoked key; undefined if the caller disconnected. */
export function refusalOf({ reason }: AbortSignal): ServiceError | undefined {
  return reason instanceof ServiceError ? reason : undefined
}

/** @throws ServiceError if the key of the caller was revoked */
export function throwIfRefused({ disconnected: left }: Reply): void {
  const refusal = refusalOf(left)
  if (refusal) throw refusal
}

export interface Output {
  /** Time of the first output that is visible to the caller; undefined before. */
  readonly firstOutputAtMs: number | undefined
  /**
   * Returns the next events, at least one; undefined after the last one.
   *
   * @throws ServiceError if the job failed
   */
  next(): Promise<unknown[] | undefined>
}

/**
 * Sends the output of a job until the job has ended. The next events are taken after the previous ones were sent. If
 * the caller reads slowly, then the buffer of the job fills, which pauses the worker.
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
    if (reply.isDisconnected) return
    if (!events) break
    const frames: Frame[] = []
    for (const event of events) {
      onEvent(event)
      for (const frame of stream.push(event)) frames.push(frame)
    }
    // Frames before the first output, such as the start of a message, are delayed, because the attempt may still fail
    // with an HTTP error.
    const drained = sendFrames(reply, frames, output.firstOutputAtMs !== undefined)
    if (drained) await drained
  }
  await sendFrames(reply, stream.end())
}

/** Sends frames. Large frames are serialized with event-loop yields and sent one by one. */
export function sendFrames(reply: Reply, frames: readonly Frame[], isOutput = true): Promise<void> | undefined {
  return frames.some(isLarge) ? sendOneByOne(reply, frames, isOutput) : reply.frames(frames, isOutput)
}

async function sendOneByOne(reply: Reply, frames: readonly Frame[], isOutput: boolean): Promise<void> {
  for (const frame of frames) {
    if (reply.isDisconnected) return
    const { id, event, value } = frame
    const written = isLarge(frame)
      ? { ...(id !== undefined && { id }), ...(event !== undefined && { event }), data: await jsonTextSoon(value) }
      : frame
    await reply.frames([written], isOutput)
  }
}

function isLarge({ value }: Frame): boolean {
  return value !== undefined
}

/**
 * Sends the output of a job as bytes until the job has ended. A failure before the first byte becomes an HTTP error. A
 * later one cuts the connection, so that the client detects an incomplete answer.
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
  if (reply.isDisconnected) return
  async function* rest() {
    yield* first
    for (let events = await output.next(); events; events = await output.next()) yield* pieces(events)
  }
  await reply.bytes(Readable.from(rest(), { objectMode: false }), { type })
}
