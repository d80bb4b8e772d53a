import { type JobEnvelope, type PoolName, StoredRequest } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { workKey } from '#shared/capacity/fair-queue.ts'
import { RetryBudget } from '#shared/jobs/decide.ts'
import { Dispatcher, envelopeOf, Family, type FamilyOptions, jobFields } from '#shared/jobs/durable/dispatch.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import type { Log } from '#shared/log/log.ts'
import type { OwnedJob } from '#shared/store/jobs.ts'
import type { Dispatch, QueuedOf, Store, TransitionResult } from '#shared/store/store.ts'
import { DurableRun } from './durable-run.ts'

const TURNS_MAX = 1_000
/** Maximum wait in ms for a requeue that is in progress when the worker closes. */
const RECONCILE_MS = 1_000
/** Time before the end of a lease at which its runs are stopped: STOP_MS, in ms, or the fraction STOP_SHARE of the lease if that is less. */
const STOP_MS = 1_000
const STOP_SHARE = 1 / 6

export interface DurableRunsOptions {
  readonly store: Store
  readonly broker: Broker
  readonly blobs: Blobs
  readonly presence?: ConstructorParameters<typeof Dispatcher>[2]
  readonly notifyOwner: FamilyOptions['notifyOwner']
  readonly log: Log
  readonly boot: string
  readonly role: PoolName
  readonly version: string
  readonly slots: number
  readonly leaseMs: number
  readonly isDraining: () => boolean
}

export interface ClaimedJob {
  readonly job: JobEnvelope
  readonly sink: DurableRun
}

interface Held {
  readonly attempt: number
  readonly sink: DurableRun
}

/**
 * Leases and claims of the durable jobs of one worker (docs/internals/design.md, Failure detection).
 *
 * The problem: a worker may hang, or lose its connection to the store, while another worker takes over its jobs. Two workers must not run one job for
 * long, and never both commit.
 *
 * The invariant: at most one worker holds the claim of a job, and every write names this worker and the attempt. The store rejects writes of workers
 * whose claim has ended. This worker also stops its runs before its lease expires.
 *
 * How it works:
 * 1. One lease per process, instead of one per job, is renewed every third of `leaseMs`. The response lists all jobs that the store assigns to this
 *    process.
 * 2. A run whose job is missing in the list is aborted. A run with a cancel request is cancelled.
 * 3. A listed job without a run belongs to a claim whose response was lost. That job is requeued. One list is processed at a time, because the
 *    lists of later renewals contain the same jobs, which would be published several times.
 * 4. If no renewal succeeds in time, then all runs stop and nothing is claimed. The process measures the time with its own monotonic clock, because
 *    possibly only this process cannot reach the store.
 *
 * Example: `leaseMs` is 15 s, so renewals are sent every 5 s. After a failed renewal, runs stop 14 s after the last successful one, a second before
 * another worker may claim their jobs.
 */
export class DurableRuns {
  readonly dispatcher: Dispatcher
  readonly #family: Family
  readonly #options: DurableRunsOptions
  readonly #held = new Map<string, Held>()
  readonly #served = new Map<string, string>()
  readonly #pulls = new Set<Promise<unknown>>()
  readonly #budget = new RetryBudget(0.1, 100)
  readonly #gone = new AbortController()
  #stopRenewing: (() => void) | undefined
  #renewing: Promise<void> = Promise.resolve()
  /** Settles when the list of the last renewal has been compared with the running jobs (rule 3). Undefined if no comparison is in progress. */
  #reconciling: Promise<void> | undefined
  #isStoreDown = false
  #stopAtMs = Number.NEGATIVE_INFINITY
  #lapseTimer: NodeJS.Timeout | undefined
  #lapses = 0

  private constructor(options: DurableRunsOptions) {
    this.#options = options
    this.dispatcher = new Dispatcher(options.broker, options.log, options.presence)
    this.#family = new Family({ ...options, dispatcher: this.dispatcher })
  }

