import { isUtf8 } from 'node:buffer'
import { createHash } from 'node:crypto'
import { z } from 'zod'
import type { BatchPartRange } from '#schemas/batches/batch.ts'
import { ByteBlocks, withoutByteOrderMark } from '#services/ingress/body/body.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { JsonSyntaxError, readJson, refuseShape } from '#shared/json/read.ts'
import { findJsonProblem } from '#shared/json/syntax-error.ts'
import { ServiceError } from '#shared/lib/error.ts'

const NEWLINE = 0x0a
/**
 * Bytes that a blank line may contain: space, tab, carriage return, and a byte order mark, which editors write into an
 * empty first line.
 */
const BLANK: ReadonlySet<number> = new Set([0x20, 0x09, 0x0d, 0xef, 0xbb, 0xbf])

export interface Line {
  readonly number: number
  readonly start: number
  readonly end: number
  /** Content without the line feed. Undefined if the line exceeds the maximum length. */
  readonly bytes: Buffer | undefined
}

/** Splits a file into lines while the file is read. At most one line, of limited length, is in memory. */
export class LineSplitter {
  readonly #bytesMax: number
  #number: number
  #start: number
  #at: number
  #blocks = new ByteBlocks()
  #held = 0
  /**
   * True if all bytes of the current line so far are blank. Each received piece is checked when it arrives. Checking a whole line at its
   * end would block the event loop, because a line may be as long as the largest request body.
   */
  #isBlank = true

  constructor(bytesMax: number, from: { readonly start: number; readonly line: number } = { start: 0, line: 1 }) {
    this.#bytesMax = bytesMax
    this.#number = from.line
    this.#start = from.start
    this.#at = from.start
  }

  get held(): number {
    return this.#held
  }

  *push(piece: Buffer): Generator<Line, void> {
    let from = 0
    for (let at = piece.indexOf(NEWLINE); at >= 0; at = piece.indexOf(NEWLINE, from)) {
      if (at > from) this.#append(piece.subarray(from, at))
      this.#at++
      from = at + 1
      const line = this.#line()
      if (line) yield line
    }
    if (from < piece.length) this.#append(piece.subarray(from))
  }

  *end(): Generator<Line, void> {
    const line = this.#line()
    if (line) yield line
  }

  #append(piece: Buffer): void {
    this.#at += piece.length
    this.#held += piece.length
    this.#isBlank &&= piece.every((byte) => BLANK.has(byte))
    if (this.#held <= this.#bytesMax) this.#blocks.push(piece)
    else this.#blocks = new ByteBlocks()
  }

  #line(): Line | undefined {
    const [start, number] = [this.#start, this.#number++]
    this.#start = this.#at
    if (this.#held === 0) return undefined
    const isTooLong = this.#held > this.#bytesMax
    const isBlank = this.#isBlank && !isTooLong
    const bytes = isTooLong || isBlank ? undefined : this.#blocks.take()
    this.#blocks = new ByteBlocks()
    this.#held = 0
    this.#isBlank = true
    return isBlank ? undefined : { number, start, end: this.#at, bytes }
  }
}

export async function* linesOf(
  blobs: Blobs,
  key: string,
  bytesMax: number,
  range?: BatchPartRange,
): AsyncGenerator<Line> {
  const splitter = new LineSplitter(bytesMax, range)
  for await (const piece of await blobs.open(key, range)) yield* splitter.push(piece)
  yield* splitter.end()
}

const REQUESTS_MAX = 50_000
const CUSTOM_ID_CHARS_MAX = 512
/**
 * Number of base64 characters of a custom_id's hash that are stored to find duplicates. With 96 bits, an accidental collision among 50,000 ids is
 * negligible.
 */
const HASH_CHARS = 16

const RequestLine = z.object({
  custom_id: z.string().min(1).max(CUSTOM_ID_CHARS_MAX),
  method: z.literal('POST'),
  url: z.string().max(2_048),
  body: z.looseObject({}),
})

const MessagesLine = z.object({
  custom_id: z.string().regex(/^[a-zA-Z0-9_-]{1,64}$/, 'must be 1 to 64 letters, digits, _ and -'),
  params: z.looseObject({}),
})

export interface LineProblem {
  readonly code: string
  readonly message: string
  readonly param: string | null
  readonly line: number | null
}

interface BatchRequestLine {
  readonly customId: string
  readonly url: string
  readonly body: Record<string, unknown>
}

interface LineRules {
  readonly dialect: 'requests' | 'messages'
  readonly endpoint?: string | undefined
  readonly lineBytesMax: number
}

/**
 * Parses one line. Must be run by `runYielding`, because parsing a long line would block the event loop.
 *
 * @throws ServiceError for an invalid line, with the field in `param`
 */
export function* readLine(
  { bytes }: Line,
  { dialect, lineBytesMax }: LineRules,
): Generator<undefined, BatchRequestLine> {
  if (!bytes) throw new ServiceError('request_too_large', `The line is longer than ${lineBytesMax} bytes.`)
  const value = yield* jsonOf(withoutByteOrderMark(bytes), dialect)
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new ServiceError('invalid_type', 'The line must be a JSON object.')
  }
  if (dialect === 'messages') {
    const { custom_id: customId, params: body } = parseBody(MessagesLine, value, 'messages')
    return { customId, url: '/v1/messages', body }
  }
  const { custom_id: customId, url, body } = parseBody(RequestLine, value, 'openai')
  return { customId, url, body }
}

const FORM = 'Each line is a request: a JSON object with custom_id, method, url and body.'

function* jsonOf(bytes: Buffer, dialect: LineRules['dialect']): Generator<undefined, unknown> {
  if (!isUtf8(bytes)) throw new ServiceError('invalid_request', 'The line is not valid UTF-8.')
  yield* refuseShape(bytes)
  try {
    return yield* readJson(bytes)
  } catch (error) {
    if (!(error instanceof JsonSyntaxError)) throw error
    const { problem, fix } = (yield* findJsonProblem(bytes)) ?? { problem: '', fix: '' }
    const message = `The line is not JSON.${dialect === 'requests' ? ` ${FORM}` : ''} ${problem} ${fix}`.trim()
    throw new ServiceError('invalid_request', message, { cause: error })
  }
}

/** Maximum models of a batch that are recorded. */
const MODELS_MAX = 5

/**
 * Checks the lines of a file one by one, each line alone and against the previous lines. To find duplicate ids, a short
 * hash per line stays in memory.
 */
export class LineChecker {
  readonly #rules: LineRules
  readonly #seen = new Map<string, number>()
  #url: string | undefined
  #model: string | undefined
  readonly #models = new Set<string>()
  #count = 0

