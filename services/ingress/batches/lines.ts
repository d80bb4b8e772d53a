import type { BatchPartRange } from '#schemas/batches/batch.ts'
import { ByteBlocks } from '#services/ingress/body/body-bytes.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'

const NEWLINE = 0x0a
/** With the bytes of a byte order mark: an editor leaves one in a first line that is empty. */
const BLANK: ReadonlySet<number> = new Set([0x20, 0x09, 0x0d, 0xef, 0xbb, 0xbf])

/** One line of a file that is not blank. */
export interface Line {
  /** Counted from 1, blank ones included. */
  readonly number: number
  /** Where it begins in the file, and where the next one does, in bytes. */
  readonly start: number
  readonly end: number
  /** Without its line feed; undefined where it is longer than lines may be. */
  readonly bytes: Buffer | undefined
}

/** Takes a file apart into lines while it is read: no more is held than one line, of bounded length. */
export class LineSplitter {
  readonly #bytesMax: number
  #number: number
  #start: number
  #at: number
  #blocks = new ByteBlocks()
  #held = 0
  /** What there is of the line is blank: known as it comes, since a line may be as long as a body. */
  #isBlank = true

  /** @param bytesMax Of one line. @param from Where in the file the reading begins, and with which line. */
  constructor(bytesMax: number, from: { readonly start: number; readonly line: number } = { start: 0, line: 1 }) {
    this.#bytesMax = bytesMax
    this.#number = from.line
    this.#start = from.start
    this.#at = from.start
  }

  /** Bytes of the line that is not whole yet. */
  get held(): number {
    return this.#held
  }

  /** The lines that end in the next piece of the file. */
  *push(piece: Buffer): Generator<Line, void> {
    let from = 0
    for (let at = piece.indexOf(NEWLINE); at >= 0; at = piece.indexOf(NEWLINE, from)) {
      if (at > from) this.#keep(piece.subarray(from, at))
      this.#at++
      from = at + 1
      const line = this.#line()
      if (line) yield line
    }
    if (from < piece.length) this.#keep(piece.subarray(from))
  }

  /** The last line, where no line feed ends it. */
  *end(): Generator<Line, void> {
    const line = this.#line()
    if (line) yield line
  }

  #keep(piece: Buffer): void {
    this.#at += piece.length
    this.#held += piece.length
    this.#isBlank &&= piece.every((byte) => BLANK.has(byte))
    if (this.#held <= this.#bytesMax) this.#blocks.push(piece)
    else this.#blocks = new ByteBlocks()
  }

  /** The line that ends here; undefined: it is blank. */
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

/** The lines of a blob, as they are read. @param range Some of them; default: all */
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
