import type { WebSocket } from 'ws'
import type { SocketBounds } from './bounds.ts'

/**
 * What waits to be read by the client of one connection.
 *
 * Two kinds of frames are held to two bounds. Output of requests is taken only while there is room, so a client that reads
 * slowly pauses its workers. Replies to what the client sends cannot wait, so at their bound nothing more is read from it.
 */
export class Outbox {
  readonly #ws: WebSocket
  readonly #bounds: SocketBounds
  readonly #pause: ReadPause
  readonly #onStalled: () => void
  readonly #waiting = new Set<() => void>()
  #replies = 0
  #stall: NodeJS.Timeout | undefined

  /** @param onStalled The client took nothing for too long. */
  constructor(ws: WebSocket, bounds: SocketBounds, pause: ReadPause, onStalled: () => void) {
    this.#ws = ws
    this.#bounds = bounds
    this.#pause = pause
    this.#onStalled = onStalled
  }

  /** Whether nothing more should be taken from requests. */
  get isFull(): boolean {
    return this.#ws.bufferedAmount > this.#bounds.bufferedBytesMax
  }

  /** Sends output of a request; wait for {@link room} before. Nothing once the connection is closing. */
  send(text: string): void {
    this.#send(text, () => this.#onFlushed())
  }

  /** Sends what answers a frame of the client. */
  reply(text: string): void {
    if (!this.#isOpen) return
    if (++this.#replies > this.#bounds.repliesMax) this.#pause.begin('replies')
    this.#send(text, () => {
      // Half the bound, or reading would stop and go with every frame.
      if (--this.#replies <= this.#bounds.repliesMax / 2) this.#pause.end('replies')
      this.#onFlushed()
    })
  }

  /** Resolves when there is room for output, or `signal` aborts, or the connection is closed. */
  async room(signal: AbortSignal): Promise<void> {
    while (this.isFull && this.#isOpen && !signal.aborted) {
      const { promise, resolve } = Promise.withResolvers<void>()
      const wake = () => resolve()
      this.#waiting.add(wake)
      signal.addEventListener('abort', wake)
      await promise
      signal.removeEventListener('abort', wake)
      this.#waiting.delete(wake)
    }
  }

  /** Lets go of those who wait; the connection is closing. */
  close(): void {
    clearTimeout(this.#stall)
    this.#wake()
  }

  get #isOpen(): boolean {
    return this.#ws.readyState === this.#ws.OPEN
  }

  #send(text: string, onFlushed: () => void): void {
    if (!this.#isOpen) return
    this.#ws.send(text, onFlushed)
    if (this.isFull) this.#stall ??= setTimeout(this.#onStalled, this.#bounds.drainMs)
  }

  /** The kernel took a frame: the client reads, if slowly. */
  #onFlushed(): void {
    if (this.isFull) return void this.#stall?.refresh()
    clearTimeout(this.#stall)
    this.#stall = undefined
    this.#wake()
  }

  #wake(): void {
    for (const wake of this.#waiting) wake()
  }
}

/** Why nothing is read from a client for a while. */
type PauseReason = 'replies' | 'reading'

/** Whether a connection is read: as long as nobody has a reason not to. Who ends a pause leaves those of others alone. */
export class ReadPause {
  readonly #ws: WebSocket
  readonly #reasons = new Set<PauseReason>()
  #isOver = false

  constructor(ws: WebSocket) {
    this.#ws = ws
  }

  /** Has an effect once, until the pause for this reason is ended. */
  begin(reason: PauseReason): void {
    if (this.#isOver) return
    this.#reasons.add(reason)
    this.#ws.pause()
  }

  end(reason: PauseReason): void {
    if (this.#reasons.delete(reason) && this.#reasons.size === 0) this.#ws.resume()
  }

  /** The connection is closing: from here on it is read, or the client's own close frame would never be. */
  stop(): void {
    this.#isOver = true
    this.#reasons.clear()
    this.#ws.resume()
  }
}
