import type { Socket } from 'node:net'
import type { WebSocket } from 'ws'
import { type ByteBudget, HELD_PER_BYTE, type HeldBytes } from '#shared/byte-budget.ts'
import { ServiceError } from '#shared/error.ts'
import { WireFrames } from './wire.ts'

/** What `ws` keeps beside the bytes of each piece that was read from the socket, and of each fragment. */
const PIECE_BYTES = 256
/** Memory of a message up to which it is not counted: most are whole when they come. */
const FREE_BYTES = 48 * 1024
/** What may be read at once beside the largest message: the end of what came before it. */
const READ_BYTES = 128 * 1024

/** Whose unfinished messages are counted, and how large one may be. */
export interface PartialOptions {
  readonly ws: WebSocket
  readonly socket: Socket
  readonly budget: ByteBudget
  readonly keyId: string
  readonly messageBytesMax: number
  /** It may not grow any more, and is dropped: the connection must be closed, which is done here. */
  readonly onTooMuch: () => void
}

/**
 * What a connection holds of a message that is not whole yet.
 *
 * `ws` gives whole messages only and keeps what there is until then, up to the size of the largest. A piece that was read
 * from the socket is kept as a whole if anything of it is, so all pieces count since nothing was open. Control frames
 * between messages are gone as soon as they are whole and count for nothing, or a client that only answers pings would
 * use up the memory; those within a message may keep a piece alive.
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
    // Pieces of 256 bytes on average: smaller ones are no message but an attack.
    this.#bytesMax = (options.messageBytesMax + READ_BYTES) * (HELD_PER_BYTE + 1)
    this.#held = this.#open()
    options.socket.on('data', this.#onData)
    options.socket.once('close', () => this.#held.release())
  }

  /** A message is whole. @returns What is held for it, which is its reader's from here on */
  take(): HeldBytes {
    const held = this.#held
    this.#held = this.#open()
    return held
  }

  /**
   * Forgets what there is of a message, and reads what still comes only to throw it away: a socket with unread bytes would be
   * reset, and its client not see the close frame. To be called once that is written.
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

  /** `ws` has seen it already: its listener was there first. */
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

  /** @throws ServiceError `overloaded`; also for who is alone, whose share has no other bound */
  #count(): void {
    const bytes = this.#bytes * HELD_PER_BYTE + (this.#pieces + this.#frames.begun) * PIECE_BYTES
    if (bytes > this.#bytesMax) throw new ServiceError('overloaded', 'The message takes more memory than any may.')
    this.#held.hold(bytes > FREE_BYTES ? bytes : 0)
  }
}

/** `ws` has no way to let go of an unfinished message before its socket is closed: that takes as long as its client likes. */
function forgetUnfinished(ws: WebSocket): void {
  const { _receiver: receiver } = ws as unknown as { _receiver?: object }
  if (receiver) Object.assign(receiver, { _buffers: [], _bufferedBytes: 0, _fragments: [] })
}
