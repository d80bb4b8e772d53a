import { isUtf8 } from 'node:buffer'
import { DEPTH_MAX, readJson, refuseShape } from '#shared/json/read.ts'
import { isSmall, jsonBytesIn } from '#shared/json/write.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { answerError, type ErrorContext, errorInAnswer, hasError } from './error.ts'

export function bodyOf(value: object): string | Promise<Buffer> {
  return isSmall(value) ? JSON.stringify(value) : runYielding(jsonBytesIn(value))
}

/** Maximum bytes of a body that is parsed in one step, without checks of depth and number of values. */
const SMALL_BYTES = 4 * 1024

/**
 * Default maximum of JSON values in an answer: 3,000 tokens with the log probabilities of twenty alternatives each. A decoder processes the values of
 * an answer without yielding.
 */
const VALUES_MAX = 600_000

/**
 * Parses the JSON object of an answer, or of one frame of a stream. Upstreams are not trusted, so large objects are parsed with event-loop yields,
 * and objects that are too deep or too large are rejected. Must be run by `runYielding`.
 *
 * @throws ServiceError if the text is no JSON object, or if the object contains an error
 */
export function* answerObject(
  errorContext: ErrorContext,
  json: Buffer,
  valuesMax = VALUES_MAX,
): Generator<undefined, Record<string, unknown>> {
  if (json.length <= SMALL_BYTES) return smallObject(errorContext, json.toString())
  if (!isUtf8(json)) throw unreadable(errorContext)
  try {
    yield* refuseShape(json, valuesMax)
  } catch (error) {
    const problem = `sent JSON with more than ${valuesMax} values, or nested deeper than ${DEPTH_MAX} levels`
    throw answerError(errorContext.model, problem, error)
  }
  let body: unknown
  try {
    body = yield* readJson(json)
  } catch (error) {
    throw unreadable(errorContext, error)
  }
  return objectOf(errorContext, body, json.length)
}

export function isSmallFrame(text: string): boolean {
  return text.length <= SMALL_BYTES
}

export function smallObject(errorContext: ErrorContext, text: string): Record<string, unknown> {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch (error) {
    throw unreadable(errorContext, error)
  }
  return objectOf(errorContext, body, text.length)
}

function objectOf(errorContext: ErrorContext, body: unknown, bytes: number): Record<string, unknown> {
  // Gemini sends an error as an array that contains one object.
  const object = Array.isArray(body) ? body[0] : body
  if (typeof object !== 'object' || object === null)
    throw answerError(errorContext.model, 'sent JSON that is not an object')
  if (hasError(object)) throw errorInAnswer(errorContext, object, bytes)
  return object as Record<string, unknown>
}

export function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

export function isUnreadable(error: unknown): boolean {
  return error instanceof ServiceError && error.cause instanceof SyntaxError
}

function unreadable({ model }: ErrorContext, cause?: unknown): ServiceError {
  return answerError(model, 'sent JSON that cannot be read', cause)
}

export interface Decoder<Event> {
  frame(data: Record<string, unknown>, out: Event[]): void
  /**
   * Reads an answer that was not streamed and pushes its events to `out`. Returns a generator if the rest of the work must yield to the event loop.
   */
  whole(body: Record<string, unknown>, out: Event[]): Generator<undefined, void> | undefined
  /** Called with a frame of a stream that is not JSON. Returns true if the frame ends the stream normally. */
  isEnd(data: string): boolean
  /** Whether the answer has ended. Later frames are ignored. */
  readonly isDone: boolean
  /**
   * Whether the answer is complete, even if its end marker is missing: each choice has its finish reason, or the message has its stop reason. If the
   * connection then breaks or falls silent, the answer ends normally.
   *
   * If undefined, then only the end marker ends the answer.
   */
  readonly isComplete?: boolean
  /**
   * Pushes buffered text, and `finish` for each choice. Returns a generator if the work must yield to the event loop.
   *
   * @throws ServiceError if the answer is not complete
   */
  end(out: Event[]): Generator<undefined, void> | undefined
}

export interface AnswerReader<Event> {
  /**
   * Pushes all complete events to `out`. Empty `chunks` mean that the connection has ended. Returns whether the answer has ended, as a promise if the
   * work had to yield to the event loop.
   */
  read(chunks: readonly Buffer[], out: Event[]): boolean | Promise<boolean>
  readonly isComplete: boolean
  /**
   * Called if the connection broke or fell silent. Pushes the events of the remaining bytes, and returns whether the answer is complete.
   *
   * @throws ServiceError if the received answer is an error
   */
  cut(out: Event[]): boolean | Promise<boolean>
}

export interface WholeBounds {
  readonly bytes?: number
  readonly values?: number
}
