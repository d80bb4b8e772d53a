import type { EncodeContext } from '#schemas/job.ts'
import type { ServiceError } from '#shared/error.ts'
import type { JsonText } from '#shared/protocols/encode.ts'

/**
 * One message of a stream, not yet framed for any wire: over HTTP it is an event of SSE, over a WebSocket part of a frame, and
 * of a durable job it is what is kept.
 */
export interface Frame {
  /** Its number in a history that can be resumed. */
  readonly id?: number
  /** Its name, where the format names its events. */
  readonly event?: string
  /** JSON text: it is made once, and no wire parses it. */
  readonly data: string
}

/** How the output of a kind reads in the words of one endpoint. */
export interface Answer<Event = unknown> {
  /**
   * The whole answer from all events of the job: JSON, or a string, which is sent as plain text; or a promise of one.
   *
   * @throws ServiceError When the events are not those of a job that ended well
   */
  whole(events: readonly Event[], context: EncodeContext): unknown
  /** The same as JSON text, where writing it takes so long that others must have their turn in between. */
  write?(events: readonly Event[], context: EncodeContext): Promise<JsonText>
  /** How its events are bytes, for callers who asked for these; of its media type. */
  readonly bytes?: { type(context: EncodeContext): string; of(event: Event): Buffer | undefined }
  /** Opens a stream; absent where the answer is always whole. */
  open?(context: EncodeContext): AnswerStream<Event>
}

/** One answer as it comes. */
export interface AnswerStream<Event = unknown> {
  /** What is said for the next event of the kind; often nothing. */
  push(event: Event): Frame[]
  /** What is said at a good end, after the last event. @throws ServiceError When the events were not those of a good end */
  end(): Frame[]
  /** What is said of a failure after the head, where the format tells it in words of the stream; it is the last that is said. */
  failed?(error: ServiceError): Frame
}
