import { type JobEnvelope, type PoolName, StoredRequest } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { RetryBudget } from '#shared/jobs/decide.ts'
import { Dispatcher, envelopeOf } from '#shared/jobs/durable/dispatch.ts'
import { Family, type FamilyOptions } from '#shared/jobs/durable/family.ts'
import { workKey } from '#shared/jobs/peers.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import type { OwnedJob } from '#shared/store/leases.ts'
import type { Dispatch, Moved, QueuedOf, Store } from '#shared/store/store.ts'
import { every } from '#shared/ticks.ts'
import { DurableRun } from './durable-run.ts'

/** Models and lanes of which it is remembered whose turn was last; the oldest are forgotten first. */
const TURNS_MAX = 1_000
/** Time that runs have to stop before their lease ends, and the share of the lease it is at most. */
const STOP_MS = 1_000
const STOP_SHARE = 1 / 6

/** What {@link DurableRuns.open} needs. */
export interface DurableRunsOptions {
  readonly store: Store
  readonly broker: Broker
  readonly blobs: Blobs
  /** Says whether workers have room for records; see {@link Dispatcher}. */
  readonly presence?: ConstructorParameters<typeof Dispatcher>[2]
  /** Says to the workers of children that these are to stop. */
  readonly notifyOwner: FamilyOptions['notifyOwner']
  readonly log: Log
  readonly boot: string
  readonly role: PoolName
  readonly version: string
  readonly slots: number
  readonly leaseMs: number
  readonly isDraining: () => boolean
}

/** A claimed job: its envelope with the attempt, and where the attempt writes. */
export interface ClaimedJob {
  readonly job: JobEnvelope
  readonly sink: DurableRun
}

/** One run in the hands of this worker, as the lease keeper sees it. */
interface Held {
  readonly attempt: number
  readonly sink: DurableRun
}

/**
 * The durable jobs of one worker: it keeps the process' lease in the store, claims, and compares what the store says is
 * ours with what runs here (docs/design.md, Leases).
 *
 * What the store took away is aborted, what it wants cancelled is cancelled, and what it gave us without our hearing of it
 * (a claim whose answer was lost) is handed back. When the lease could not be renewed, all runs stop before others may run
 * their jobs, and nothing is claimed: this process counts the time itself, for it may be the only one that cannot reach the
 * store. The jobs are handed back as soon as it can.
 */
export class DurableRuns {
  readonly dispatcher: Dispatcher
  readonly #family: Family
  readonly #options: DurableRunsOptions
  readonly #held = new Map<string, Held>()
  /** The tenant that was served last, of each kind, model and lane. */
  readonly #served = new Map<string, string>()
  readonly #pulls = new Set<Promise<unknown>>()
  readonly #budget = new RetryBudget(0.1, 100)
  readonly #gone = new AbortController()
  #stopRenewing: (() => void) | undefined
  #renewing: Promise<void> = Promise.resolve()
  #reconciling: Promise<unknown> = Promise.resolve()
  #isStoreDown = false
  /** By the monotonic clock of this process. */
  #stopAtMs = Number.NEGATIVE_INFINITY
  #lapseTimer: NodeJS.Timeout | undefined
  /** How often the lease was over before it was renewed. */
  #lapses = 0

  private constructor(options: DurableRunsOptions) {
    this.#options = options
    this.dispatcher = new Dispatcher(options.broker, options.log, options.presence)
    this.#family = new Family({ ...options, dispatcher: this.dispatcher })
  }

