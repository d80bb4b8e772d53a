import { setTimeout as delay } from 'node:timers/promises'
import type { DurableJob } from '#schemas/durable-job.ts'
import { PoolName } from '#schemas/job.ts'
import { HISTORY_RANGES, HOURS_DAYS } from '#schemas/usage.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { reservedSlots } from '#shared/capacity/slots.ts'
import { cancelsIn, Dispatcher, Family, isClaimed, jobFields } from '#shared/jobs/durable/dispatch.ts'
import { blobsOf, dropBlobs, sweepBlobs } from '#shared/jobs/durable/history.ts'
import type { Work } from '#shared/jobs/fleet-work.ts'
import { ownerOf } from '#shared/jobs/owner.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { Metrics } from '#shared/lib/metrics.ts'
import type { Log } from '#shared/log/log.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import { PURGE_LEASE, REAPER_LEASE } from '#shared/store/jobs.ts'
import type { LogBounds } from '#shared/store/requests.ts'
import type { Dispatch, Store, StoreView, TransitionResult } from '#shared/store/store.ts'
import { startAttempt } from '#shared/telemetry/tracing.ts'
import { dayOf } from '#shared/usage/usage.ts'
import { Backlog } from './backlog.ts'

/** Maximum jobs per sweep. Their bodies (up to 64 KiB each) stay in memory until the jobs are published. */
const BATCH_MAX = 500
const SUBMITS_MAX = 64

/** Age in ms after which the record of a queued job counts as lost if no worker has consumed it. */
const LOST_AFTER_MS = 30_000

/**
 * Age in ms after which a record counts as lost while the queue is empty. In this case the record is either lost or still being sent, so a short time
 * suffices.
 */
const LOST_FROM_EMPTY_MS = 5_000

/**
 * Minimum age and maximum number of the jobs that are republished while the queue is not empty. Only few jobs are republished, because the
 * records of the other jobs may still wait in the queue.
 */
const SEARCH = { olderThanMs: 300_000, limit: 5 }

/** Minimum fraction of free slots at which workers count as idle. Busy workers also have a few free slots between two jobs. */
const IDLE_SHARE = 0.25

/** Number of consecutive sweeps in which workers must be idle while jobs are queued. Only then do the records of these jobs count as lost. */
const IDLE_TURNS = 3

/** Time in ms without records on the control channel after which the reported free slots count as outdated. */
const SILENCE_MS_MAX = 2_500

/** Lease of the purging process, in ms, which is longer than one step. If the process crashes, then another process continues after this time. */
const LEASE_MS = 60_000
const STEPS_MAX = 100
const FILES_MAX = 50
const CONVERSATIONS_MAX = 50
const HOURS_MAX = 250
const DAY_MS = 86_400_000
/**
 * Age in seconds after which samples of the metrics history are merged into coarser samples. The age is a day and some minutes, so that a chart of 24
 * h has only fine samples.
 */
const FINE_SECONDS = 88_200
const HISTORY_SECONDS = HISTORY_RANGES['7d'].length + 3_600

/**
 * Limits for the sweep that requeues or fails jobs of dead workers ({@link Sweeps.reap}). A job fails when `crashesMax` workers have died
 * while they ran it. The grace periods are in ms.
 */
const REAP_POLICY = { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 10_000 }

export interface SweepsOptions {
  readonly store: StoreView
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly metrics: Metrics
  readonly models: ModelCatalogue
  readonly presence: Presence
  readonly boot: string
  /**
   * Maximum duration of an attached call in ms. Such calls are not in the store, so a younger blob may belong to a
   * running call.
   */
  readonly callMsMax: number
  readonly requestLog?: LogBounds
}

