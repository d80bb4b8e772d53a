import type { Socket } from 'node:net'
import type { WebSocket } from 'ws'
import { type ByteBudget, HELD_PER_BYTE, type HeldBytes } from '#shared/byte-budget.ts'
import { ServiceError } from '#shared/error.ts'

/** Length of the mask, which every client frame has. */
const MASK_BYTES = 4

/** First opcode of control frames, which may occur between the fragments of a message. */
const CONTROL = 8

/** Overhead of `ws` per piece read from the socket and per fragment, in bytes. */
const PIECE_BYTES = 256
/** Memory of a message up to which it is not counted. Most messages arrive in one piece. */
const FREE_BYTES = 48 * 1024
/** Bytes of earlier messages that one read may contain in addition to the largest message. */
const READ_BYTES = 128 * 1024

/** Connection to watch, and the limits of its messages. */
export interface PartialOptions {
  readonly ws: WebSocket
  readonly socket: Socket
  readonly budget: ByteBudget
  readonly keyId: string
  readonly messageBytesMax: number
  /** Called if the message exceeds a limit. The message is then dropped, and the callback must close the connection. */
  readonly onTooMuch: () => void
}

/**
 * Counts the memory of an incomplete message against the budget.
 *
 * `ws` delivers only complete messages and buffers up to the maximum size until then. A piece read from the socket
 * stays in memory as a whole if any of its bytes is still needed. So all pieces since the last moment without an open
 * frame count. Complete control frames between messages are freed at once and do not count. Otherwise, a client that
 * only answers pings would use up its budget. Control frames within a message may keep a piece alive.
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
    // Assumes pieces of at least 256 bytes on average; smaller ones indicate an attack.
    this.#bytesMax = (options.messageBytesMax + READ_BYTES) * (HELD_PER_BYTE + 1)
    this.#held = this.#open()
    options.socket.on('data', this.#onData)
    options.socket.once('close', () => this.#held.release())
  }

  /**
   * Transfers the reservation of a completed message.
   *
   * @returns the reservation, which the reader must release
   */
  take(): HeldBytes {
    const held = this.#held
    this.#held = this.#open()
    return held
  }

  /**
   * Drops the incomplete message and discards further bytes. Reading must continue: closing a socket with unread bytes
   * resets it, and the client would not receive the close frame. Call once the close frame is written.
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

  /** `ws` has processed the piece already, because its listener was registered first. */
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

  /** @throws ServiceError `overloaded`; the maximum applies even if the budget has space */
  #count(): void {
    const bytes = this.#bytes * HELD_PER_BYTE + (this.#pieces + this.#frames.begun) * PIECE_BYTES
    if (bytes > this.#bytesMax)
      throw new ServiceError('overloaded', 'The message needs more memory than the maximum per message.')
    this.#held.hold(bytes > FREE_BYTES ? bytes : 0)
  }
}

/** Clears the buffers of `ws` through its internals. There is no API for it, and a client may delay the close. */
function forgetUnfinished(ws: WebSocket): void {
  const { _receiver: receiver } = ws as unknown as { _receiver?: object }
  if (receiver) Object.assign(receiver, { _buffers: [], _bufferedBytes: 0, _fragments: [] })
}

/**
 * Parses the frame headers in a client's byte stream (RFC 6455 §5.2), to determine whether `ws` holds an incomplete
 * frame or message. `ws` does not expose that. Protocol violations are ignored here, because `ws` closes the
 * connection.
 */
class WireFrames {
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
