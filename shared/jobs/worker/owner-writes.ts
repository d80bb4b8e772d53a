/*
 * Writes of one attempt of a durable job to the store. The writes are sequential and numbered (`chunk`).
 *
 * Commit before publish: an event is published only after the store has committed it, so no subscriber sees an event that a crash could undo.
 *
 * If the store is unreachable, then the write is retried with an unchanged number. By this number, the store detects a repeated write whose response
 * was lost. Example: write 3 commits, but its response is lost. The repeated write 3 adds no second event.
 *
 * If the store rejects a write, then the claim of this worker has ended, and another worker may run the job. The attempt stops, and its later writes
 * have no effect.
 */

import type { Dispatcher, Family } from '#shared/jobs/durable/dispatch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { HeldAttempt, TransitionResult } from '#shared/store/store.ts'

/** Time in ms for which the event of a claim waits for the first write. All events of a short job are then published in one record. */
const PUBLISH_DELAY_MS = 20
const REWRITE_MS = { min: 100, max: 2_000 }

export type OwnerWrite = (run: HeldAttempt) => Promise<TransitionResult | undefined>

export interface OwnerWritesOptions {
  readonly dispatcher: Dispatcher
  readonly family: Family
  readonly log: Log
  readonly signal: AbortSignal
}

export class OwnerWrites {
  readonly #run: Omit<HeldAttempt, 'chunk'>
  readonly #options: OwnerWritesOptions
  readonly #onLost: () => void
  readonly #lost = new AbortController()
  #unpublished: TransitionResult | undefined
  #timer: NodeJS.Timeout | undefined
  #last: Promise<unknown> = Promise.resolve()
  #count = 0
  #writeMs = 0

  constructor(run: Omit<HeldAttempt, 'chunk'>, options: OwnerWritesOptions, onLost: () => void) {
    this.#run = run
    this.#options = options
    this.#onLost = onLost
  }

  /** Publishes the claim together with the first write, or after 20 ms if no write follows. Called at most once, before any write. */
  publishSoon(claimed: TransitionResult): void {
    this.#unpublished = claimed
    this.#timer = setTimeout(() => this.#publish(), PUBLISH_DELAY_MS)
  }

  get count(): number {
    return this.#count
  }

  get writeMs(): number {
    return this.#writeMs
  }

  get isLost(): boolean {
    return this.#lost.signal.aborted
  }

  /**
   * Writes after all earlier writes. Returns undefined if the claim of this worker has ended, or if there was nothing to write.
   *
   * @param prepare Called when all earlier writes are done. Returns undefined if there is nothing to write
   * @param result The result of the job, for callers that wait for its end
   */
  write(prepare: () => OwnerWrite | undefined, result?: unknown): Promise<TransitionResult | undefined> {
    const written = this.#last.then(() => this.#writeNext(prepare, result))
    this.#last = written.catch(() => {
      // The caller receives this error. The error is ignored here, so that later writes continue.
    })
    return written
  }

  /**
   * Runs an operation of the store. During an outage, the operation is repeated until the store responds or the process exits.
   *
   * @returns Undefined if the claim of this worker has ended
   * @throws The last error of the operation
   */
  async persist<T>(ask: () => Promise<T>): Promise<T | undefined> {
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

  /** Called when the claim of this worker has ended. Stops the attempt and all later writes. A second call has no effect. */
  lose(): void {
    if (this.isLost) return
    this.#lost.abort()
    this.#onLost()
  }

  async #writeNext(prepare: () => OwnerWrite | undefined, result: unknown): Promise<TransitionResult | undefined> {
    const write = this.isLost ? undefined : prepare()
    if (!write) return undefined
    const run = { ...this.#run, chunk: this.#count }
    const moved = await this.persist(() => write(run))
    if (moved) {
      this.#count++
      this.#publish(moved, result)
      void this.#options.family.onMoved(moved.job)
      return moved
    }
    if (this.isLost) return undefined
    this.#options.log.info({ job_id: run.id, attempt: run.attempt }, 'worker no longer owns the job; its attempt stops')
    this.lose()
    return undefined
  }

  #publish(moved?: TransitionResult, result?: unknown): void {
    clearTimeout(this.#timer)
    const [first, last] = [this.#unpublished ?? moved, moved ?? this.#unpublished]
    this.#unpublished = undefined
    if (!first || !last) return
    const events = first === last ? last.events : [...first.events, ...last.events]
    this.#options.dispatcher.publishMoved({ job: last.job, events }, result)
  }
}

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
