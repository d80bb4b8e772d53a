/** A mask, which every frame of a client has. */
const MASK_BYTES = 4
/** Opcodes from here on are those of control frames, which may come between the fragments of a message. */
const CONTROL = 8

/**
 * Follows the frames of a client in the bytes as they come (RFC 6455 §5.2), to know what `ws` does not tell: whether it
 * keeps anything of them. What breaks the protocol is not its concern, since `ws` closes the connection for it.
 */
export class WireFrames {
  readonly #head = Buffer.alloc(2 + 8 + MASK_BYTES)
  #headBytes = 0
  /** Of the frame whose head is whole; undefined while there is none. */
  #payloadLeft: number | undefined
  #isMidMessage = false
  /** Frames begun since nothing was open. */
  begun = 0

  /** Whether nothing is open, neither a frame nor a message. */
  get isClear(): boolean {
    return this.#headBytes === 0 && !this.#isMidMessage
  }

  /** @returns Whether nothing was open at some point of these bytes, their beginning included */
  see(chunk: Buffer): boolean {
    let wasClear = this.isClear
    for (let at = 0; at < chunk.length; ) {
      at += this.#payloadLeft === undefined ? this.#readHead(chunk, at) : this.#skip(chunk.length - at)
      if (this.#payloadLeft !== 0) continue
      this.#endFrame()
      if (!this.isClear) continue
      wasClear = true
      this.begun = 0
    }
    return wasClear
  }

  /** @returns How many bytes it took: one */
  #readHead(chunk: Buffer, at: number): number {
    this.#head[this.#headBytes++] = chunk[at] ?? 0
    if (this.#headBytes === this.#headLength()) {
      this.#payloadLeft = this.#payloadLength()
      this.begun++
    }
    return 1
  }

  #headLength(): number {
    if (this.#headBytes < 2) return 2
    const length = this.#head.readUInt8(1) & 0x7f
    return 2 + (length === 127 ? 8 : length === 126 ? 2 : 0) + MASK_BYTES
  }

  #payloadLength(): number {
    const length = this.#head.readUInt8(1) & 0x7f
    if (length === 127) return Number(this.#head.readBigUInt64BE(2))
    return length === 126 ? this.#head.readUInt16BE(2) : length
  }

  /** @returns How many of the bytes that are there belong to the payload */
  #skip(there: number): number {
    const left = this.#payloadLeft ?? 0
    const skipped = Math.min(left, there)
    this.#payloadLeft = left - skipped
    return skipped
  }

  #endFrame(): void {
    const first = this.#head.readUInt8(0)
    if ((first & 0x0f) < CONTROL) this.#isMidMessage = (first & 0x80) === 0
    this.#headBytes = 0
    this.#payloadLeft = undefined
  }
}