/**
 * Sweeps: periodic maintenance of durable jobs. Several processes may run sweeps concurrently, because the store guards each state transition. A
 * lease ensures that only one process reaps or purges at a time.
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
    this.#backlog.showIn(metrics, () => options.models.models)
    this.#republisher = new Republisher(this.#context, presence, this.#backlog)
    // Each counter begins with a sample of 0, so that a dashboard shows 0 instead of no data.
    for (const pool of PoolName.options) {
      metrics.republished.inc({ pool }, 0)
      for (const outcome of ['queued', 'failed']) metrics.reaped.inc({ pool, outcome }, 0)
    }
  }

  async startDue(): Promise<boolean> {
    const moved = await this.#context.store.startDue(BATCH_MAX)
    if (moved.length > 0) this.#context.log.info({ count: moved.length }, 'scheduled jobs queued')
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
   * Requeues or fails jobs of dead workers, under an exclusive lease.
   *
   * @param leaseMs Time after which another process continues if this one crashes
   */
  async reap(leaseMs: number): Promise<boolean> {
    const { store, log, metrics } = this.#context
    const { boot } = this.#options
    if (!(await store.holdLease(REAPER_LEASE, boot, leaseMs))) return false
    const moved = await store.reap(boot, REAP_POLICY, BATCH_MAX)
    if (moved.length > 0) log.info(countStates(moved), 'jobs of lost or unresponsive workers requeued or ended')
    for (const { job, events } of moved) {
      recordLost(job, events.at(-1)?.at_ms ?? Date.now())
      if (job.state === 'queued') {
        const delay_ms = Math.max(0, job.run_at_ms - (events.at(-1)?.at_ms ?? job.run_at_ms))
        log.info({ ...jobFields(job), reason: 'worker_lost', delay_ms }, 'job retried')
      }
      metrics.reaped.inc({ pool: job.pool, outcome: job.state })
      if (job.state === 'queued') metrics.retries.inc({ pool: job.pool, reason: 'worker_lost' })
      else this.#countEnd(job)
    }
    await publish(this.#context, moved)
    return moved.length === BATCH_MAX
  }

  /**
   * Wakes parents that have waited for their children for the maximum time, and fails parents whose deadline has passed. Settles ended jobs: cancels
   * their children, and wakes a parent that waits for no other child.
   */
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
    if (late.length + woken.length + unsettled.length > 0)
      log.info(
        counts,
        'composed jobs resumed or timed out while waiting for child jobs; child jobs of ended jobs cancelled',
      )
    return [late, woken, unsettled].some(({ length }) => length === BATCH_MAX)
  }

  /** Queued jobs at the last count, by pool and model. */
  get waiting(): Work[] {
    return this.#backlog.queued.map(({ pool, model, count }) => ({ pool, model, queued: count, running: 0 }))
  }

  /** Counts waiting and running jobs (see {@link Backlog.read}), and announces jobs that were announced to no worker. */
  async readBacklog(): Promise<void> {
    await this.#backlog.read()
    for (const of of this.#backlog.withoutClaimer) this.#context.dispatcher.notifyWaiting(of)
  }

  republish(): Promise<void> {
    return this.#republisher.run()
  }

  purge(stopped: AbortSignal): Promise<boolean> {
    return purge(this.#context, this.#options, stopped)
  }

  async sweepBlobs(): Promise<void> {
    const { blobs, callMsMax } = this.#options
    const count = await sweepBlobs(blobs, this.#context.store, callMsMax)
    if (count > 0) this.#context.log.info({ count }, 'unused blobs deleted')
  }

  async release(): Promise<void> {
    const { store, log } = this.#context
    for (const lease of [REAPER_LEASE, PURGE_LEASE]) {
      await store.releaseLease(lease, this.#options.boot).catch((error: unknown) => {
        log.info({ err: error, lease }, 'scheduler lease could not be released; the lease expires on its own')
      })
    }
  }

  #countEnd(job: DurableJob): void {
    this.#context.metrics.jobs.inc({ pool: job.pool, outcome: job.state, code: job.error?.code ?? '' })
  }
}

/** Records the span of an attempt whose worker is lost, because the worker cannot record it. */
function recordLost(job: DurableJob, endMs: number): void {
  const { attempt, started_at_ms } = job
  if (attempt === 0) return
  const startMs = attempt === 1 ? (started_at_ms ?? endMs) : endMs
  startAttempt(job, { 'sluice.outcome': 'lost' }, startMs)?.end(undefined, 'worker_lost', endMs)
}

function countStates(moved: readonly TransitionResult[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { job } of moved) counts[job.state] = (counts[job.state] ?? 0) + 1
  return counts
}

/**
 * Deletes jobs, files, conversations and rows of the request log after their retention, with blobs. A lease ensures that only one scheduler
 * purges at a time. Blobs are deleted after their job, so a crash in between can leave orphaned blobs, but never a job without its body.
 *
 * After each step, the purge pauses for as long as the step took. Half of the time of an embedded store therefore stays available for other
 * work.
 *
 * @param stopped Ends the purge after the current step
 * @returns True if there is more to delete
 */
async function purge(
  { store, log }: SweepContext,
  { blobs, boot, requestLog }: SweepsOptions,
  stopped: AbortSignal,
): Promise<boolean> {
  for (let steps = 0; steps < STEPS_MAX && !stopped.aborted; steps++) {
    if (!(await store.holdLease(PURGE_LEASE, boot, LEASE_MS))) return false
    const startedAt = performance.now()
    const { requests, hasMore } = await store.purge(requestLog)
    await dropBlobs({ blobs, log }, requests.flatMap(blobsOf))
    const files = await store.files.purge(FILES_MAX)
    await dropBlobs({ blobs, log }, files)
    const conversations = await store.conversations.purge(CONVERSATIONS_MAX)
    const hasHours = await store.usage.mergeHours(`${dayOf(Date.now() - HOURS_DAYS * DAY_MS)}T00`, HOURS_MAX)
    const nowSeconds = Math.floor(Date.now() / 1_000)
    const hasSamples = await store.history.tidy(nowSeconds - FINE_SECONDS, nowSeconds - HISTORY_SECONDS, HOURS_MAX)
    await store.storedBytes.tidy()
    if (!hasMore && !hasHours && !hasSamples && files.length < FILES_MAX && conversations < CONVERSATIONS_MAX)
      return false
    await delay(performance.now() - startedAt)
  }
  return true
}

