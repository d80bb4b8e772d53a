import { ByteBlocks } from '#services/ingress/body/body.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Maximum bytes before and after the list: the field name and whitespace. */
const AROUND_BYTES_MAX = 1_024
/** Matches the text before the list, one character per byte. A byte order mark may precede it. */
const BEFORE = /^(?:\xef\xbb\xbf)?\s*\{\s*"requests"\s*:\s*$/
const BEHIND = /^\s*\}\s*$/
/** Maximum bytes that are scanned between two event-loop yields. */
const TURN_BYTES = 128 * 1024

const [QUOTE, BACKSLASH, COMMA, SPACE] = [0x22, 0x5c, 0x2c, 0x20]
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d]
const BLANKS: ReadonlySet<number> = new Set([0x20, 0x09, 0x0a, 0x0d])
/**
 * Line breaks, which are replaced by spaces so that each request becomes one line of a file. Strings in JSON contain
 * only escaped ones, so no value changes.
 */
const BREAKS: ReadonlySet<number> = new Set([0x0a, 0x0d])

/** Position in the body: before the list, in the list, in an object of the list, or behind the list. */
type Place = 'before' | 'list' | 'object' | 'behind'

/**
 * Splits `{"requests":[…]}` into its objects while it arrives, with at most one object in memory. Only braces, brackets
 * and strings are tracked. The content of the objects is validated later.
 */
export class RequestsReader {
  readonly #bytesMax: number
  #place: Place = 'before'
  #around = ''
  /** Token that may follow in the list. */
  #next: 'first' | 'object' | 'comma' = 'first'
  #depth = 0
  #isInText = false
  #isEscaped = false
  #blocks = new ByteBlocks()
  #held = 0
  #count = 0

  /** @param bytesMax Maximum bytes of one object */
  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax
  }

  get held(): number {
    return this.#held
  }

  /**
   * Yields the objects that end in a piece, and undefined when the caller should yield to the event loop. Replaces line
   * breaks by spaces, also in the given piece.
   *
   * @throws ServiceError if the body has another form
   */
  *push(piece: Buffer): Generator<Buffer | undefined, void> {
    let from = 0
    let turn = TURN_BYTES
    for (let at = 0; at < piece.length; at++) {
      if (at >= turn) {
        turn += TURN_BYTES
        yield undefined
      }
      const byte = piece[at] as number
      if (this.#place !== 'object') {
        if (this.#outside(byte) === 'object') from = at
        continue
      }
      if (BREAKS.has(byte)) piece[at] = SPACE
      if (this.#endsObject(byte)) {
        this.#append(piece.subarray(from, at + 1))
        yield this.#taken()
      }
    }
    if (this.#place === 'object') this.#append(piece.subarray(from))
  }

  /** @throws ServiceError if the JSON is incomplete */
  end(): void {
    if (this.#place !== 'behind' || !BEHIND.test(this.#around)) throw malformed('The JSON is incomplete.')
  }

  /** @returns the position of the next byte */
  #outside(byte: number): Place {
    if (this.#place === 'list') this.#inList(byte)
    else this.#aroundList(byte)
    return this.#place
  }

  #aroundList(byte: number): void {
    if (this.#place === 'before' && byte === OPEN_LIST) {
      if (!BEFORE.test(this.#around)) throw malformed()
      this.#place = 'list'
      this.#around = ''
      return
    }
    this.#around += String.fromCharCode(byte)
    if (this.#around.length > AROUND_BYTES_MAX) throw malformed()
  }

  #inList(byte: number): void {
    if (BLANKS.has(byte)) return
    if (byte === OPEN_OBJECT && this.#next !== 'comma') {
      this.#place = 'object'
      this.#depth = 1
    } else if (byte === COMMA && this.#next === 'comma') this.#next = 'object'
    else if (byte === CLOSE_LIST && this.#next !== 'object') this.#place = 'behind'
    else throw malformed(`The element after the first ${this.#count} requests is not an object.`)
  }

  #endsObject(byte: number): boolean {
    if (this.#isInText) {
      if (this.#isEscaped) this.#isEscaped = false
      else if (byte === BACKSLASH) this.#isEscaped = true
      else if (byte === QUOTE) this.#isInText = false
      return false
    }
    if (byte === QUOTE) this.#isInText = true
    else if (byte === OPEN_OBJECT || byte === OPEN_LIST) this.#depth++
    else if (byte === CLOSE_OBJECT || byte === CLOSE_LIST) this.#depth--
    return this.#depth === 0
  }

  #append(piece: Buffer): void {
    this.#held += piece.length
    if (this.#held > this.#bytesMax) {
      const message = `requests.${this.#count}: longer than the ${this.#bytesMax} bytes that a request may have.`
      throw new ServiceError('request_too_large', message, { param: `requests.${this.#count}` })
    }
    this.#blocks.push(piece)
  }

  #taken(): Buffer {
    const object = this.#blocks.take()
    this.#blocks = new ByteBlocks()
    this.#held = 0
    this.#count++
    this.#place = 'list'
    this.#next = 'comma'
    return object
  }
}

function malformed(more = ''): ServiceError {
  const message = `Expected a JSON object with the list 'requests', and nothing else. ${more}`
  return new ServiceError('invalid_request', message.trim(), { param: 'requests' })
}
