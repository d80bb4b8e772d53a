import type { BatchPartRange } from '#schemas/batches/batch.ts'
import { ByteBlocks } from '#services/ingress/body/body.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'

const NEWLINE = 0x0a
/** Bytes of which a blank line consists. Editors may write a byte order mark into an empty first line. */
const BLANK: ReadonlySet<number> = new Set([0x20, 0x09, 0x0d, 0xef, 0xbb, 0xbf])

export interface Line {
  /** Line number, starting at 1 and including blank lines. */
  readonly number: number
  readonly start: number
  readonly end: number
  /** Content without the line feed; undefined if it exceeds the maximum length. */
  readonly bytes: Buffer | undefined
}

/** Splits a file into lines while it is read. Holds at most one line, of limited length, in memory. */
export class LineSplitter {
  readonly #bytesMax: number
  #number: number
  #start: number
  #at: number
  #blocks = new ByteBlocks()
  #held = 0
  /** True if the current line is blank so far. Updated per piece, because a line may be as long as a request body. */
  #isBlank = true

  /**
   * @param bytesMax Maximum bytes per line
   * @param from Offset and line number at which reading starts
   */
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

  /** Returns the last line if no line feed ends it. */
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

  /** Current line; undefined if it is blank. */
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

/**
 * Yields the lines of a blob while it is read.
 *
 * @param range Part of the blob; default: all
 */
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
