export interface Decoder<Event> {
  frame(data: Record<string, unknown>, out: Event[]): void
  /** Reads a whole answer and pushes its events to `out`. Returns a generator if the rest of the work must yield to the event loop. */
  whole(body: Record<string, unknown>, out: Event[]): Generator<undefined, void> | undefined
  /** Called with a frame that is not JSON. Returns true if it ends the stream normally. */
  isEnd(data: string): boolean
  /** Whether the answer is finished, so that later frames are ignored. */
  readonly isDone: boolean
  /**
   * Whether the whole answer was received, even if its end marker is missing: each choice has its finish reason, or the message its stop
   * reason. Then a connection that breaks or falls silent ends the answer normally.
   *
   * Absent: only the end marker ends the answer.
   */
  readonly isComplete?: boolean
  /** Pushes text that was held back, and `finish` for each choice. @throws ServiceError if the answer is not complete */
  end(out: Event[]): void
}

export interface AnswerReader<Event> {
  /**
   * Pushes the events that are complete. Empty `chunks` mean that the bytes have ended. Returns whether the answer has ended. The result is a promise
   * only if the work had to yield to the event loop.
   */
  read(chunks: readonly Buffer[], out: Event[]): boolean | Promise<boolean>
  /** Whether the whole answer was received, even if its end was not. */
  readonly isComplete: boolean
  /**
   * Called if the connection broke or fell silent. Pushes the events of the remaining bytes, and returns whether the whole answer was
   * received.
   *
   * @throws ServiceError if the received answer is an error
   */
  cut(out: Event[]): boolean | Promise<boolean>
}

export interface WholeBounds {
  /** Maximum bytes. Default: the bound of text answers. */
  readonly bytes?: number
  /** Maximum JSON values. Default: the bound of text answers. */
  readonly values?: number
}
