import { setTimeout as delay } from 'node:timers/promises'
import type { AttachedEnvelope, PoolName } from '#schemas/job.ts'
import type { Broker, Delivery } from '#shared/broker/broker.ts'
import { jobsTopic } from '#shared/jobs/topics.ts'
import type { Lane, Poller } from './poller.ts'

/** How much longer a call is kept each time it comes back, before it goes on again, and how long at most. */
const REQUEUE_DELAY_MS = { step: 5, most: 50 }
/** How long this worker takes nothing then: long enough for another one that waits to take the call. */
const POLL_PAUSE_MS = 2
/** Calls that are kept at once, each with a body of 64 KiB at most; more are handed back. */
const KEPT_MAX = 256
/** Calls that are known again; the oldest are forgotten first. */
const SEEN_MAX = 1_000

/** What {@link Requeue} needs. */
export interface RequeueOptions {
  readonly broker: Broker
  readonly pool: PoolName
  readonly taking: Poller
}

/**
 * Attached calls of models that this worker does not know and another one does, or has no place for: each goes back to the queue as it came, so that it
 * is no attempt, and its ingress hears nothing of it. It takes no slot here.
 *
 * At first it goes at once; one that comes back finds its workers full, and is kept for some milliseconds more each time.
 */
export class Requeue {
  readonly #options: RequeueOptions
  /** How often each came by. */
  readonly #seen = new Map<string, number>()
  #kept = 0
  #passed = 0

  constructor(options: RequeueOptions) {
    this.#options = options
  }

  /** Calls that are kept now. */
  get kept(): number {
    return this.#kept
  }

  /** Calls passed on so far, each time counted. */
  get requeued(): number {
    return this.#passed
  }

  /** How often a call came by and was passed on. */
  timesSeen({ id, attempt }: AttachedEnvelope): number {
    return this.#seen.get(`${id}:${attempt}`) ?? 0
  }

  /** Passes a call on. @returns False where there are too many: it is handed back */
  take({ priority }: Lane, delivery: Delivery, job: AttachedEnvelope): boolean {
    if (this.#kept >= KEPT_MAX) return false
    this.#kept++
    void this.#passOn(jobsTopic(this.#options.pool, priority), delivery, this.#keepMs(job))
    return true
  }

  async #passOn(topic: string, delivery: Delivery, keepMs: number): Promise<void> {
    const { broker, taking } = this.#options
    if (keepMs > 0) {
      await delay(keepMs, undefined, { signal: taking.stopped }).catch(() => {
        // Only the abort can reject: the call goes on at once.
      })
    }
    this.#passed++
    taking.pause(POLL_PAUSE_MS)
    // Twice in the queue, should this process die in between, costs no more than a second start that is refused.
    await broker.submit(topic, delivery.value).then(
      () => delivery.acknowledge(),
      () => delivery.release(),
    )
    this.#kept--
    // Whoever drains the worker waits for this.
    if (taking.stopped.aborted) taking.free()
  }

  #keepMs(job: AttachedEnvelope): number {
    const key = `${job.id}:${job.attempt}`
    const times = this.timesSeen(job)
    this.#seen.delete(key)
    this.#seen.set(key, times + 1)
    const [oldest = key] = this.#seen.keys()
    if (this.#seen.size > SEEN_MAX) this.#seen.delete(oldest)
    return Math.min(REQUEUE_DELAY_MS.most, REQUEUE_DELAY_MS.step * times)
  }
}
