import { abortable } from '#shared/abortable.ts'

/** For so long after a call its caller may make more of them. */
const CALLS_MS = 10_000
/** A line that is taken within this time holds up nobody, in milliseconds. */
const FREE_RUN_MS = 2
/** What takes longer is followed by so many times as long without another line. */
const RESTS = 2
/** Longest time without a line. */
const REST_MS_MAX = 500

/**
 * Holds back the lines of batches while calls are answered (docs/design.md, Batches).
 *
 * All that a batch costs, in every process, follows from how fast its lines become jobs. How long one of these takes tells how busy
 * the store and this process are: what is more than it takes when nothing else is done is time that calls wait, too.
 */
export class BatchThrottle {
  #calledAtMs = Number.NEGATIVE_INFINITY
  #nextAtMs = 0

  /** A call was taken. */
  noteCall(): void {
    this.#calledAtMs = performance.now()
  }

  /** Makes a job of a line, when it is time for one. @throws What `submit` throws; the signal's reason */
  async line<T>(submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (let waitMs = this.#waitMs; waitMs > 0; waitMs = this.#waitMs) {
      await abortable(new Promise((resolve) => setTimeout(resolve, waitMs)), signal)
    }
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      this.#rest(performance.now() - startedAt)
    }
  }

  get #waitMs(): number {
    const now = performance.now()
    return now - this.#calledAtMs > CALLS_MS ? 0 : Math.ceil(this.#nextAtMs - now)
  }

  #rest(tookMs: number): void {
    const now = performance.now()
    const restMs = RESTS * Math.max(0, tookMs - FREE_RUN_MS)
    this.#nextAtMs = Math.min(now + REST_MS_MAX, Math.max(now, this.#nextAtMs) + restMs)
  }
}