  /** Acquires the lease, without which nothing can be claimed. If the store is unreachable, then renewals continue in the background. */
  static async open(options: DurableRunsOptions): Promise<DurableRuns> {
    const runs = new DurableRuns(options)
    await runs.#renew()
    runs.#stopRenewing = atAlignedInterval(options.leaseMs / 3, () => {
      runs.#renewing = runs.#renewing.then(() => runs.#renew())
    })
    return runs
  }

  get isLapsed(): boolean {
    return performance.now() >= this.#stopAtMs
  }

  /**
   * Claims at most `limit` queued jobs of a model, round robin over tenants (docs/internals/design.md, Fairness). Returns undefined if the store
   * failed. If the claim was committed in spite of the failure, then the claimed jobs are requeued later.
   */
  async claimNext(of: QueuedOf, kind: Kind, limit: number): Promise<ClaimedJob[] | undefined> {
    if (this.isLapsed) return undefined
    const { store, boot, log } = this.#options
    const queueKey = `${of.priority} ${workKey(of)}`
    const lapses = this.#lapses
    const pull = store.claimNext(of, boot, limit, this.#served.get(queueKey))
    this.#pulls.add(pull)
    try {
      const claimed = await pull
      // If the lease has expired since the claim was sent, then other workers may already run these jobs. The claim counts as failed.
      if (this.#lapses !== lapses) return undefined
      this.#serve(queueKey, claimed)
      return claimed.flatMap((dispatch) => this.#holdNext(dispatch, kind) ?? [])
    } catch (error) {
      log.info({ err: error, model: of.model }, 'jobs could not be claimed from the store; retrying')
      return undefined
    } finally {
      this.#pulls.delete(pull)
    }
  }

  async isWaiting(of: QueuedOf): Promise<boolean> {
    return await this.#options.store.tenants.isWaiting(of).catch(() => false)
  }

  release(job: JobEnvelope): void {
    if (this.#held.get(job.id)?.attempt === job.attempt) this.#held.delete(job.id)
  }

  /** Abandons pending writes and ends the runs. The scheduler requeues their jobs after the lease has expired. */
  giveUp(): void {
    this.#gone.abort()
  }

  /** Abandons pending writes and releases the lease, so that the scheduler requeues remaining jobs at once. */
  async close(): Promise<void> {
    this.#stopRenewing?.()
    clearTimeout(this.#lapseTimer)
    this.giveUp()
    await this.#renewing
    // A requeue may wait for Kafka for longer than the process may take to close, so this wait is bounded. After the lease is released, the
    // scheduler requeues the remaining jobs.
    let timer: NodeJS.Timeout | undefined
    const timeout = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, RECONCILE_MS)
    })
    await Promise.race([this.#reconciling, timeout])
    clearTimeout(timer)
    await this.#options.store.deregister(this.#options.boot).catch((error: unknown) => {
      this.#options.log.info({ err: error }, 'worker lease could not be released; it expires on its own')
    })
  }

  #hold(moved: TransitionResult, envelope: JobEnvelope, kind: Kind): ClaimedJob {
    const { store, blobs, boot, log } = this.#options
    this.#budget.earn()
    const { attempt, deadline_ms } = moved.job
    // The clock of the store may differ from the clock of this process, so only durations are compared.
    const remainingMs = deadline_ms - (moved.events.at(-1)?.at_ms ?? Date.now())
    const job = { ...envelope, attempt, deadline_ms: Date.now() + remainingMs }
    const more = { dispatcher: this.dispatcher, family: this.#family, budget: this.#budget, signal: this.#gone.signal }
    const options = { store, blobs, log, ...more }
    const sink = new DurableRun(job, kind, moved, boot, options)
    log.info({ ...jobFields(moved.job), worker: boot }, 'job started')
    sink.publishSoon(moved)
    // If an older attempt of this job still runs here, then its claim has ended. The older attempt is stopped now, because renewals stop
    // only attempts in `#held`, and the new attempt replaces it there.
    this.#held.get(job.id)?.sink.lose()
    this.#held.set(job.id, { attempt, sink })
    return { job, sink }
  }

  /** Starts to track a claimed job. An invalid job is skipped, so that it does not affect other jobs of the claim. */
  #holdNext(dispatch: Dispatch, kind: Kind): ClaimedJob | undefined {
    try {
      return this.#hold(dispatch, envelopeOf(dispatch.job, StoredRequest.parse(dispatch.request)), kind)
    } catch (error) {
      this.#options.log.error({ err: error, job_id: dispatch.job.id }, 'claimed job could not be read; job requeued')
      return undefined
    }
  }

  /** Advances the round robin over tenants. The next claim starts after the tenant served last, in the order of names. */
  #serve(queueKey: string, claimed: readonly Dispatch[]): void {
    const last = this.#served.get(queueKey) ?? ''
    const tenants = claimed.map(({ job }) => job.tenant).toSorted()
    const next = tenants.findLast((tenant) => tenant <= last) ?? tenants.at(-1)
    if (next === undefined) return
    this.#served.delete(queueKey)
    this.#served.set(queueKey, next)
    const [oldest = queueKey] = this.#served.keys()
    if (this.#served.size > TURNS_MAX) this.#served.delete(oldest)
  }

  async #renew(): Promise<void> {
    const { store, boot, role, version, slots, leaseMs, isDraining } = this.#options
    const before = [...this.#held]
    const isReconciling = this.#reconciling !== undefined
    const requestedAtMs = performance.now()
    try {
      const owned = await store.renew({ boot, role, slots, version, draining: isDraining(), leaseMs })
      if (this.#isStoreDown) this.#options.log.info({}, 'store reachable again')
      this.#isStoreDown = false
      this.#extendLease(requestedAtMs + leaseMs)
      this.#stopLost(before, owned)
      for (const job of owned) if (job.isCancelRequested || job.isToWrapUp) this.#cancel(job)
      // Reconciliation may wait for claims in progress. The next renewal must not wait too, so reconciliation runs in the background.
      if (isReconciling) return
      this.#reconciling = this.#reconcile(owned).finally(() => {
        this.#reconciling = undefined
      })
    } catch (error) {
      if (!this.#isStoreDown) this.#options.log.warn({ err: error }, 'worker lease could not be renewed; retrying')
      this.#isStoreDown = true
    }
  }

  /**
   * Extends the lease from the time at which the renewal was sent. The store extends it from the time of receipt, which is later. This process
   * therefore stops its runs before the lease in the store expires.
   */
  #extendLease(untilMs: number): void {
    if (this.isLapsed) this.#lapses++
    this.#stopAtMs = untilMs - Math.min(STOP_MS, this.#options.leaseMs * STOP_SHARE)
    clearTimeout(this.#lapseTimer)
    this.#lapseTimer = setTimeout(() => this.#lapse(), Math.max(0, this.#stopAtMs - performance.now()))
  }

  #lapse(): void {
    if (this.#held.size > 0)
      this.#options.log.warn({ jobs: this.#held.size }, 'worker lease not renewed in time; its durable jobs stop')
    for (const { sink } of this.#held.values()) sink.onStop('lapsed')
  }

  /** Stops runs whose jobs are missing in the response of a renewal. Jobs that were claimed after the request was sent are ignored. */
  #stopLost(before: [string, Held][], owned: OwnedJob[]): void {
    const attempts = new Map(owned.map(({ id, attempt }) => [id, attempt]))
    for (const [id, held] of before) {
      if (attempts.get(id) !== held.attempt && this.#held.get(id) === held) held.sink.lose()
    }
  }

  #cancel({ id, attempt, isToWrapUp: isPartial }: OwnedJob): void {
    const held = this.#held.get(id)
    if (held?.attempt === attempt) held.sink.onStop(isPartial ? 'partial' : 'cancelled')
  }

  /** Requeues jobs that the store assigned to this process by a claim whose response was lost. Never rejects. */
  async #reconcile(owned: readonly OwnedJob[]): Promise<void> {
    try {
      const isUnknown = ({ id }: OwnedJob) => !this.#held.has(id)
      // A claim whose response has not arrived yet may contain these jobs, so claims in progress are awaited first.
      if (owned.some(isUnknown)) await Promise.allSettled(this.#pulls)
      for (const job of owned.filter(isUnknown)) if (!this.#gone.signal.aborted) await this.#handBack(job)
    } catch (error) {
      this.#options.log.info(
        { err: error },
        'the response of a claim was lost, and the claimed jobs could not be requeued; retrying',
      )
    }
  }

  async #handBack({ id, attempt }: OwnedJob): Promise<void> {
    // This write has the number 0, so the store rejects it if the attempt has already written output. If there is output, then the response of the
    // claim did arrive, and the run has ended since.
    const { store, boot } = this.#options
    const moved = await store.handBack({ id, attempt, boot, chunk: 0 })
    if (!moved) return
    this.#options.log.warn(
      { job_id: id, attempt },
      'job requeued: the store assigned it to this worker, but the response was lost',
    )
    this.dispatcher.publishMoved(moved)
    void this.#family.onMoved(moved.job)
    const content = await store.findContent(moved.job.tenant, id)
    if (moved.job.state === 'queued' && content) await this.dispatcher.publishJob(moved.job, content.request)
  }
}
