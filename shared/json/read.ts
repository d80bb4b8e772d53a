import { ServiceError } from '#shared/lib/error.ts'
import { runYielding, yieldToEventLoop } from '#shared/lib/yielding.ts'

/**
 * JSON.parse for large texts, in pieces, because JSON.parse itself blocks the event loop for up to half a second per 32 MiB.
 *
 * The text is split between members of arrays and objects, and inside long strings. JSON.parse parses each piece. The result equals that of
 * JSON.parse for the whole text: of duplicate keys, the last is used, and `__proto__` is an ordinary key.
 */

export const PIECE_BYTES = 128 * 1024
/**
 * Bytes of a string that are parsed in one step. V8 allocates strings of more than 128 KiB separately, which costs more
 * than joining smaller strings.
 */
const STRING_PIECE_BYTES = 64 * 1024

const QUOTE = 0x22
const BACKSLASH = 0x5c
const COMMA = 0x2c
const COLON = 0x3a
const [OPEN_ARRAY, CLOSE_ARRAY] = [0x5b, 0x5d]
const [OPEN_OBJECT, CLOSE_OBJECT] = [0x7b, 0x7d]

export class JsonSyntaxError extends SyntaxError {
  readonly offset: number

  constructor(offset: number, cause: unknown) {
    super(cause instanceof Error ? cause.message : String(cause), { cause })
    this.name = 'JsonSyntaxError'
    this.offset = offset
  }
}

/**
 * Parses JSON in steps, for `runYielding`. The caller must first limit the nesting by {@link refuseShape}, because the reader calls itself for each
 * level and could overflow the stack.
 *
 * @param json Valid UTF-8
 * @throws JsonSyntaxError
 */
export function* readJson(json: Buffer): Generator<undefined, unknown> {
  if (json.length <= PIECE_BYTES) return parse(json, 0, json.length)
  const reader = new Reader(json)
  const value = yield* reader.value()
  yield* reader.end()
  return value
}

/**
 * Parses a stored text. For a large text, the result is a promise, because parsing yields to the event loop.
 *
 * @throws SyntaxError
 */
export function parseSoon(text: string): unknown | Promise<unknown> {
  return text.length <= PIECE_BYTES ? JSON.parse(text) : parseLarge(text)
}

async function parseLarge(text: string): Promise<unknown> {
  // Parsing begins in the next event-loop iteration, because reading the text from the store has already blocked this one.
  await yieldToEventLoop()
  const json = Buffer.from(text)
  await yieldToEventLoop()
  return await runYielding(readJson(json))
}

/** Parses the bytes from `start` to `end`. `before` and `after` are the brackets or quotes that complete this piece to a JSON text. */
function parse(json: Buffer, start: number, end: number, before = '', after = ''): unknown {
  try {
    return JSON.parse(before + json.toString('utf8', start, end) + after)
  } catch (cause) {
    throw new JsonSyntaxError(start, cause)
  }
}

class Reader {
  readonly #json: Buffer
  #at = 0
  /**
   * Cached end of the last long string. While the reader decides where to split, each enclosing array or object asks for the end of the
   * same string. Without the cache, each of them would search the string again.
   */
  #searched = { start: -1, to: 0, isFound: false }

  constructor(json: Buffer) {
    this.#json = json
  }

  *value(): Generator<undefined, unknown> {
    yield* this.#skipBlanks()
    switch (this.#json[this.#at]) {
      case QUOTE:
        return yield* this.#string()
      case OPEN_ARRAY:
        return yield* this.#array()
      case OPEN_OBJECT:
        return yield* this.#object()
      default:
        return this.#scalar()
    }
  }

  *end(): Generator<undefined, void> {
    yield* this.#skipBlanks()
    if (this.#at < this.#json.length) throw this.#unexpected()
  }

  #scalar(): unknown {
    const start = this.#at
    const most = Math.min(this.#json.length, start + PIECE_BYTES)
    while (this.#at < most && !isEndOfScalar(this.#json[this.#at] as number)) this.#at++
    return parse(this.#json, start, this.#at)
  }

  *#array(): Generator<undefined, unknown[]> {
    const array: unknown[] = []
    yield* this.#members(CLOSE_ARRAY, {
      run: (start, end) => {
        for (const item of parse(this.#json, start, end, '[', ']') as unknown[]) array.push(item)
      },
      large: function* (this: Reader) {
        array.push(yield* this.value())
      }.bind(this),
    })
    return array
  }

  *#object(): Generator<undefined, object> {
    const object: Record<string, unknown> = {}
    yield* this.#members(CLOSE_OBJECT, {
      run: (start, end) => {
        const some = parse(this.#json, start, end, '{', '}') as object
        for (const [key, value] of Object.entries(some)) setOwn(object, key, value)
      },
      large: function* (this: Reader) {
        const key = yield* this.#key()
        setOwn(object, key, yield* this.value())
      }.bind(this),
    })
    return object
  }

