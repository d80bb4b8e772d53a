import type { Socket } from 'node:net'
import { type ByteBudget, HELD_PER_BYTE, type HeldBytes } from '#shared/byte-budget.ts'

/** What `ws` keeps beside the bytes of each piece that was read from the socket. */
const PIECE_BYTES = 256
/** Bytes of a message up to which it is not counted: most are whole when they come. */
const FREE_BYTES = 16 * 1024

/**
 * What a connection holds of a message that is not whole yet.
 *
 * `ws` gives whole messages only and keeps what there is until then, up to the size of the largest: what was read from the
 * socket since the last message is that, but for the end of a piece that began the next.
 */
export class PartialMessage {
  readonly #socket: Socket
  readonly #open: () => HeldBytes
  #held: HeldBytes
  #wholeAt = 0
  #pieces = 0

  /** @param onTooMuch It may not grow any more: the connection must be closed. */
  constructor(socket: Socket, budget: ByteBudget, keyId: string, onTooMuch: () => void) {
    this.#socket = socket
    this.#open = () => budget.open(keyId)
    this.#held = this.#open()
    this.#wholeAt = socket.bytesRead
    const onData = () => {
      try {
        this.#grow()
      } catch {
        socket.off('data', onData)
        onTooMuch()
      }
    }
    socket.on('data', onData)
    socket.once('close', () => this.#held.release())
  }

  /** A message is whole. @returns What is held for it, which is its reader's from here on */
  take(): HeldBytes {
    const held = this.#held
    this.#held = this.#open()
    this.#wholeAt = this.#socket.bytesRead
    this.#pieces = 0
    return held
  }

  #grow(): void {
    const bytes = this.#socket.bytesRead - this.#wholeAt
    this.#pieces++
    if (bytes > FREE_BYTES) this.#held.hold(bytes * HELD_PER_BYTE + this.#pieces * PIECE_BYTES)
  }
}
