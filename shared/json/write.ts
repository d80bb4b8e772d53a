import { isLowSurrogate } from '#shared/lib/buffers.ts'
import { concatBytes } from '#shared/lib/concat-bytes.ts'
import { runYielding } from '#shared/lib/yielding.ts'

/**
 * JSON.stringify for large values, in pieces, because JSON.stringify itself blocks the event loop. The joined pieces equal the output of
 * JSON.stringify for the whole value. Parts of the value that are small are written by JSON.stringify.
 */

const PIECE_CHARS = 64 * 1024
const VALUES_AT_ONCE = 512
const CHARS_AT_ONCE = PIECE_CHARS
const PARTS_PER_PIECE = 512

export interface WriteOptions {
  /** True to sort object keys, so that equal objects have equal texts. */
  readonly sortsKeys?: boolean
}

/**
 * Writes the JSON text of a value in pieces. As in JSON.stringify, `undefined` and functions are omitted in objects and become null
 * in arrays, and `toJSON` is called.
 *
 * @param value A value of bounded nesting, without cycles
 */
export function* writeJson(value: unknown, options: WriteOptions = {}): Generator<string> {
  let text = ''
  let parts = 0
  for (const part of partsOf(value, options)) {
    text += part
    if (text.length < PIECE_CHARS && ++parts < PARTS_PER_PIECE) continue
    yield text
    text = ''
    parts = 0
  }
  if (text !== '') yield text
}

export function* jsonTextIn(value: unknown): Generator<undefined, string> {
  let text = ''
  for (const piece of writeJson(value)) {
    text += piece
    yield
  }
  return text
}

/** A JSON value that is already serialized, so that `JSON.stringify` does not block the event loop with a large value. */
export class JsonText {
  readonly text: string

  constructor(text: string) {
    this.text = text
  }
}

/** Serializes a value. A large value is serialized with event-loop yields. */
export function jsonTextSoon(value: unknown): string | Promise<string> {
  if (value instanceof JsonText) return value.text
  return isSmall(value) ? (JSON.stringify(value) ?? 'null') : runYielding(jsonTextIn(value))
}

export function* jsonBytesIn(value: unknown): Generator<undefined, Buffer> {
  const pieces: Buffer[] = []
  let bytes = 0
  for (const text of writeJson(value)) {
    const piece = Buffer.from(text)
    pieces.push(piece)
    bytes += piece.length
    yield
  }
  return yield* concatBytes(pieces, bytes)
}

export function isSmall(value: unknown): boolean {
  return isWithin(value, { values: VALUES_AT_ONCE, chars: CHARS_AT_ONCE })
}

interface Budget {
  values: number
  chars: number
}

function isWithin(value: unknown, budget: Budget): boolean {
  if (--budget.values < 0) return false
  if (typeof value === 'string') {
    budget.chars -= value.length
    return budget.chars >= 0
  }
  if (typeof value !== 'object' || value === null) return true
  if (Array.isArray(value)) {
    if (value.length > budget.values) return false
    for (const item of value) if (!isWithin(item, budget)) return false
    return true
  }
  for (const key in value) {
    budget.chars -= key.length
    if (!isWithin((value as Record<string, unknown>)[key], budget)) return false
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
    // A surrogate pair must not be split, because JSON.stringify would write each half as an escape sequence.
    if (end < text.length && isLowSurrogate(text.charCodeAt(end))) end++
    yield JSON.stringify(text.slice(at, end)).slice(1, -1)
    at = end
  }
  yield '"'
}

function* arrayParts(array: readonly unknown[], options: WriteOptions): Generator<string> {
  yield '['
  for (let at = 0; at < array.length; ) {
    if (at > 0) yield ','
    const end = options.sortsKeys ? at : endOfSmallItems(array, at)
    if (end > at) yield JSON.stringify(array.slice(at, end)).slice(1, -1)
    else yield* partsOf(array[at], options)
    at = Math.max(end, at + 1)
  }
  yield ']'
}

/** Returns the end of the items that JSON.stringify can write in one call, beginning at `start`, without blocking the event loop. */
function endOfSmallItems(array: readonly unknown[], start: number): number {
  const budget = { values: VALUES_AT_ONCE, chars: CHARS_AT_ONCE }
  let end = start
  while (end < array.length && isWithin(array[end], budget)) end++
  return end
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
