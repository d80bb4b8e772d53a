import { inTurns } from '#shared/in-turns.ts'

/** Smallest and largest block that is filled with what comes in small pieces. */
const BLOCK_BYTES_MIN = 4 * 1024
const BLOCK_BYTES_MAX = 1024 * 1024

/**
 * Bytes as they arrive, in memory that is no more than about twice theirs: a piece of a single byte would hold a hundred of its
 * own, and the 64 KiB that were read from the socket along with it.
 */
export class ByteBlocks {
  bytes = 0
  #blocks: Buffer[] = []
  /** Of the last block. */
  #used = 0

  push(piece: Buffer): void {
    // Most bodies are one piece.
    if (this.bytes === 0) this.#add(piece, piece.length)
    else this.#copy(piece)
    this.bytes += piece.length
  }

  /** All of them as one. What was pushed is forgotten. */
  async join(): Promise<Buffer> {
    const blocks = this.#blocks
    this.#blocks = []
    const [only] = blocks
    if (blocks.length === 1 && only) return only.subarray(0, this.bytes)
    return await inTurns(joined(blocks, this.bytes))
  }

  #copy(piece: Buffer): void {
    const last = this.#blocks.at(-1)
    const copied = last ? piece.copy(last, this.#used) : 0
    this.#used += copied
    if (copied === piece.length) return
    const rest = piece.subarray(copied)
    const size = Math.max(rest.length, Math.min(BLOCK_BYTES_MAX, Math.max(BLOCK_BYTES_MIN, this.bytes)))
    const block = Buffer.allocUnsafeSlow(size)
    this.#add(block, rest.copy(block))
  }

  #add(block: Buffer, used: number): void {
    this.#blocks.push(block)
    this.#used = used
  }
}

/** Each block is let go of as soon as it is copied. */
function* joined(blocks: Buffer[], bytes: number): Generator<undefined, Buffer> {
  const whole = Buffer.allocUnsafeSlow(bytes)
  let at = 0
  blocks.reverse()
  for (let block = blocks.pop(); block; block = blocks.pop()) {
    at += block.copy(whole, at, 0, Math.min(block.length, bytes - at))
    yield
  }
  return whole
}
