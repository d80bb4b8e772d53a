/** Lets so many in at once; the others wait in the order in which they came. Their number is bounded by who calls. */
export class Turns {
  readonly #max: number
  readonly #waiting: Array<() => void> = []
  #taken = 0

  constructor(max: number) {
    this.#max = max
  }

  /** How many are in. */
  get taken(): number {
    return this.#taken
  }

  /** Waits for a turn; give it back with `release`, once. @throws the signal's reason when it aborts first */
  async take(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (this.#taken < this.#max) {
      this.#taken += 1
      return
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const leave = () => {
      this.#waiting.splice(this.#waiting.indexOf(resolve), 1)
      reject(signal.reason)
    }
    this.#waiting.push(resolve)
    signal.addEventListener('abort', leave, { once: true })
    await promise
    signal.removeEventListener('abort', leave)
  }

  /** Hands the turn to who has waited longest. */
  release(): void {
    const next = this.#waiting.shift()
    if (next) next()
    else this.#taken -= 1
  }
}
