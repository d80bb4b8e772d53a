import { DurableState, Priority } from '#schemas/durable-job.ts'
import { PoolName } from '#schemas/job.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { jobsTopic } from '#shared/jobs/records.ts'
import type { Metrics } from '#shared/lib/metrics.ts'
import type { PendingWebhooks } from '#shared/store/jobs.ts'
import type { Depth, QueuedOf, Store } from '#shared/store/store.ts'

/** Age in ms at which a count is outdated and no longer exported. */
const STALE_MS = 20_000
const STATES = DurableState.extract(['queued', 'scheduled', 'in_progress', 'waiting']).options

export class Backlog {
  readonly #store: Store
  readonly #broker: Broker
  readonly #waiting = new Map<PoolName, number>()
  readonly #missing = new Map<PoolName, number>()
  readonly #hasClaimer: (of: QueuedOf) => boolean
  #queued: Awaited<ReturnType<Store['queuedModels']>> = []
  #withoutClaimer: readonly QueuedOf[] = []
  #withClaimer: ReadonlySet<PoolName> = new Set()
  #depth: readonly Depth[] = []
  #webhooks: PendingWebhooks | undefined
  #readAtMs = 0

  /**
   * @param hasClaimer Whether some worker was notified that jobs of this pool, kind, model and priority wait. This worker claims them from
   * the store as soon as a slot is free, so they need no queue record
   */
  constructor(store: Store, broker: Broker, hasClaimer: (of: QueuedOf) => boolean = () => false) {
    this.#store = store
    this.#broker = broker
    this.#hasClaimer = hasClaimer
  }

  /** Counts queued and running jobs. The store scans every waiting job, so the interval should be several seconds. */
  async read(): Promise<void> {
    this.#depth = await this.#store.depth()
    this.#webhooks = await this.#store.pendingDeliveries()
    this.#readAtMs = Date.now()
    const queued = this.#depth.some(({ state }) => state === 'queued') ? await this.#store.queuedModels() : []
    this.#queued = queued
    const [withClaimer, withoutClaimer] = [
      queued.filter(this.#hasClaimer),
      queued.filter((row) => !this.#hasClaimer(row)),
    ]
    this.#withoutClaimer = withoutClaimer
    this.#withClaimer = new Set(withClaimer.map(({ pool }) => pool))
    for (const pool of PoolName.options) {
      const lag = await this.lag(pool)
      const waiting = withoutClaimer.filter((row) => row.pool === pool).reduce((sum, { count }) => sum + count, 0)
      this.#waiting.set(pool, waiting)
      this.#missing.set(pool, lag === undefined ? 0 : Math.max(0, waiting - lag))
    }
  }

  /** Queued jobs by pool and model, as of the last count. */
  get queued(): Awaited<ReturnType<Store['queuedModels']>> {
    return this.#isStale ? [] : this.#queued
  }

  /** Pools, kinds, models and priorities whose waiting jobs were announced to no worker, as of the last count. */
  get withoutClaimer(): readonly QueuedOf[] {
    return this.#withoutClaimer
  }

  /**
   * True if jobs of the pool waited at the last count, and some worker was notified of each kind, model and priority among them. These workers claim
   * all of the jobs from the store, so no queue records are needed.
   */
  hasClaimer(pool: PoolName): boolean {
    return this.#withClaimer.has(pool) && this.#waiting.get(pool) === 0
  }

  /**
   * Returns the minimum number of lost queue records: waiting jobs minus records in the queue, at the last count. Records republished since
   * then are subtracted (see {@link counted}).
   */
  missing(pool: PoolName): number {
    return this.#missing.get(pool) ?? 0
  }

  counted(pool: PoolName, published: number): void {
    this.#missing.set(pool, Math.max(0, this.missing(pool) - published))
  }

  /** Whether the queue already contains two records for each waiting job. Another republication would then only fill the queue. */
  hasTwice(pool: PoolName, lag: number): boolean {
    return lag >= 2 * (this.#waiting.get(pool) ?? 0)
  }

  async lag(pool: PoolName): Promise<number | undefined> {
    const lanes = await Promise.all(Priority.options.map((lane) => this.#broker.lag(jobsTopic(pool, lane))))
    return lanes.reduce((sum, lag) => (sum === undefined || lag === undefined ? undefined : sum + lag), 0)
  }

  /** Exports the last count to Prometheus. Each scheduler exports the same values, so queries must use the maximum instead of the sum. */
  showIn(metrics: Metrics, models: () => readonly Pick<ModelConfig, 'id' | 'pool'>[]): void {
    metrics.rows('sluice_waiting_jobs', () => this.#waitingRows(models()))
    metrics.rows('sluice_jobs', () => this.#depthRows(({ count }) => count))
    metrics.rows('sluice_jobs_oldest_seconds', () =>
      this.#depthRows(({ oldest_at_ms }) => Math.max(0, Date.now() - oldest_at_ms) / 1_000),
    )
    for (const pool of PoolName.options)
      metrics.gauge('sluice_jobs_unpublished', { pool }, () => (this.#isStale ? undefined : this.missing(pool)))
    metrics.gauge('sluice_webhooks_pending', {}, () => this.#ofWebhooks(({ count }) => count))
    metrics.gauge('sluice_webhooks_oldest_seconds', {}, () =>
      this.#ofWebhooks(({ oldest_at_ms }) =>
        oldest_at_ms === null ? 0 : Math.max(0, Date.now() - oldest_at_ms) / 1_000,
      ),
    )
  }

  get #isStale(): boolean {
    return Date.now() - this.#readAtMs > STALE_MS
  }

  #ofWebhooks(value: (webhooks: PendingWebhooks) => number): number | undefined {
    return this.#isStale || !this.#webhooks ? undefined : value(this.#webhooks)
  }

  *#waitingRows(models: readonly Pick<ModelConfig, 'id' | 'pool'>[]) {
    if (this.#isStale) return
    const counts = new Map<string, number>()
    const keyOf = (row: { pool: string; model: string; priority: string }) => `${row.pool} ${row.priority} ${row.model}`
    for (const row of this.#queued) counts.set(keyOf(row), (counts.get(keyOf(row)) ?? 0) + row.count)
    for (const { id: model, pool } of models) {
      for (const priority of Priority.options) {
        const labels = { pool, model, priority }
        yield [labels, counts.get(keyOf(labels)) ?? 0] as const
      }
    }
  }

  *#depthRows(value: (row: Depth) => number) {
    if (this.#isStale) return
    const found = new Map(this.#depth.map((row) => [`${row.pool} ${row.priority} ${row.state}`, row]))
    for (const pool of PoolName.options) {
      for (const priority of Priority.options) {
        for (const state of STATES) {
          const row = found.get(`${pool} ${priority} ${state}`)
          yield [{ pool, priority, state }, row ? value(row) : 0] as const
        }
      }
    }
  }
}
