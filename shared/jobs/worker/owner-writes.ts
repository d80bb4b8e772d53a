import { ServiceError } from '#shared/error.ts'
import type { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import type { Family } from '#shared/jobs/durable/family.ts'
import type { Log } from '#shared/log/log.ts'
import type { HeldAttempt, Moved } from '#shared/store/store.ts'

/** How long the event of a claim waits for the first write, to be told with it: of a short job everything is told at once. */
const TOLD_WITH_MS = 20
/** Wait before a write that the store could not take is made again. */
const REWRITE_MS = { min: 100, max: 2_000 }

/** A write of the owner, under its number. */
export type OwnerWrite = (run: HeldAttempt) => Promise<Moved | undefined>

/** What {@link OwnerWrites} need. */
export interface OwnerWritesOptions {
  readonly dispatcher: Dispatcher
  readonly family: Family
  readonly log: Log
  /** Aborts when the process gives up on what it still has to write. */
  readonly signal: AbortSignal
}

/**
 * The writes of one attempt of a durable job: one after the other, each numbered.
 *
 * Commit before you speak: events are published once the store has them. While the store cannot be reached the same write
 * is made again until it can. When a guard refuses, the job is no longer ours.
 */
export class OwnerWrites {
  readonly #run: Omit<HeldAttempt, 'chunk'>
  readonly #options: OwnerWritesOptions
  readonly #onLost: () => void
  readonly #lost = new AbortController()
  #untold: Moved | undefined
  #timer: NodeJS.Timeout | undefined
  #last: Promise<unknown> = Promise.resolve()
  #count = 0
  #writeMs = 0

  constructor(run: Omit<HeldAttempt, 'chunk'>, options: OwnerWritesOptions, onLost: () => void) {
    this.#run = run
    this.#options = options
    this.#onLost = onLost
  }

  /** Tells of the claim with the first write, or a little later where none follows. Call it at most once, before any write. */
  tellSoon(claimed: Moved): void {
    this.#untold = claimed
    this.#timer = setTimeout(() => this.#tell(), TOLD_WITH_MS)
  }

  /** Writes made so far. */
  get count(): number {
    return this.#count
  }

  /** How long the last one took. */
  get writeMs(): number {
    return this.#writeMs
  }

  get isLost(): boolean {
    return this.#lost.signal.aborted
  }

  /**
   * Writes when those before are written. Undefined when the job is no longer ours, or there was nothing to write.
   *
   * @param prepare Called in its turn, so that what waits goes in order; may find nothing to write.
   * @param result What it writes as the result of the job, for those who wait for that.
   */
  write(prepare: () => OwnerWrite | undefined, result?: unknown): Promise<Moved | undefined> {
    const written = this.#last.then(() => this.#writeNext(prepare, result))
    this.#last = written.catch(() => {
      // Its caller hears of it; the next one has its turn.
    })
    return written
  }

  /** Reads something as soon as the store can say. Undefined when the job is no longer ours. */
  async read<T>(ask: () => Promise<T>): Promise<T | undefined> {
    return await this.#persist(ask)
  }

  /** The job is no longer ours: a write that waits to be made again is given up. A second call does nothing. */
  lose(): void {
    if (this.isLost) return
    this.#lost.abort()
    this.#onLost()
  }

  async #writeNext(prepare: () => OwnerWrite | undefined, result: unknown): Promise<Moved | undefined> {
    const write = this.isLost ? undefined : prepare()
    if (!write) return undefined
    const run = { ...this.#run, chunk: this.#count }
    const moved = await this.#persist(() => write(run))
    if (moved) {
      this.#count++
      this.#tell(moved, result)
      void this.#options.family.onMoved(moved.job)
      return moved
    }
    if (this.isLost) return undefined
    this.#options.log.info({ job_id: run.id, attempt: run.attempt }, 'job is no longer ours')
    this.lose()
    return undefined
  }

  #tell(moved?: Moved, result?: unknown): void {
    clearTimeout(this.#timer)
    const [first, last] = [this.#untold ?? moved, moved ?? this.#untold]
    this.#untold = undefined
    if (!first || !last) return
    const events = first === last ? last.events : [...first.events, ...last.events]
    this.#options.dispatcher.publishMoved({ job: last.job, events }, result)
  }

  /** Asks the store until it has answered. @throws What is not an outage, or when the process ends */
  async #persist<T>(ask: () => Promise<T>): Promise<T | undefined> {
    const { signal } = this.#options
    for (let waitMs = REWRITE_MS.min; ; waitMs = Math.min(waitMs * 2, REWRITE_MS.max)) {
      const startedAt = performance.now()
      try {
        const answer = await ask()
        this.#writeMs = performance.now() - startedAt
        return answer
      } catch (error) {
        if (ServiceError.from(error).code !== 'overloaded' || signal.aborted) throw error
      }
      await delay(waitMs, AbortSignal.any([signal, this.#lost.signal]))
      if (this.isLost) return undefined
    }
  }
}

/** Resolves after a time, or when `signal` aborts. */
export function delay(ms: number, signal: AbortSignal): Promise<void> {
  if (ms <= 0 || signal.aborted) return Promise.resolve()
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done, { once: true })
  })
}
