import { setTimeout as delay } from 'node:timers/promises'
import type { Broker, Delivery } from '#shared/broker/broker.ts'
import type { ForeignJob } from '#shared/jobs/records.ts'
import { SkippedLog } from '#shared/jobs/skipped.ts'
import type { Log } from '#shared/log/log.ts'

/** How long a job that this worker does not know is passed on, from when it was first seen here. */
const PASS_ON_MS = 5_000
/** How long it is kept before it goes back: one that only old workers could take must not run in circles. */
const KEEP_MS = { base: 150, spread: 200 }
/** Jobs whose first sight is remembered; the oldest are forgotten first. */
const SEEN_MAX = 1_000

/** What {@link ForeignJobs} needs. */
export interface ForeignOptions {
  readonly broker: Broker
  readonly log: Log
  /** Aborts when the worker drains: then jobs go back at once. */
  readonly signal: AbortSignal
  /** Default: 5 s. */
  readonly passOnMs?: number | undefined
}

/**
 * Jobs that this worker cannot run and another one may: while a fleet is upgraded, a newer ingress sends kinds of job, or
 * forms of them, that only newer workers know.
 *
 * Such a record goes to the end of its queue, as it came, for whoever takes it next, until this worker has seen the job for a
 * few seconds. It is put there anew rather than released: a share group drops a record without a word that was released too
 * often, and a classic group gives it to the same worker again.
 */
export class ForeignJobs {
  readonly #options: ForeignOptions
  readonly #skipped: SkippedLog
  readonly #seen = new Map<string, number>()

  constructor(options: ForeignOptions) {
    this.#options = options
    this.#skipped = new SkippedLog(options.log)
  }

  /**
   * Passes a job on, once.
   *
   * @returns False when it has gone round for long enough: nobody who knows it seems to be there. The delivery is the caller's.
   */
  async passOn(queue: string, delivery: Delivery, job: ForeignJob): Promise<boolean> {
    const { broker, signal, passOnMs = PASS_ON_MS } = this.#options
    if (Date.now() - this.#firstSeen(job) > passOnMs) return false
    this.#skipped.note('job of another version passed on', job.kind.slice(0, 40))
    await delay(KEEP_MS.base + Math.random() * KEEP_MS.spread, undefined, { signal }).catch(() => {
      // Only the abort can reject: the record goes back at once.
    })
    // Twice in the queue, should this process die in between, costs no more than a second start that is refused.
    await broker.submit(queue, delivery.value).then(
      () => delivery.acknowledge(),
      () => delivery.release(),
    )
    return true
  }

  #firstSeen({ id, attempt }: ForeignJob): number {
    const key = `${id}:${attempt}`
    const known = this.#seen.get(key)
    if (known !== undefined) return known
    const now = Date.now()
    this.#seen.set(key, now)
    for (const oldest of this.#seen.keys()) {
      if (this.#seen.size <= SEEN_MAX) break
      this.#seen.delete(oldest)
    }
    return now
  }
}
