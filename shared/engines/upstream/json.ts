import { isUtf8 } from 'node:buffer'
import { ServiceError } from '#shared/error.ts'
import { readJson } from '#shared/json/read.ts'
import { refuseShape } from '#shared/json/shape.ts'
import { isSmall, jsonBytesIn } from '#shared/json/write.ts'
import { runYielding } from '#shared/yielding.ts'
import { answerError, errorInAnswer, hasError, type Speaker } from './error.ts'

/** The body of a call: others have their turn while a large one is written. */
export function bodyOf(value: object): string | Promise<Buffer> {
  return isSmall(value) ? JSON.stringify(value) : runYielding(jsonBytesIn(value))
}

/** Bytes of a text that are no more than any code bears, whatever they are: no shape is looked at. */
const SMALL_BYTES = 4 * 1024

/**
 * Values of an answer, unless its reader says otherwise: the log probabilities of 3,000 tokens with twenty others each, which are
 * about as much as may be passed on. A decoder looks at all of them in one go.
 */
const VALUES_MAX = 600_000

/**
 * The JSON object of an answer, or of one frame of it. Whoever answers is not trusted: a large one is read in turns, and one
 * that is nested too deep or holds too much is refused. To be run by `runYielding`.
 *
 * @throws ServiceError when it is not a JSON object, or is one that tells of an error
 */
export function* answerObject(
  speaker: Speaker,
  json: Buffer,
  valuesMax = VALUES_MAX,
): Generator<undefined, Record<string, unknown>> {
  if (json.length <= SMALL_BYTES) return smallObject(speaker, json.toString())
  if (!isUtf8(json)) throw unreadable(speaker)
  try {
    yield* refuseShape(json, valuesMax)
  } catch (error) {
    throw answerError(speaker.model, 'sent JSON that holds too much, or is nested too deep', error)
  }
  let body: unknown
  try {
    body = yield* readJson(json)
  } catch (error) {
    throw unreadable(speaker, error)
  }
  return objectOf(speaker, body, json.length)
}

/** Whether a frame is read at once, by {@link smallObject}: most are small, and each token is one. */
export function isSmallFrame(text: string): boolean {
  return text.length <= SMALL_BYTES
}

/** As {@link answerObject}, at once. */
export function smallObject(speaker: Speaker, text: string): Record<string, unknown> {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch (error) {
    throw unreadable(speaker, error)
  }
  return objectOf(speaker, body, text.length)
}

function objectOf(speaker: Speaker, body: unknown, bytes: number): Record<string, unknown> {
  // Gemini: an error is an array of one.
  const object = Array.isArray(body) ? body[0] : body
  if (typeof object !== 'object' || object === null) throw answerError(speaker.model, 'sent JSON that is not an object')
  if (hasError(object)) throw errorInAnswer(speaker, object, bytes)
  return object as Record<string, unknown>
}

/** Whether a text is JSON; for short ones, which are parsed at once. */
export function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** Whether a failure of {@link answerObject} means text that is no JSON, or only a part of it. */
export function isUnreadable(error: unknown): boolean {
  return error instanceof ServiceError && error.cause instanceof SyntaxError
}

function unreadable({ model }: Speaker, cause?: unknown): ServiceError {
  return answerError(model, 'sent JSON that cannot be read', cause)
}
