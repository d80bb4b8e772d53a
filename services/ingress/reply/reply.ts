import { Readable } from 'node:stream'
import { ServiceError } from '#shared/error.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'
import type { WireFormat } from './errors.ts'

/** What an answer will be, once it is known: a whole one as JSON or as text, a stream, or the history of a job. */
export type ReplyForm = 'json' | 'text' | 'stream' | 'events'

/** How a call ended, seen from whoever answered it. */
export type Outcome =
  | { readonly type: 'completed' }
  | {
      readonly type: 'failed'
      /** Whatever was thrown; the reply classifies it. */
      readonly thrown: unknown
      /** The failure is that of a job, told in its format; asking again gives the same. */
      readonly keptAs?: WireFormat
    }

/**
 * Where the answer of one call goes: over HTTP, or over a WebSocket. Handlers throw what goes wrong, before or after output;
 * whoever called them ends the reply with it, and the reply tells the caller, the access log and the metrics.
 */
export interface Reply {
  /**
   * Aborts when the answer is for nobody any more: whoever asked has left, or wants it no more, or has lost the key
   * ({@link refusalOf} tells).
   */
  readonly left: AbortSignal
  /** The same, or this process drains: for what goes on without it. */
  readonly leaving: AbortSignal
  /** Nothing that is said would be heard. */
  readonly hasLeft: boolean
  /** Tells something beside the answer, where there is a place for it. Before anything else is said. */
  setHeader(name: string, value: string): void
  /**
   * Tells which job stands for the call.
   *
   * @param cancel Of a job that outlives the call: asks it to end. Otherwise it ends with {@link left}.
   */
  accepted(jobId: string, cancel?: () => void): void
  /**
   * Says what is to come, so that a caller who has to wait hears that the call lives.
   *
   * @param failed How a stream tells a failure after its head; default: as its format does.
   */
  open(form: ReplyForm, failed?: (error: ServiceError) => Frame): void
  /**
   * Says messages of a stream, once there is room for them. Gives a promise of room for more when there is none: one for
   * each token would cost more than encoding it.
   *
   * @param isOutput Until there is some, what is said may wait for it: the call may still fail as a whole.
   * @throws ServiceError `slow_reader`, by the promise
   */
  frames(frames: readonly Frame[], isOutput?: boolean): Promise<void> | undefined
  /**
   * Says a whole answer.
   *
   * @param value A string is text, all else JSON.
   * @param status Default: 200.
   * @throws ServiceError `slow_reader`
   */
  whole(value: unknown, status?: number): Promise<void>
  /**
   * Says a whole answer that is no JSON, as it is read; without a length, one whose end is not known. The source is read to its end, or destroyed.
   *
   * @throws ServiceError `slow_reader`
   */
  bytes(source: Readable, head: { readonly type: string; readonly length?: number }): Promise<void>
  /** Ends the call, logs and counts it. Only the first call has an effect. */
  end(outcome: Outcome): void
}

/** The end of what was said to its end. */
export const COMPLETED: Outcome = { type: 'completed' }

/** Why a caller who would still listen gets no answer; undefined where nobody listens. */
export function refusalOf({ reason }: AbortSignal): ServiceError | undefined {
  return reason instanceof ServiceError ? reason : undefined
}

/** @throws ServiceError When the caller has lost the key meanwhile */
export function throwIfRefused({ left }: Reply): void {
  const refusal = refusalOf(left)
  if (refusal) throw refusal
}

/** Where the output of a job comes from: an attached one, or what a durable one recorded. */
export interface Output {
  /** Set once there was output that a caller would notice. */
  readonly firstOutputAtMs: number | undefined
  /** Events, at least one; undefined after the last. @throws ServiceError When the job failed */
  next(): Promise<unknown[] | undefined>
}

/**
 * Says a job's output as it comes, until its end. The next is taken only when the last was said: so while the caller reads
 * slowly the job's own buffer fills, and pauses its worker.
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
    // What comes before output (the start of a message) waits for it: the attempt may still fail cleanly.
    const room = reply.frames(frames, output.firstOutputAtMs !== undefined)
    if (room) await room
  }
  await reply.frames(stream.end())
}

/**
 * Says a job's output as bytes as it comes, until its end. A failure before the first of them is told as one; after it the connection
 * is cut, so that nobody takes a part for the whole.
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
