/** Length of the mask, which every client frame has. */
const MASK_BYTES = 4
/** First opcode of control frames, which may occur between the fragments of a message. */
const CONTROL = 8

/**
 * Parses the frame headers in a client's byte stream (RFC 6455 §5.2), to determine whether `ws` holds an incomplete
 * frame or message. `ws` does not expose that. Protocol violations are ignored here, because `ws` closes the
 * connection.
 */
export class WireFrames {
  readonly #head = Buffer.alloc(2 + 8 + MASK_BYTES)
  #headBytes = 0
  /** Remaining payload of the current frame; undefined while its header is incomplete. */
  #payloadLeft: number | undefined
  #isMidMessage = false
  /** Frames begun since no frame or message was open. */
  begun = 0

  /** Whether no frame and no message is open. */
  get isClear(): boolean {
    return this.#headBytes === 0 && !this.#isMidMessage
  }

  /** @returns whether no frame was open at some point of these bytes, including their start */
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

  /** @returns the number of bytes consumed: one */
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

  /** @returns the number of available bytes that belong to the payload */
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
