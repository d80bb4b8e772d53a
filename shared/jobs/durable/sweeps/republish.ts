import { PoolName } from '#schemas/job.ts'
import { isClaimed } from '#shared/jobs/durable/queue-notifier.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { slotsKept } from '#shared/jobs/worker/bulkheads/lanes.ts'
import type { Backlog } from './backlog.ts'
import { BATCH_MAX, publish, type SweepContext } from './publish.ts'

/** How long a record may be on its way before its absence means anything. */
const LOST_AFTER_MS = 30_000
/** The same where the queue is empty: then it can only be in the hands of a sender. */
const LOST_FROM_EMPTY_MS = 5_000
/** One lost record behind a queue that is never empty nor short is found by looking through the oldest, slowly. */
const SEARCH = { olderThanMs: 300_000, limit: 5 }
/** Share of free slots from which workers lack work: busy ones have a few free at any moment, between two jobs. */
const IDLE_SHARE = 0.25
/** Turns in a row of which that must hold. */
const IDLE_TURNS = 3
/** Silence of the control channel from which what heartbeats said is out of date. */
const SILENCE_MS_MAX = 2_500

/** What one turn knows of a pool's queue. */
export interface QueueView {
  /** Records at the broker; undefined where it cannot tell. */
  readonly lag: number | undefined
  /** Records that must be lost, by the counts of store and broker. */
  readonly missing: number
  /** For how many turns workers have lacked work. */
  readonly idleTurns: number
  /** The queue holds each waiting job twice. */
  readonly hasTwice: boolean
  /** Workers claim all that waits as soon as they have room, without records, or there are none. */
  readonly isCaredFor: boolean
}

/**
 * Which queued jobs to publish again: so many that a broker which lost everything is full again soon, and next to none
 * while their records wait behind busy workers.
 */
export function republishPlan({ lag, missing, idleTurns, hasTwice, isCaredFor }: QueueView): {
  olderThanMs: number
  limit: number
} {
  if (isCaredFor) return SEARCH
  if (lag === 0) return { olderThanMs: LOST_FROM_EMPTY_MS, limit: BATCH_MAX }
  // Low priority waits beside free slots while the other lane has a little work.
  if (idleTurns >= IDLE_TURNS && !hasTwice) return { olderThanMs: LOST_AFTER_MS, limit: BATCH_MAX }
  if (missing > 0) return { olderThanMs: LOST_AFTER_MS, limit: Math.min(missing, BATCH_MAX) }
  return SEARCH
}

/** Publishes queued jobs again whose records the broker seems to have lost: Kafka may lose everything. */
export class Republisher {
  readonly #context: SweepContext
  readonly #presence: Presence
  readonly #backlog: Backlog
  readonly #idleTurns = new Map<PoolName, number>()

  constructor(context: SweepContext, presence: Presence, backlog: Backlog) {
    this.#context = context
    this.#presence = presence
    this.#backlog = backlog
  }

  /** One turn over all pools, bounded by {@link BATCH_MAX} each. */
  async run(): Promise<void> {
    for (const pool of PoolName.options) await this.#republish(pool)
  }

  async #republish(pool: PoolName): Promise<void> {
    const { store, log, metrics } = this.#context
    const idleTurns = this.#isIdle(pool) ? (this.#idleTurns.get(pool) ?? 0) + 1 : 0
    this.#idleTurns.set(pool, idleTurns)
    const lag = await this.#backlog.lag(pool)
    const hasTwice = lag !== undefined && this.#backlog.hasTwice(pool, lag)
    // The first worker that comes is told what waits.
    const hasNobody = this.#presence.silenceMs < SILENCE_MS_MAX && this.#presence.workers(pool).length === 0
    const isCaredFor = this.#backlog.isCaredFor(pool) || hasNobody
    const plan = republishPlan({ lag, missing: this.#backlog.missing(pool), idleTurns, hasTwice, isCaredFor })
    const old = await store.takeUnpublished(pool, plan.olderThanMs, plan.limit)
    const taken = old.filter(({ job }) => !isClaimed(this.#presence, job))
    if (taken.length === 0) return
    log.info({ pool, count: taken.length, lag }, 'queued jobs published again')
    metrics.republished.inc({ pool }, taken.length)
    this.#backlog.counted(pool, taken.length)
    await publish(this.#context, taken)
  }

  #isIdle(pool: PoolName): boolean {
    if (this.#presence.silenceMs > SILENCE_MS_MAX) return false
    const workers = this.#presence.workers(pool).filter(({ draining }) => !draining)
    // Those kept from the batch lane say nothing: they are free although it is long.
    const freeOf = ({ slots, running }: Peer) => Math.max(0, slots - slotsKept(slots) - running)
    const free = workers.reduce((sum, worker) => sum + freeOf(worker), 0)
    return free > 0 && free >= this.#presence.slots(pool) * IDLE_SHARE
  }
}
