import type { DurableJob } from '#schemas/durable-job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { sweepBlobs } from '#shared/jobs/durable/blobs.ts'
import { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import { cancelsIn, Family } from '#shared/jobs/durable/family.ts'
import { isClaimed } from '#shared/jobs/durable/queue-notifier.ts'
import { ownerOf } from '#shared/jobs/owner.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { Log } from '#shared/log/log.ts'
import type { Metrics } from '#shared/metrics.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import { PURGE_LEASE, REAPER_LEASE } from '#shared/store/leases.ts'
import type { Moved, StoreView } from '#shared/store/store.ts'
import { Backlog } from './backlog.ts'
import { BATCH_MAX, publish, publishEvents, type SweepContext } from './publish.ts'
import { purge } from './purge.ts'
import { Republisher } from './republish.ts'

/** Limits of the reaper (docs/internals/protocol.md, State transitions). */
const REAP_POLICY = { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 10_000 }

export interface SweepsOptions {
  readonly store: StoreView
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly metrics: Metrics
  readonly models: ModelCatalogue
  /** Waiting jobs that workers know of, and free slots. */
  readonly presence: Presence
  readonly boot: string
  /** Maximum duration of a call in ms. Blobs of calls are not in the store. */
  readonly callMsMax: number
}

/**
 * Sweeps: periodic maintenance of durable jobs. Any number of processes may run them, because the store guards each state
 * transition. A lease ensures that only one process reaps or purges at a time.
 *
 * A sweep returns true if there may be more to do.
 */
export class Sweeps {
  readonly #options: SweepsOptions
  readonly #context: SweepContext
  readonly #family: Family
  readonly #backlog: Backlog
  readonly #republisher: Republisher

  constructor(options: SweepsOptions) {
    const { broker, log, metrics, presence } = options
    const store = ownerOf(options.store)
    this.#options = options
    const dispatcher = new Dispatcher(broker, log, () => presence)
    this.#context = { store, broker, log, metrics, dispatcher }
    this.#family = new Family({ store, dispatcher, log, notifyOwner: cancelsIn(presence) })
    this.#backlog = new Backlog(store, broker, (of) => isClaimed(presence, of))
    this.#backlog.showIn(metrics, options.models.models)
    this.#republisher = new Republisher(this.#context, presence, this.#backlog)
  }

  async startDue(): Promise<boolean> {
    const moved = await this.#context.store.startDue(BATCH_MAX)
    if (moved.length > 0) this.#context.log.info({ count: moved.length }, 'due jobs queued')
    await publish(this.#context, moved)
    return moved.length === BATCH_MAX
  }

  async expire(): Promise<boolean> {
    const { store, dispatcher, log, metrics } = this.#context
    const moved = await store.expire(BATCH_MAX)
    if (moved.length > 0) log.info(countStates(moved), 'jobs expired')
    for (const { job } of moved) {
      if (job.state === 'expired') metrics.expired.inc({ pool: job.pool })
      this.#countEnd(job)
    }
    publishEvents(dispatcher, moved)
    return moved.length === BATCH_MAX
  }

  /**
   * Requeues or fails jobs of dead workers, under an exclusive lease. @param leaseMs Time after which another process continues
   * if this one crashes
   */
  async reap(leaseMs: number): Promise<boolean> {
    const { store, log, metrics } = this.#context
    const { boot } = this.#options
    if (!(await store.holdLease(REAPER_LEASE, boot, leaseMs))) return false
    const moved = await store.reap(boot, REAP_POLICY, BATCH_MAX)
    if (moved.length > 0) log.warn(countStates(moved), 'jobs of lost or silent workers reaped')
    for (const { job } of moved) {
      metrics.reaped.inc({ pool: job.pool, end: job.state })
      if (job.state === 'queued') metrics.retries.inc({ pool: job.pool, reason: 'worker_lost' })
      else this.#countEnd(job)
    }
    await publish(this.#context, moved)
    return moved.length === BATCH_MAX
  }

  /** Wakes parents whose time to wait for children is over, and notifies families of ended jobs. */
  async families(): Promise<boolean> {
    const { store, dispatcher, log } = this.#context
    const [late, woken, unsettled] = await Promise.all([
      store.timeOutWaiting(BATCH_MAX),
      store.wakeDue(BATCH_MAX),
      store.listUnsettled(BATCH_MAX),
    ])
    for (const { job } of late) this.#countEnd(job)
    publishEvents(dispatcher, late)
    await publish(this.#context, woken)
    for (const job of unsettled) await this.#family.settle(job)
    const counts = { timed_out: late.length, woken: woken.length, settled: unsettled.length }
    if (late.length + woken.length + unsettled.length > 0) log.info(counts, 'families settled')
    return [late, woken, unsettled].some(({ length }) => length === BATCH_MAX)
  }

  /** Counts waiting and running jobs (see {@link Backlog.read}), and announces those of which no worker knows. */
  async readBacklog(): Promise<void> {
    await this.#backlog.read()
    for (const of of this.#backlog.uncared) this.#context.dispatcher.notifyWaiting(of)
  }

  /** Republishes jobs whose records the broker seems to have lost. */
  republish(): Promise<void> {
    return this.#republisher.run()
  }

  purge(stopped: AbortSignal): Promise<boolean> {
    return purge(this.#context, this.#options.blobs, this.#options.boot, stopped)
  }

  async sweepBlobs(): Promise<void> {
    const { blobs, callMsMax } = this.#options
    const count = await sweepBlobs(blobs, this.#context.store, callMsMax)
    if (count > 0) this.#context.log.info({ count }, 'old blobs deleted')
  }

  /** Releases the exclusive leases, so that another process can continue at once. */
  async release(): Promise<void> {
    const { store, log } = this.#context
    for (const lease of [REAPER_LEASE, PURGE_LEASE]) {
      await store.releaseLease(lease, this.#options.boot).catch((error: unknown) => {
        log.info({ err: error, lease }, 'lease not released; it expires')
      })
    }
  }

  /** The sweeping process decides these ends, so it also counts them. */
  #countEnd(job: DurableJob): void {
    this.#context.metrics.jobs.inc({ pool: job.pool, end: job.state, code: job.error?.code ?? '' })
  }
}

function countStates(moved: readonly Moved[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { job } of moved) counts[job.state] = (counts[job.state] ?? 0) + 1
  return counts
}