  constructor(rules: LineRules) {
    this.#rules = rules
    this.#url = rules.endpoint
  }

  get count(): number {
    return this.#count
  }

  get model(): string | undefined {
    return this.#model
  }

  /** The models of the lines, at most {@link MODELS_MAX}. Only the lines of a batch of messages may have different models. */
  get models(): readonly string[] {
    return [...this.#models]
  }

  /**
   * Checks the next line. Returns undefined if the line is valid. Must be run by `runYielding`, because checking a long line would block the event
   * loop.
   */
  *check(line: Line): Generator<undefined, LineProblem | undefined> {
    this.#count++
    if (this.#count === REQUESTS_MAX + 1) {
      return {
        code: 'too_many_requests',
        message: `A batch has at most ${REQUESTS_MAX} requests.`,
        param: null,
        line: line.number,
      }
    }
    try {
      return this.#compare(yield* readLine(line, this.#rules), line.number)
    } catch (error) {
      if (!(error instanceof ServiceError)) throw error
      const { code, message, param } = error
      return { code: CODES[code] ?? code, message, param, line: line.number }
    }
  }

  end(): LineProblem | undefined {
    if (this.#count > 0) return undefined
    return { code: 'empty_file', message: 'The file has no requests.', param: null, line: null }
  }

  #compare({ customId, url, body }: BatchRequestLine, line: number): LineProblem | undefined {
    const problem = (code: string, message: string, param: string) => ({ code, message, param, line })
    const hash = createHash('sha256').update(customId).digest('base64').slice(0, HASH_CHARS)
    const first = this.#seen.get(hash)
    if (first !== undefined) {
      const message = `The custom_id '${excerpt(customId)}' is already used in line ${first}.`
      return problem('duplicate_custom_id', message, 'custom_id')
    }
    this.#seen.set(hash, line)
    this.#url ??= url
    if (url !== this.#url) {
      return problem(
        'mismatched_url',
        `The url '${excerpt(url)}' differs from the endpoint of this batch, ${this.#url}.`,
        'url',
      )
    }
    if (typeof body.model === 'string' && this.#models.size < MODELS_MAX) this.#models.add(body.model)
    if (this.#rules.dialect === 'messages' || typeof body.model !== 'string') return undefined
    this.#model ??= body.model
    if (body.model === this.#model) return undefined
    const message = `The model '${excerpt(body.model)}' differs from that of the previous lines, '${excerpt(this.#model)}'. All lines of a batch must have the same model.`
    return problem('mismatched_model', message, 'body.model')
  }
}

const CODES: Readonly<Record<string, string>> = {
  invalid_request: 'invalid_json_line',
  request_too_large: 'line_too_large',
}