  /**
   * Parses all members of an array or object up to its closing bracket, several per piece. A member that is larger than a piece is parsed on its own.
   */
  *#members(close: number, take: { run(start: number, end: number): void; large(): Generator<undefined, void> }) {
    this.#at++
    yield* this.#skipBlanks()
    if (this.#json[this.#at] === close) return void this.#at++
    for (;;) {
      const start = this.#at
      const end = this.#endOfRun()
      if (end === undefined) {
        yield* take.large()
      } else {
        // In the invalid text `[1,]`, the piece after the comma is empty, and JSON.parse would accept it as `[]`. Blanks are therefore skipped first,
        // and a member must follow.
        yield* this.#skipBlanks()
        if (this.#at >= end) throw this.#unexpected()
        take.run(start, end)
        this.#at = end
      }
      yield
      yield* this.#skipBlanks()
      const next = this.#json[this.#at++]
      if (next === close) return
      if (next !== COMMA) throw this.#unexpected()
      yield* this.#skipBlanks()
    }
  }

  #endOfRun(): number | undefined {
    const json = this.#json
    const most = Math.min(json.length, this.#at + PIECE_BYTES)
    let depth = 0
    let end: number | undefined
    for (let i = this.#at; i < most; i++) {
      switch (json[i]) {
        case QUOTE:
          i = this.#endOfString(i + 1, most)
          break
        case OPEN_ARRAY:
        case OPEN_OBJECT:
          depth++
          break
        case CLOSE_ARRAY:
        case CLOSE_OBJECT:
          if (--depth < 0) return i
          break
        case COMMA:
          if (depth === 0) end = i
      }
    }
    return end
  }

  *#key(): Generator<undefined, string> {
    yield* this.#skipBlanks()
    if (this.#json[this.#at] !== QUOTE) throw this.#unexpected()
    const key = yield* this.#string()
    yield* this.#skipBlanks()
    if (this.#json[this.#at++] !== COLON) throw this.#unexpected()
    return key
  }

  /** Parses a string of any length in pieces. If a surrogate pair is split between two pieces, then joining the pieces restores it. */
  *#string(): Generator<undefined, string> {
    const json = this.#json
    const parts: string[] = []
    let start = this.#at + 1
    for (;;) {
      const most = Math.min(json.length, start + STRING_PIECE_BYTES)
      const quote = this.#endOfString(start, most)
      const isWhole = quote < most
      const end = isWhole ? quote : endOfCharacter(json, most, start)
      // A string that fits into one piece is parsed together with its quotes. Adding quotes would copy the text.
      if (isWhole && parts.length === 0) parts.push(parse(json, start - 1, end + 1) as string)
      else parts.push(parse(json, start, end, '"', '"') as string)
      yield
      start = end
      if (isWhole) break
      if (end >= json.length) throw new JsonSyntaxError(json.length, new Error('Unexpected end of JSON input'))
    }
    this.#at = start + 1
    return parts.length === 1 ? (parts[0] as string) : parts.join('')
  }

  #endOfString(start: number, most: number): number {
    const { to, isFound } = this.#searched
    const isSame = start === this.#searched.start
    if (isSame && (isFound || to >= most)) return to
    const end = endOfString(this.#json, isSame ? to : start, most)
    if (end - start > NEAR_BYTES) this.#searched = { start, to: end, isFound: end < most }
    return end
  }

  *#skipBlanks(): Generator<undefined, void> {
    for (let count = 1; isBlank(this.#json[this.#at]); count++) {
      this.#at++
      if (count % PIECE_BYTES === 0) yield
    }
  }

  #unexpected(): JsonSyntaxError {
    const isOver = this.#at >= this.#json.length
    return new JsonSyntaxError(this.#at, new Error(isOver ? 'Unexpected end of JSON input' : 'Unexpected token'))
  }
}

/**
 * Returns the index of the closing quote of a string. The search begins at index `start` and stops before index `most`. If no closing quote is found,
 * then the result is `most`, or `most + 1` if a backslash escapes the byte at `most`.
 */
export function endOfString(json: Buffer, start: number, most: number): number {
  let piece: Buffer | undefined
  for (let end = start; ; ) {
    const near = Math.min(most, end + NEAR_BYTES)
    while (end < near && json[end] !== QUOTE) end += json[end] === BACKSLASH ? 2 : 1
    if (end < near || end >= most) return end
    piece ??= most < json.length ? json.subarray(0, most) : json
    const quote = piece.indexOf(QUOTE, end)
    const next = quote < 0 ? most : quote
    const isEscaped = backslashesBefore(json, next, end) % 2 === 1
    if (quote < 0) return isEscaped ? most + 1 : most
    if (!isEscaped) return quote
    end = quote + 1
  }
}

/** Number of bytes that are compared one by one before `indexOf` is used. A call of `indexOf` costs about as much as these comparisons. */
const NEAR_BYTES = 16

function backslashesBefore(json: Buffer, at: number, start: number): number {
  let first = at
  while (first > start && json[first - 1] === BACKSLASH) first--
  return at - first
}

/** Returns the index at which to split a string: near `most`, but not inside an escape sequence or a character. */
function endOfCharacter(json: Buffer, most: number, start: number): number {
  let end = most
  for (let i = most - 1; i >= Math.max(start, most - ESCAPE_BYTES_MAX); i--) {
    if (json[i] !== BACKSLASH) continue
    const isEscaped = backslashesBefore(json, i, start) % 2 === 1
    if (!isEscaped) end = Math.max(most, i + escapeBytes(json, i))
    break
  }
  while (isContinuation(json[end])) end++
  return Math.min(end, json.length)
}

const ESCAPE_BYTES_MAX = 6

function escapeBytes(json: Buffer, at: number): number {
  return json[at + 1] === 0x75 ? 6 : 2
}

function isContinuation(byte: number | undefined): boolean {
  return byte !== undefined && (byte & 0xc0) === 0x80
}

function isBlank(byte: number | undefined): boolean {
  return byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09
}

function isEndOfScalar(byte: number): boolean {
  return isBlank(byte) || byte === COMMA || byte === CLOSE_ARRAY || byte === CLOSE_OBJECT
}

/** Defines a property as JSON.parse does. An assignment to `__proto__` would set the prototype instead. */
function setOwn(object: Record<string, unknown>, key: string, value: unknown): void {
  if (key !== '__proto__') {
    object[key] = value
    return
  }
  Object.defineProperty(object, key, { value, writable: true, enumerable: true, configurable: true })
}

/**
 * Maximum nesting depth of JSON. Functions that visit a received value call themselves for each level, so deeper JSON could overflow the
 * stack.
 */
export const DEPTH_MAX = 128
/** Maximum keys per object. In larger objects, the hash table of V8 becomes slow, so that parsing or visiting one key takes a microsecond. */
const KEYS_MAX = 50_000

const SHAPE_PIECE_BYTES = 256 * 1024

/** Maximum JSON values in a request. A conversation of 100,000 messages fits. */
const VALUES_MAX = 400_000

/**
 * Rejects JSON that would cost far more than its size suggests, before it is parsed. Examples:
 * 1. 32 MiB of `1,` instead of messages cause gigabytes of validation errors.
 * 2. 32 MiB of `[` take gigabytes of memory in the parser.
 * 3. An object of 400,000 keys takes seconds.
 *
 * The syntax of the text is not checked. The generator must be run by `runYielding`.
 *
 * @param valuesMax Maximum number of values. Default: that of a request
 * @returns Approximate number of values
 * @throws ServiceError `invalid_request` if the text exceeds a limit
 */
export function* refuseShape(json: Buffer, valuesMax = VALUES_MAX): Generator<undefined, number> {
  let depth = 0
  let values = 1
  const members = new Uint32Array(DEPTH_MAX + 1)
  let isInString = false
  for (let i = 0; i < json.length; ) {
    const most = Math.min(json.length, i + SHAPE_PIECE_BYTES)
    while (i < most) {
      if (isInString) {
        i = endOfString(json, i, most)
        isInString = i >= most
        if (!isInString) i++
        continue
      }
      switch (json[i++]) {
        case 0x22: // "
          isInString = true
          break
        case 0x5b: // [
        case 0x7b: // {
          if (++depth > DEPTH_MAX) throw invalid(`The JSON is nested deeper than ${DEPTH_MAX} levels.`)
          members[depth] = 0
          values++
          break
        case 0x3a: // :
          members[depth] = (members[depth] ?? 0) + 1
          if ((members[depth] ?? 0) > KEYS_MAX) throw invalid(`An object of the JSON has more than ${KEYS_MAX} keys.`)
          break
        case 0x2c: // ,
          values++
          break
        case 0x5d: // ]
        case 0x7d: // }
          depth--
      }
    }
    if (values > valuesMax) throw invalid(`The JSON contains more than ${valuesMax} values.`)
    yield
  }
  return values
}

function invalid(message: string): ServiceError {
  return new ServiceError('invalid_request', message)
}