interface QueueView {
  readonly lag: number | undefined
  /** Minimum number of lost records, computed from the counts of the store and the broker. */
  readonly missing: number
  readonly idleRuns: number
  readonly hasTwice: boolean
  /** True if no records are needed: workers claim all waiting jobs from the store, or there are no workers. */
  readonly hasClaimer: boolean
}

/**
 * Decides which queued jobs to republish. After the broker lost all records, the queue is full again within a few runs. While records wait behind
 * busy workers, almost nothing is republished.
 */
export function republishPlan({ lag, missing, idleRuns, hasTwice, hasClaimer }: QueueView): {
  olderThanMs: number
  limit: number
} {
  if (hasClaimer) return SEARCH
  if (lag === 0) return { olderThanMs: LOST_FROM_EMPTY_MS, limit: BATCH_MAX }
  // Several idle runs are required, because free slots alone prove no loss. Example: while the interactive lane has a little work, jobs of low
  // priority wait although slots are free.
  if (idleRuns >= IDLE_TURNS && !hasTwice) return { olderThanMs: LOST_AFTER_MS, limit: BATCH_MAX }
  if (missing > 0) return { olderThanMs: LOST_AFTER_MS, limit: Math.min(missing, BATCH_MAX) }
  return SEARCH
}

/** Republishes queued jobs whose records the broker seems to have lost. A Kafka cluster may lose all of its records. */
export class Republisher {
  readonly #context: SweepContext
  readonly #presence: Presence
  readonly #backlog: Backlog
  readonly #idleRuns = new Map<PoolName, number>()

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
    const idleRuns = this.#isIdle(pool) ? (this.#idleRuns.get(pool) ?? 0) + 1 : 0
    this.#idleRuns.set(pool, idleRuns)
    const lag = await this.#backlog.lag(pool)
    const hasTwice = lag !== undefined && this.#backlog.hasTwice(pool, lag)
    // Without workers, only few old jobs are republished ({@link SEARCH}), because the first worker that starts receives announcements.
    const hasNoWorker = this.#presence.silenceMs < SILENCE_MS_MAX && this.#presence.workers(pool).length === 0
    const hasClaimer = this.#backlog.hasClaimer(pool) || hasNoWorker
    const plan = republishPlan({ lag, missing: this.#backlog.missing(pool), idleRuns, hasTwice, hasClaimer })
    const old = await store.takeUnpublished(pool, plan.olderThanMs, plan.limit)
    const taken = old.filter(({ job }) => !isClaimed(this.#presence, job))
    if (taken.length === 0) return
    log.info({ pool, count: taken.length, lag }, 'queue records of queued jobs published again')
    metrics.republished.inc({ pool }, taken.length)
    this.#backlog.counted(pool, taken.length)
    await publish(this.#context, taken)
  }

  #isIdle(pool: PoolName): boolean {
    if (this.#presence.silenceMs > SILENCE_MS_MAX) return false
    const workers = this.#presence.workers(pool).filter(({ draining }) => !draining)
    // Slots that are reserved for the interactive lane are not counted as idle, because they stay free even if many batch jobs wait.
    const freeOf = ({ slots, running }: Peer) => Math.max(0, slots - reservedSlots(slots) - running)
    const free = workers.reduce((sum, worker) => sum + freeOf(worker), 0)
    return free > 0 && free >= this.#presence.slots(pool) * IDLE_SHARE
  }
}

interface SweepContext {
  readonly store: Store
  readonly broker: Broker
  readonly dispatcher: Dispatcher
  readonly log: Log
  readonly metrics: Metrics
}

/**
 * Publishes committed state transitions: their events, then the queued jobs. Unpublished jobs are republished later, so the loop
 * ends if the broker becomes unreachable.
 */
async function publish({ broker, dispatcher }: SweepContext, moved: readonly Dispatch[]): Promise<void> {
  publishEvents(dispatcher, moved)
  const queued = moved.filter(({ job }) => job.state === 'queued')
  for (let i = 0; i < queued.length && broker.isReachable; i += SUBMITS_MAX) {
    const some = queued.slice(i, i + SUBMITS_MAX)
    await Promise.all(some.map(({ job, request }) => dispatcher.publishJob(job, request)))
  }
}

function publishEvents(dispatcher: Dispatcher, moved: readonly TransitionResult[]): void {
  for (const one of moved) dispatcher.publishMoved(one)
}