  /** Takes out the lease, without which nothing can be claimed. A store that is down is waited for while jobs come. */
  static async open(options: DurableRunsOptions): Promise<DurableRuns> {
    const runs = new DurableRuns(options)
    await runs.#renew()
    runs.#stopRenewing = every(options.leaseMs / 3, () => {
      runs.#renewing = runs.#renewing.then(() => runs.#renew())
    })
    return runs
  }

  /** The lease is over, or about to be: nothing may run. */
  get isLapsed(): boolean {
    return performance.now() >= this.#stopAtMs
  }

  /**
   * Claims queued jobs of a model for this worker, at most `limit`, in turn of their tenants (docs/design.md, Turns). Undefined
   * when the store cannot say: should it have given some all the same, they are handed back.
   */
  async claimNext(of: QueuedOf, kind: Kind, limit: number): Promise<ClaimedJob[] | undefined> {
    if (this.isLapsed) return undefined
    const { store, boot, log } = this.#options
    const turns = `${of.priority} ${workKey(of)}`
    const lapses = this.#lapses
    const pull = store.claimNext(of, boot, limit, this.#served.get(turns))
    this.#pulls.add(pull)
    try {
      const claimed = await pull
      // Others may run by now what was claimed under a lease that has ended since.
      if (this.#lapses !== lapses) return undefined
      this.#serve(turns, claimed)
      return claimed.flatMap((dispatch) => this.#holdNext(dispatch, kind) ?? [])
    } catch (error) {
      log.info({ err: error, model: of.model }, 'waiting jobs not claimed; trying again')
      return undefined
    } finally {
      this.#pulls.delete(pull)
    }
  }

  /** Whether jobs of a model wait; false while the store cannot say. */
  async isWaiting(of: QueuedOf): Promise<boolean> {
    return await this.#options.store.tenants.isWaiting(of).catch(() => false)
  }

  /** The attempt of a claimed job has ended. */
  release(job: JobEnvelope): void {
    if (this.#held.get(job.id)?.attempt === job.attempt) this.#held.delete(job.id)
  }

  /** Gives up what cannot be written: the runs end, and their jobs are reaped. */
  giveUp(): void {
    this.#gone.abort()
  }

  /** Gives up what could not be written, and says that this process is gone: what it still owns may be reaped. */
  async close(): Promise<void> {
    this.#stopRenewing?.()
    clearTimeout(this.#lapseTimer)
    this.giveUp()
    await this.#renewing
    await this.#reconciling
    await this.#options.store.goodbye(this.#options.boot).catch((error: unknown) => {
      this.#options.log.info({ err: error }, 'goodbye not stored; the lease runs out')
    })
  }

  #hold(moved: Moved, envelope: JobEnvelope, kind: Kind): ClaimedJob {
    const { store, blobs, boot, log } = this.#options
    this.#budget.earn()
    const { attempt, deadline_ms } = moved.job
    // The store's clock may differ from ours: only durations are compared.
    const remainingMs = deadline_ms - (moved.events.at(-1)?.at_ms ?? Date.now())
    const job = { ...envelope, attempt, deadline_ms: Date.now() + remainingMs }
    const more = { dispatcher: this.dispatcher, family: this.#family, budget: this.#budget, signal: this.#gone.signal }
    const options = { store, blobs, log, ...more }
    const sink = new DurableRun(job, kind, moved, boot, options)
    sink.publishSoon(moved)
    // An older attempt that still runs here was taken away: nothing would tell it once it is no longer held.
    this.#held.get(job.id)?.sink.lose()
    this.#held.set(job.id, { attempt, sink })
    return { job, sink }
  }

  /** One of many: what is wrong with it is its own. */
  #holdNext(dispatch: Dispatch, kind: Kind): ClaimedJob | undefined {
    try {
      return this.#hold(dispatch, envelopeOf(dispatch.job, StoredRequest.parse(dispatch.request)), kind)
    } catch (error) {
      this.#options.log.error({ err: error, job_id: dispatch.job.id }, 'claimed job not understood; handed back')
      return undefined
    }
  }

  /** Tenants had their turns: in their order, round and round, from the one after the last. */
  #serve(turns: string, claimed: readonly Dispatch[]): void {
    const last = this.#served.get(turns) ?? ''
    const tenants = claimed.map(({ job }) => job.tenant).toSorted()
    const next = tenants.findLast((tenant) => tenant <= last) ?? tenants.at(-1)
    if (next === undefined) return
    this.#served.delete(turns)
    this.#served.set(turns, next)
    const [oldest = turns] = this.#served.keys()
    if (this.#served.size > TURNS_MAX) this.#served.delete(oldest)
  }

  async #renew(): Promise<void> {
    const { store, boot, role, version, slots, leaseMs, isDraining } = this.#options
    const before = [...this.#held]
    const askedAtMs = performance.now()
    try {
      const owned = await store.renew({ boot, role, slots, version, draining: isDraining(), leaseMs })
      if (this.#isStoreDown) this.#options.log.info({}, 'store is back')
      this.#isStoreDown = false
      this.#lives(askedAtMs + leaseMs)
      this.#stopLost(before, owned)
      for (const job of owned) if (job.isCancelRequested || job.isToWrapUp) this.#cancel(job)
      // It waits for claims under way, and must not keep the lease waiting.
      const reconciled = this.#reconcile(owned).catch((error: unknown) => {
        this.#options.log.info({ err: error }, 'jobs claimed without an answer not handed back; trying again')
      })
      this.#reconciling = Promise.all([this.#reconciling, reconciled])
    } catch (error) {
      if (!this.#isStoreDown) this.#options.log.warn({ err: error }, 'lease not renewed')
      this.#isStoreDown = true
    }
  }

  /** The lease holds until then, at least: the store counts from a later moment. */
  #lives(untilMs: number): void {
    if (this.isLapsed) this.#lapses++
    this.#stopAtMs = untilMs - Math.min(STOP_MS, this.#options.leaseMs * STOP_SHARE)
    clearTimeout(this.#lapseTimer)
    this.#lapseTimer = setTimeout(() => this.#lapse(), Math.max(0, this.#stopAtMs - performance.now()))
  }

  #lapse(): void {
    if (this.#held.size > 0) this.#options.log.warn({ jobs: this.#held.size }, 'lease not renewed in time; runs stop')
    for (const { sink } of this.#held.values()) sink.onStop('lapsed')
  }

  /** Only what was held before the store was asked can be missing in its answer. */
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

  /** Hands back what the store gave us without our hearing of it. */
  async #reconcile(owned: readonly OwnedJob[]): Promise<void> {
    const isUnknown = ({ id }: OwnedJob) => !this.#held.has(id)
    if (!owned.some(isUnknown)) return
    // Their answers may say that the job is ours.
    await Promise.allSettled(this.#pulls)
    for (const job of owned.filter(isUnknown)) await this.#handBack(job)
  }

  async #handBack({ id, attempt }: OwnedJob): Promise<void> {
    // Chunk 0: it is refused when the job has written, so it was ours and has ended meanwhile.
    const { store, boot } = this.#options
    const moved = await store.handBack({ id, attempt, boot, chunk: 0 })
    if (!moved) return
    this.#options.log.warn({ job_id: id, attempt }, 'job claimed without an answer; handed back')
    this.dispatcher.publishMoved(moved)
    void this.#family.onMoved(moved.job)
    const content = await store.findContent(moved.job.tenant, id)
    if (moved.job.state === 'queued' && content) await this.dispatcher.publishJob(moved.job, content.request)
  }
}
