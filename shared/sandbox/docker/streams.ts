const PART_BYTES_MAX = 16 * 1024 * 1024
const HEADER_BYTES = 8
const STDERR = 2

/**
 * Splits the attached stream of a container without a terminal into stdout and stderr.
 *
 * Grammar (Docker Engine API, ContainerAttach): one byte of stream type, three zeros, four bytes of big-endian length, data.
 *
 * This replaces docker-modem's `demuxStream`, which recurses for each part. A program that writes byte by byte would overflow the stack of
 * the worker.
 *
 * @param onPart Called with each piece; one part may arrive in several pieces
 */
export class AttachedStreams {
  readonly #onPart: (stream: 'stdout' | 'stderr', bytes: Buffer) => void
  #header = Buffer.alloc(0)
  #left = 0
  #stream: 'stdout' | 'stderr' = 'stdout'

  constructor(onPart: (stream: 'stdout' | 'stderr', bytes: Buffer) => void) {
    this.#onPart = onPart
  }

  take(chunk: Buffer): void {
    for (let rest = chunk; rest.length > 0; ) {
      if (this.#left === 0) {
        rest = this.#takeHeader(rest)
        continue
      }
      const part = rest.subarray(0, this.#left)
      this.#left -= part.length
      rest = rest.subarray(part.length)
      this.#onPart(this.#stream, part)
    }
  }

  #takeHeader(bytes: Buffer): Buffer {
    const missing = HEADER_BYTES - this.#header.length
    const header = Buffer.concat([this.#header, bytes.subarray(0, missing)])
    this.#header = header
    if (header.length === HEADER_BYTES) {
      const type = header.readUInt8(0)
      this.#left = header.readUInt32BE(4)
      if (type > STDERR || this.#left > PART_BYTES_MAX) throw new Error("The container's output has no stream headers.")
      this.#stream = type === STDERR ? 'stderr' : 'stdout'
      this.#header = Buffer.alloc(0)
    }
    return bytes.subarray(missing)
  }
}
