import type { Socket } from 'node:net'
import type { WebSocket } from 'ws'
import { type ByteBudget, HELD_PER_BYTE, type HeldBytes } from '#shared/capacity/byte-budgets.ts'
import { ServiceError } from '#shared/lib/error.ts'

const MASK_BYTES = 4

/** Minimum opcode of control frames, which may occur between the fragments of a message. */
const CONTROL_OPCODE_MIN = 8

/** Memory overhead of `ws`, in bytes, for each piece read from the socket and for each fragment of a message. */
const PIECE_BYTES = 256
/**
 * Maximum bytes of an incomplete message that are not charged to BODY_BUDGET_BYTES. Most messages arrive in one piece and stay in memory only
 * briefly, so charging them is not worth the cost.
 */
const UNCHARGED_BYTES_MAX = 48 * 1024
/**
 * Maximum bytes of earlier messages in one read of the socket. These bytes are counted with the next message, so its
 * limit is increased by this number.
 */
const READ_BYTES = 128 * 1024

export interface PartialOptions {
  readonly ws: WebSocket
  readonly socket: Socket
  readonly budget: ByteBudget
  readonly keyId: string
  readonly messageBytesMax: number
  /** Called if a message exceeds a limit. The message is then dropped, and the callback must close the connection. */
  readonly onTooMuch: () => void
}

/**
 * Charges the memory of an incomplete message to the body budget.
 *
 * The library `ws` buffers a message until it is complete. A piece read from the socket stays in memory as a whole
 * while one of its bytes is needed. The count therefore contains every piece since the last moment at
 * which all received frames and messages were complete.
 *
 * Complete control frames between messages are freed at once and not counted. Otherwise a client that only answers
 * pings would use up its budget. A control frame within a message may keep a piece in memory, so such a frame is
 * counted.
 */
export class PartialMessage {
  readonly #options: PartialOptions
  readonly #bytesMax: number
  readonly #frames = new WireFrames()
  readonly #onData = (chunk: Buffer) => this.#onPiece(chunk)
  #held: HeldBytes
  #bytes = 0
  #pieces = 0

  constructor(options: PartialOptions) {
    this.#options = options
    // The maximum includes memory for pieces of 256 bytes on average. A client that sends smaller pieces reaches the maximum before its message is
    // complete, and is disconnected.
    this.#bytesMax = (options.messageBytesMax + READ_BYTES) * (HELD_PER_BYTE + 1)
    this.#held = this.#open()
    options.socket.on('data', this.#onData)
    options.socket.once('close', () => this.#held.release())
  }

  /**
   * Returns the reservation of a completed message, and starts a new reservation for the next message.
   *
   * @returns The reservation, which the caller must release
   */
  take(): HeldBytes {
    const held = this.#held
    this.#held = this.#open()
    return held
  }

  /**
   * Drops the incomplete message and discards further bytes. Must be called when the close frame is written.
   *
   * Reading continues afterwards. If a socket is closed while it has unread bytes, then the operating system resets the
   * connection. The client would then not receive the close frame.
   */
  drop(): void {
    const { ws, socket } = this.#options
    this.#held.release()
    socket.removeAllListeners('data')
    forgetUnfinished(ws)
    socket.resume()
  }

  #open(): HeldBytes {
    const { budget, keyId } = this.#options
    return budget.open(keyId)
  }

  /** Counts a received piece. `ws` has already processed the piece, because its listener was registered earlier. */
  #onPiece(chunk: Buffer): void {
    if (this.#frames.see(chunk)) this.#bytes = this.#pieces = 0
    if (this.#frames.isClear) return this.#held.release()
    this.#bytes += chunk.length
    this.#pieces++
    try {
      this.#count()
    } catch {
      this.#options.onTooMuch()
      this.drop()
    }
  }

  #count(): void {
    const bytes = this.#bytes * HELD_PER_BYTE + (this.#pieces + this.#frames.begun) * PIECE_BYTES
    if (bytes > this.#bytesMax)
      throw new ServiceError(
        'overloaded',
        'The message needs more than the maximum memory for one message. Send a smaller message in fewer frames.',
        {
          reason: 'memory',
        },
      )
    this.#held.hold(bytes > UNCHARGED_BYTES_MAX ? bytes : 0)
  }
}

/**
 * Empties the buffers of `ws`. Otherwise the buffers would stay in memory until the close, which a client may delay. Internal fields are
 * set, because the API of `ws` has no method for this.
 */
function forgetUnfinished(ws: WebSocket): void {
  const { _receiver: receiver } = ws as unknown as { _receiver?: object }
  if (receiver) Object.assign(receiver, { _buffers: [], _bufferedBytes: 0, _fragments: [] })
}

/**
 * Parses the frame headers in the bytes that a client sends (RFC 6455 §5.2), to detect whether `ws` holds an incomplete
 * frame or message. Protocol violations are ignored here, because `ws` closes the connection.
 */
class WireFrames {
  readonly #head = Buffer.alloc(2 + 8 + MASK_BYTES)
  #headBytes = 0
  #payloadLeft: number | undefined
  #isMidMessage = false
  /** Number of frames that began since the last moment at which all received frames and messages were complete. */
  begun = 0

  get isClear(): boolean {
    return this.#headBytes === 0 && !this.#isMidMessage
  }

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

  #skip(there: number): number {
    const left = this.#payloadLeft ?? 0
    const skipped = Math.min(left, there)
    this.#payloadLeft = left - skipped
    return skipped
  }

  #endFrame(): void {
    const first = this.#head.readUInt8(0)
    if ((first & 0x0f) < CONTROL_OPCODE_MIN) this.#isMidMessage = (first & 0x80) === 0
    this.#headBytes = 0
    this.#payloadLeft = undefined
  }
}
