/** Turns one answer of a dialect into events; made anew for each call. */
export interface Decoder<Event> {
  /** Reads the JSON object of one frame and pushes its events. */
  frame(data: Record<string, unknown>, out: Event[]): void
  /** Reads a whole answer and pushes its events: in turns, where it may have very much to do. */
  whole(body: Record<string, unknown>, out: Event[]): Generator<undefined, void> | undefined
  /** Hears the frame that is not JSON: true when it ends the stream well. */
  isEnd(data: string): boolean
  /** The answer has said all it has to say; what follows is of no interest. */
  readonly isDone: boolean
  /**
   * The whole answer was received, though the mark of its end may be missing: each choice has its finish reason, or the message
   * its stop reason. Then a connection that breaks or falls silent ends the answer well. Absent: only the mark ends it.
   */
  readonly isComplete?: boolean
  /** Pushes what was held back and `finish`, for each choice. @throws ServiceError when the answer is not complete */
  end(out: Event[]): void
}

/** Reads the bytes of an answer as they come. */
export interface AnswerReader<Event> {
  /**
   * Pushes the events that are complete. No chunks: the bytes have ended. Gives true when the answer has; without a promise where
   * that took no longer than others may wait for their turn.
   */
  read(chunks: readonly Buffer[], out: Event[]): boolean | Promise<boolean>
  /** The whole answer was received, though its end was not. */
  readonly isComplete: boolean
  /**
   * The connection broke, or fell silent: pushes the events of what is left. Gives true if the whole answer was received.
   *
   * @throws ServiceError if it was received and is an error
   */
  cut(out: Event[]): boolean | Promise<boolean>
}

/** How much of a whole answer is read. */
export interface WholeBounds {
  /** Default: what an answer of text may have. */
  readonly bytes?: number
  /** The same. */
  readonly values?: number
}
