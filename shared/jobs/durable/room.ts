import { ServiceError } from '#shared/error.ts'
import type { StoreView } from '#shared/store/store.ts'

/** How old the count of jobs may be that new ones are admitted by: counting asks the store. */
const COUNT_AGE_MS = 1_000

/** Whether there is room for one more durable job, asked before anything is kept of it. */
export class JobsRoom {
  readonly #store: StoreView
  readonly #jobsMax: number
  #countedAtMs = 0
  #count = 0

  /** @param jobsMax Jobs that may wait and run at once, of all processes. */
  constructor(store: StoreView, jobsMax: number) {
    this.#store = store
    this.#jobsMax = jobsMax
  }

  /** @throws ServiceError `overloaded` while the store is down or too many jobs are under way */
  async require(): Promise<void> {
    if (!this.#store.isReachable) {
      const message = 'The job store cannot be reached now.'
      throw new ServiceError('overloaded', message, { retryAfterMs: 2_000, isUndone: true })
    }
    if (Date.now() - this.#countedAtMs > COUNT_AGE_MS) {
      // Others are admitted by the last count meanwhile.
      this.#countedAtMs = Date.now()
      const depth = await this.#store.depth()
      this.#count = depth.reduce((sum, { count }) => sum + count, 0)
    }
    if (this.#count < this.#jobsMax) return
    const message = 'Too many jobs are under way. Try again later.'
    throw new ServiceError('overloaded', message, { retryAfterMs: 10_000, isUndone: true })
  }

  /** A job was accepted: it counts from now on. */
  taken(): void {
    this.#count++
  }
}
