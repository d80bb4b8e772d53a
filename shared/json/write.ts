import { joinBytes } from '#shared/join-bytes.ts'
import { isLowSurrogate } from '#shared/surrogate-buffer.ts'

/**
 * JSON.stringify for large values, in pieces of text. Joined they are exactly its text.
 *
 * What is small is written by JSON.stringify itself; only what is large is taken apart.
 */

/** Characters of a piece, about: half a millisecond. */
const PIECE_CHARS = 64 * 1024
/** Values and characters up to which JSON.stringify writes all at once. */
const VALUES_AT_ONCE = 512
const CHARS_AT_ONCE = PIECE_CHARS

/** How a value is written. */
export interface WriteOptions {
  /** Objects are written with their keys in order, so that equal ones have the same text. */
  readonly sortsKeys?: boolean
}

/**
 * The text of a value, piece by piece. Of what JSON.stringify knows, values without a text are left out (`undefined` and
 * functions in objects) or null (in arrays), and `toJSON` is asked.
 *
 * @param value Of bounded nesting, without cycles.
 */
export function* writeJson(value: unknown, options: WriteOptions = {}): Generator<string> {
  let text = ''
  for (const part of partsOf(value, options)) {
    text += part
    if (text.length < PIECE_CHARS) continue
    yield text
    text = ''
  }
  if (text !== '') yield text
}

/** The whole text of a value that may be large, to be run by `runYielding`. */
export function* jsonTextIn(value: unknown): Generator<undefined, string> {
  let text = ''
  for (const piece of writeJson(value)) {
    text += piece
    yield
  }
  return text
}

/** The same as UTF-8. */
export function* jsonBytesIn(value: unknown): Generator<undefined, Buffer> {
  const pieces: Buffer[] = []
  let bytes = 0
  for (const text of writeJson(value)) {
    const piece = Buffer.from(text)
    pieces.push(piece)
    bytes += piece.length
    yield
  }
  return yield* joinBytes(pieces, bytes)
}

/** Whether JSON.stringify writes a value of this size at once without holding up anybody. */
export function isSmall(value: unknown): boolean {
  return roomLeft(value, { values: VALUES_AT_ONCE, chars: CHARS_AT_ONCE })
}

interface Room {
  values: number
  chars: number
}

function roomLeft(value: unknown, room: Room): boolean {
  if (--room.values < 0) return false
  if (typeof value === 'string') {
    room.chars -= value.length
    return room.chars >= 0
  }
  if (typeof value !== 'object' || value === null) return true
  if (Array.isArray(value)) {
    if (value.length > room.values) return false
    for (const item of value) if (!roomLeft(item, room)) return false
    return true
  }
  for (const key in value) {
    room.chars -= key.length
    if (!roomLeft((value as Record<string, unknown>)[key], room)) return false
  }
  return true
}

function* partsOf(given: unknown, options: WriteOptions): Generator<string> {
  const value = toJson(given)
  if (!options.sortsKeys && isSmall(value)) return yield JSON.stringify(value) ?? 'null'
  if (typeof value === 'string') return yield* stringParts(value)
  if (Array.isArray(value)) return yield* arrayParts(value, options)
  if (typeof value === 'object' && value !== null) return yield* objectParts(value, options)
  yield JSON.stringify(value) ?? 'null'
}

function toJson(value: unknown): unknown {
  const { toJSON } = (value ?? {}) as { toJSON?: unknown }
  return typeof toJSON === 'function' ? toJSON.call(value) : value
}

function* stringParts(text: string): Generator<string> {
  if (text.length <= PIECE_CHARS) return yield JSON.stringify(text)
  yield '"'
  for (let at = 0; at < text.length; ) {
    let end = Math.min(text.length, at + PIECE_CHARS)
    // Half of a pair alone would be written as an escape.
    if (end < text.length && isLowSurrogate(text.charCodeAt(end))) end++
    yield JSON.stringify(text.slice(at, end)).slice(1, -1)
    at = end
  }
  yield '"'
}

function* arrayParts(array: readonly unknown[], options: WriteOptions): Generator<string> {
  yield '['
  for (const [index, item] of array.entries()) {
    if (index > 0) yield ','
    yield* partsOf(item, options)
  }
  yield ']'
}

function* objectParts(object: object, options: WriteOptions): Generator<string> {
  const keys = Object.keys(object)
  if (options.sortsKeys) keys.sort()
  let before = '{'
  for (const key of keys) {
    const value = (object as Record<string, unknown>)[key]
    if (value === undefined || typeof value === 'function') continue
    yield before
    yield* stringParts(key)
    yield ':'
    yield* partsOf(value, options)
    before = ','
  }
  yield before === '{' ? '{}' : '}'
}
