import type { WebSocket } from 'ws'
import type { SocketBounds } from './bounds.ts'

/**
 * Send queue of one connection, with backpressure.
 *
 * Output of requests and replies to client frames have separate limits. Output is taken only while the buffer has
 * space, so that a slow client pauses its workers. Replies cannot wait. At their limit, no more frames are read from
 * the client.
 */
export class Outbox {
  readonly #ws: WebSocket
  readonly #bounds: SocketBounds
  readonly #pause: ReadPause
  readonly #onStalled: () => void
  readonly #waiting = new Set<() => void>()
  #replies = 0
  #stall: NodeJS.Timeout | undefined

  /** @param onStalled Called if the client reads nothing for `drainMs` */
  constructor(ws: WebSocket, bounds: SocketBounds, pause: ReadPause, onStalled: () => void) {
    this.#ws = ws
    this.#bounds = bounds
    this.#pause = pause
    this.#onStalled = onStalled
  }

  get isFull(): boolean {
    return this.#ws.bufferedAmount > this.#bounds.bufferedBytesMax
  }

  /** Sends output of a request, after {@link waitForSpace} has resolved. Has no effect on a closing connection. */
  send(text: string): void {
    this.#send(text, () => this.#onFlushed())
  }

  reply(text: string): void {
    if (!this.#isOpen) return
    if (++this.#replies > this.#bounds.repliesMax) this.#pause.begin('replies')
    this.#send(text, () => {
      // Reading resumes at half the limit. Otherwise it would pause and resume with every frame.
      if (--this.#replies <= this.#bounds.repliesMax / 2) this.#pause.end('replies')
      this.#onFlushed()
    })
  }

  /** Resolves when output can be sent, when `signal` aborts, or when the connection closes. */
  async waitForSpace(signal: AbortSignal): Promise<void> {
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

  /** Resolves all waits, because the connection is closing. */
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

  /** A written frame shows that the client reads, so the stall timer restarts. */
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

type PauseReason = 'replies' | 'reading'

/** Pauses reading from a connection while at least one reason applies. Each reason begins and ends separately. */
export class ReadPause {
  readonly #ws: WebSocket
  readonly #reasons = new Set<PauseReason>()
  #isOver = false

  constructor(ws: WebSocket) {
    this.#ws = ws
  }

  begin(reason: PauseReason): void {
    if (this.#isOver) return
    this.#reasons.add(reason)
    this.#ws.pause()
  }

  end(reason: PauseReason): void {
    if (this.#reasons.delete(reason) && this.#reasons.size === 0) this.#ws.resume()
  }

  /**
   * Resumes reading permanently, because the connection is closing. Otherwise the close frame of the client would not
   * be read.
   */
  stop(): void {
    this.#isOver = true
    this.#reasons.clear()
    this.#ws.resume()
  }
}
