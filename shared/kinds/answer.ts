import type { EncodeContext } from '#schemas/job.ts'
import { isSmall, type JsonText } from '#shared/json/write.ts'
import type { ServiceError } from '#shared/lib/error.ts'

export interface Frame {
  /** Sequence number of the message. Present only in streams that a client can resume after a lost connection. */
  readonly id?: number
  readonly event?: string
  /** JSON text. The encoder serializes it once, and transports send it without parsing. */
  readonly data: string
  /**
   * Value of a large frame that is not serialized yet. Transports that can wait serialize this value with event-loop yields, and do not read `data`.
   */
  readonly value?: unknown
}

/**
 * Makes a frame. A small value is serialized at once. A large value is serialized when `data` is first read, so the caller must not change the value
 * afterwards.
 */
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
   * Encodes all events of the job into the complete answer. The result is a JSON value, a string that is sent as plain text, or a promise of either.
   *
   * @throws ServiceError if the events are not those of a successful job
   */
  whole(events: readonly Event[], context: EncodeContext): unknown
  /** Encodes the complete answer as JSON text, with event-loop yields. Only kinds with large answers have this method. */
  write?(events: readonly Event[], context: EncodeContext): Promise<JsonText>
  /**
   * Binary form of the answer, for callers that request bytes instead of JSON. `type` returns the media type, and `of` returns the bytes in one
   * event.
   */
  readonly bytes?: { type(context: EncodeContext): string; of(event: Event): Buffer | undefined }
  open?(context: EncodeContext): AnswerStream<Event>
}

export interface AnswerStream<Event = unknown> {
  push(event: Event): Frame[]
  /**
   * Returns the frames that follow the last event of a successful job.
   *
   * @throws ServiceError if the events were not those of a successful job
   */
  end(): Frame[]
  /** Returns the last frame of a stream whose job failed after the response head was sent. Undefined if the format has no error frame. */
  failed?(error: ServiceError): Frame
}
