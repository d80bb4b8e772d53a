import type { WebSocket } from 'ws'

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
