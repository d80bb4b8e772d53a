import { setTimeout as delay } from 'node:timers/promises'
import type { AttachedEnvelope, PoolName } from '#schemas/job.ts'
import type { Broker, Delivery } from '#shared/broker/broker.ts'
import { jobsTopic } from '#shared/jobs/topics.ts'
import type { Lane, Poller } from './poller.ts'

/** Delay before a returning call is requeued, in ms: `step` more for each return, up to `most`. */
const REQUEUE_DELAY_MS = { step: 5, most: 50 }
/** Pause of this worker's polling after a requeue, in ms: long enough for another waiting worker to take the call. */
const POLL_PAUSE_MS = 2
/** Maximum number of delayed calls, each with a body of at most 64 KiB; further ones are handed back. */
const DELAYED_MAX = 256
/** Maximum number of calls whose returns are counted; the oldest are dropped first. */
const SEEN_MAX = 1_000

export interface RequeueOptions {
  readonly broker: Broker
  readonly pool: PoolName
  readonly poller: Poller
}

/**
 * Requeues attached calls that another worker can run sooner, because this one lacks the model or a permit for it.
 *
 * The record goes back unchanged, so no attempt is counted and the ingress is not involved. No slot is used here. The first
 * requeue is immediate. If the call returns, then all workers are full, and each further requeue waits 5 ms longer.
 */
export class Requeue {
  readonly #options: RequeueOptions
  readonly #seen = new Map<string, number>()
  #delayed = 0
  #requeued = 0

  constructor(options: RequeueOptions) {
    this.#options = options
  }

  get delayed(): number {
    return this.#delayed
  }

  /** Requeued calls so far; each requeue counts. */
  get requeued(): number {
    return this.#requeued
  }

  requeuesOf({ id, attempt }: AttachedEnvelope): number {
    return this.#seen.get(`${id}:${attempt}`) ?? 0
  }

  /** Requeues a call. @returns False if too many calls are delayed: the caller hands the job back */
  requeue({ priority }: Lane, delivery: Delivery, job: AttachedEnvelope): boolean {
    if (this.#delayed >= DELAYED_MAX) return false
    this.#delayed++
    void this.#submitAgain(jobsTopic(this.#options.pool, priority), delivery, this.#delayMs(job))
    return true
  }

  async #submitAgain(topic: string, delivery: Delivery, delayMs: number): Promise<void> {
    const { broker, poller } = this.#options
    if (delayMs > 0) {
      await delay(delayMs, undefined, { signal: poller.stopped }).catch(() => {
        // Only the abort can reject: the call is requeued at once.
      })
    }
    this.#requeued++
    poller.pause(POLL_PAUSE_MS)
    // If this process crashes here, then the record exists twice. The ingress then rejects the second start.
    await broker.submit(topic, delivery.value).then(
      () => delivery.acknowledge(),
      () => delivery.release(),
    )
    this.#delayed--
    // A drain ends once no call is delayed.
    if (poller.stopped.aborted) poller.free()
  }

  #delayMs(job: AttachedEnvelope): number {
    const key = `${job.id}:${job.attempt}`
    const times = this.requeuesOf(job)
    this.#seen.delete(key)
    this.#seen.set(key, times + 1)
    const [oldest = key] = this.#seen.keys()
    if (this.#seen.size > SEEN_MAX) this.#seen.delete(oldest)
    return Math.min(REQUEUE_DELAY_MS.most, REQUEUE_DELAY_MS.step * times)
  }
}
