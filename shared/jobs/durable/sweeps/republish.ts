import { PoolName } from '#schemas/job.ts'
import { isClaimed } from '#shared/jobs/durable/queue-notifier.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { slotsKept } from '#shared/jobs/worker/bulkheads/lanes.ts'
import type { Backlog } from './backlog.ts'
import { BATCH_MAX, publish, type SweepContext } from './publish.ts'

/** Age after which a queued job whose record was not consumed counts as lost. */
const LOST_AFTER_MS = 30_000
/** The age limit for an empty queue: then the record can only be in flight at its sender. */
const LOST_FROM_EMPTY_MS = 5_000
/** Slow search for lost records in a queue that is never empty: a few of the oldest jobs per run. */
const SEARCH = { olderThanMs: 300_000, limit: 5 }
/** Fraction of free slots at which workers count as idle. Busy workers also have a few free slots, between two jobs. */
const IDLE_SHARE = 0.25
/** Number of consecutive runs for which workers must be idle. */
const IDLE_TURNS = 3
/** If the control channel has been silent for this long, then its information is outdated. */
const SILENCE_MS_MAX = 2_500

export interface QueueView {
  /** Records in the broker; undefined if the broker cannot count them. */
  readonly lag: number | undefined
  /** Minimum number of lost records, by the counts of store and broker. */
  readonly missing: number
  /** Number of consecutive runs in which workers were idle. */
  readonly idleTurns: number
  /** The queue holds at least two records for each waiting job. */
  readonly hasTwice: boolean
  /** Workers claim all waiting jobs without records, or there are no workers. */
  readonly isCaredFor: boolean
}

/**
 * Decides which queued jobs to republish. After the broker lost everything, the queue is full again within a few runs. While
 * records wait behind busy workers, next to nothing is republished.
 */
export function republishPlan({ lag, missing, idleTurns, hasTwice, isCaredFor }: QueueView): {
  olderThanMs: number
  limit: number
} {
  if (isCaredFor) return SEARCH
  if (lag === 0) return { olderThanMs: LOST_FROM_EMPTY_MS, limit: BATCH_MAX }
  // Jobs of low priority may wait although slots are free, while the other lane has a little work.
  if (idleTurns >= IDLE_TURNS && !hasTwice) return { olderThanMs: LOST_AFTER_MS, limit: BATCH_MAX }
  if (missing > 0) return { olderThanMs: LOST_AFTER_MS, limit: Math.min(missing, BATCH_MAX) }
  return SEARCH
}

/** Republishes queued jobs whose records the broker seems to have lost: Kafka may lose everything. */
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

  async run(): Promise<void> {
    for (const pool of PoolName.options) await this.#republish(pool)
  }

  async #republish(pool: PoolName): Promise<void> {
    const { store, log, metrics } = this.#context
    const idleTurns = this.#isIdle(pool) ? (this.#idleTurns.get(pool) ?? 0) + 1 : 0
    this.#idleTurns.set(pool, idleTurns)
    const lag = await this.#backlog.lag(pool)
    const hasTwice = lag !== undefined && this.#backlog.hasTwice(pool, lag)
    // Without workers nothing is republished: the first worker that joins receives announcements.
    const hasNobody = this.#presence.silenceMs < SILENCE_MS_MAX && this.#presence.workers(pool).length === 0
    const isCaredFor = this.#backlog.isCaredFor(pool) || hasNobody
    const plan = republishPlan({ lag, missing: this.#backlog.missing(pool), idleTurns, hasTwice, isCaredFor })
    const old = await store.takeUnpublished(pool, plan.olderThanMs, plan.limit)
    const taken = old.filter(({ job }) => !isClaimed(this.#presence, job))
    if (taken.length === 0) return
    log.info({ pool, count: taken.length, lag }, 'queued jobs republished')
    metrics.republished.inc({ pool }, taken.length)
    this.#backlog.counted(pool, taken.length)
    await publish(this.#context, taken)
  }

  #isIdle(pool: PoolName): boolean {
    if (this.#presence.silenceMs > SILENCE_MS_MAX) return false
    const workers = this.#presence.workers(pool).filter(({ draining }) => !draining)
    // Slots reserved for the interactive lane are not idle: they stay free even if the batch lane is long.
    const freeOf = ({ slots, running }: Peer) => Math.max(0, slots - slotsKept(slots) - running)
    const free = workers.reduce((sum, worker) => sum + freeOf(worker), 0)
    return free > 0 && free >= this.#presence.slots(pool) * IDLE_SHARE
  }
}
