import type { EncodeContext } from '#schemas/job.ts'
import { isSmall } from '#shared/json/write.ts'
import type { ServiceError } from '#shared/lib/error.ts'
import type { JsonText } from './encode.ts'

/**
 * One message of a stream, independent of its transport. Examples: an SSE event over HTTP, a part of a frame over WebSocket, a row of a
 * durable job.
 */
export interface Frame {
  /** Sequence number, if a client can resume the stream after this message. */
  readonly id?: number
  /** Event name, if the format has event names. */
  readonly event?: string
  /** JSON text. Serialized once; no transport parses it. */
  readonly data: string
  /** The data of a large frame as a value. Readers that can wait serialize it with event-loop yields instead of reading `data`. */
  readonly value?: unknown
}

/** A frame whose data is serialized at its first use if it is large. The value must not change afterwards. */
export function frameOf(value: unknown, { event, id }: Pick<Frame, 'event' | 'id'> = {}): Frame {
  const named = { ...(id !== undefined && { id }), ...(event !== undefined && { event }) }
  if (isSmall(value)) return { ...named, data: JSON.stringify(value) }
  return {
    ...named,
    value,
    get data() {
      return JSON.stringify(value)
    },
  }
}

export interface Answer<Event = unknown> {
  /**
   * The complete answer from all events of the job: a JSON value, a string that is sent as plain text, or a promise of either.
   *
   * @throws ServiceError if the events are not those of a successful job
   */
  whole(events: readonly Event[], context: EncodeContext): unknown
  /** The complete answer as JSON text. For answers so large that serialization must yield to the event loop. */
  write?(events: readonly Event[], context: EncodeContext): Promise<JsonText>
  /** Binary form of the answer, for callers that request bytes: the media type, and the bytes of one event. */
  readonly bytes?: { type(context: EncodeContext): string; of(event: Event): Buffer | undefined }
  /** Opens a stream; absent if the answer is never streamed. */
  open?(context: EncodeContext): AnswerStream<Event>
}

export interface AnswerStream<Event = unknown> {
  push(event: Event): Frame[]
  /** Frames after the last event of a successful job. @throws ServiceError if the events were not those of a successful job */
  end(): Frame[]
  /** Last frame of a job that failed after the response head was sent, if the format has an error frame. */
  failed?(error: ServiceError): Frame
}
