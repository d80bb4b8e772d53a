import type { IncomingMessage, ServerResponse } from 'node:http'

/** Requests that are begun in one turn of the event loop. */
const PER_TURN = 8
/** Requests that wait for a later turn at most. */
const WAITING_MAX = 1_000

/** What answers a request. */
type Handler = (req: IncomingMessage, res: ServerResponse) => void

/**
 * Requests that come together, begun a few in each turn of the event loop, in the order in which they came.
 *
 * Node gives all that have come at once. Begun in one turn, 64 calls would hold up the tokens of running streams for as long as
 * all of them take together, and each would find the data of the 63 others in the processor's caches: a call then costs a quarter more
 * (docs/benchmarks.md). Beyond a thousand that wait they are begun at once, as Node gives them: one connection may carry any number,
 * and is read no further only while its answers are not taken.
 */
export class Arrivals {
  readonly #handler: Handler
  readonly #waiting: { readonly req: IncomingMessage; readonly res: ServerResponse }[] = []
  #begun = 0
  #isTurning = false

  constructor(handler: Handler) {
    this.#handler = handler
  }

  /** Begins a request now, or in one of the next turns. */
  add(req: IncomingMessage, res: ServerResponse): void {
    this.#turnLater()
    if (this.#begun++ < PER_TURN || this.#waiting.length >= WAITING_MAX) this.#handler(req, res)
    else this.#waiting.push({ req, res })
  }

  #turnLater(): void {
    if (this.#isTurning) return
    this.#isTurning = true
    setImmediate(() => this.#turn())
  }

  #turn(): void {
    this.#isTurning = false
    const next = this.#waiting.splice(0, PER_TURN)
    // Nobody goes ahead of those that wait.
    this.#begun = this.#waiting.length > 0 ? PER_TURN : next.length
    if (next.length > 0) this.#turnLater()
    // Of some the caller has left meanwhile.
    for (const { req, res } of next) if (!res.destroyed) this.#handler(req, res)
  }
}
