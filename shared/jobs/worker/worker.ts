/*
 * One worker of a pool (docs/internals/protocol.md, Records).
 *
 * 1. Takes at most as many records as there are free slots (`poller.ts`).
 * 2. Claims the job: sends `started` to the ingress, or updates the job's row in the store (`claims.ts`).
 * 3. Acknowledges the record at once. Records are therefore in flight for milliseconds, even if the job runs for an hour.
 * 4. Runs the attempt (`attempt.ts`) and reports its events (`reporter.ts`).
 *
 * Jobs of low priority have their own lane (`shared/capacity/slots.ts`). Rejected alternative: acknowledging at the end of the job. The broker would
 * then redeliver long jobs, and Kafka drops a record after five deliveries by default.
 */

import { hostname } from 'node:os'
import type { Priority } from '#schemas/durable-job.ts'
import type { ControlRecord } from '#schemas/event.ts'
import type { AttachedEnvelope, JobEnvelope, PoolName } from '#schemas/job.ts'
import type { EngineConfig } from '#schemas/models.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker, Delivery } from '#shared/broker/broker.ts'
import { type Capacity, type ConcurrencyLimit, type ModelBulkhead, ModelBulkheads } from '#shared/capacity/bulkheads.ts'
import type { Pauses } from '#shared/capacity/capacity.ts'
import { Semaphore } from '#shared/capacity/semaphore.ts'
import { ParkedCalls } from '#shared/capacity/slots.ts'
import { missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { UpstreamFleet } from '#shared/engines/upstream/limit-partition.ts'
import { addressesOf, CALLS_PER_SERVER_MAX } from '#shared/engines/upstream/servers.ts'
import { cancelsIn } from '#shared/jobs/durable/dispatch.ts'
import { AttemptTimes } from '#shared/jobs/fleet-work.ts'
import { ownerOf } from '#shared/jobs/owner.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { jobsTopic, readJob } from '#shared/jobs/records.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { newId } from '#shared/lib/id.ts'
import type { Log } from '#shared/log/log.ts'
import type { Models } from '#shared/models/models.ts'
import { handlersOf } from '#shared/ports/extensions.ts'
import type { Ports } from '#shared/ports.ts'
import { preparingIn } from '#shared/prepare-progress.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { Starvation } from '#shared/process/starvation.ts'
import type { Store } from '#shared/store/store.ts'
import { Attempts, type PoolObserver } from './attempt.ts'
import { Calls } from './calls.ts'
import { Claims } from './claims.ts'
import { DurableRuns } from './durable-runs.ts'
import { type Lane, Poller } from './poller.ts'
import { Reporter } from './reporter.ts'
import { UnsupportedJobs } from './unsupported-jobs.ts'

/** Time in ms without heartbeats after which this worker treats an ingress as dead, and stops the attached jobs of that ingress. */
const INGRESS_LOST_MS = 10_000
/** Lanes of a pool. Without a store, no job has low priority. */
const LANES: readonly Priority[] = ['normal', 'low']

const UNLIMITED: Capacity = { models: null, concurrency_limits: [], backlog: [] }

export interface WorkerDefinition {
  readonly name: PoolName
  readonly slots: number
  readonly kinds: Readonly<Record<string, Handler>>
  readonly models?: Iterable<string>
  readonly concurrencyLimits?: readonly ConcurrencyLimit[]
  /**
   * Number of models that share the slots of the worker. If there are several, then the slots are divided among the models with waiting calls
   * (`shared/capacity/bulkheads.ts`). Default: 1.
   */
  readonly modelCount?: number
}

interface WorkerOptions {
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly observer: PoolObserver
  readonly version: string
  readonly store: Store | undefined
  readonly leaseMs: number
  /** Time in ms for which jobs of an unknown kind are requeued. Default: 5,000. */
  readonly requeueForMs?: number | undefined
  /** Memory budget for bodies from blobs, in bytes (see `fetchBodyWithin`). */
  readonly bodyBudgetBytes: number
  readonly upstreams?: UpstreamFleet | undefined
  readonly pauses?: Pauses | undefined
  /** Returns the models that this worker is still downloading or building, and whose calls wait. Default: none. */
  readonly preparing?: (() => NonNullable<Capacity['preparing']>) | undefined
  /** Called if the consume loop failed permanently: the process must exit. */
  readonly onFatal: (error: unknown) => void
}

export class Worker {
  readonly boot = newId('wrk_', 16)
  presence!: Presence
  readonly #definition: WorkerDefinition
  readonly #options: WorkerOptions
  readonly #reporter: Reporter
  readonly #bulkheads: ModelBulkheads
  readonly #poller: Poller
  readonly #parkedCalls: ParkedCalls<Lane, ModelBulkhead>
  readonly #attempts: Attempts
  readonly #unsupported: UnsupportedJobs
  readonly #calls: Calls
  readonly #times = new AttemptTimes()
  #durable: DurableRuns | undefined
  #leaveUpstreams: (() => void) | undefined
  #claims: Claims | undefined

  private constructor(definition: WorkerDefinition, options: WorkerOptions) {
    const { blobs, broker, bodyBudgetBytes, log, requeueForMs } = options
    const observer: PoolObserver = {
      ...options.observer,
      onEnd: (job, end, durationMs) => {
        if (end === 'completed') this.#times.ended(job.model, durationMs)
        options.observer.onEnd(job, end, durationMs)
      },
    }
    const { name: pool, slots } = definition
    this.#definition = definition
    this.#options = options
    const bodyBudget = new Semaphore({ permits: bodyBudgetBytes })
    const reporter = new Reporter(broker, this.boot, log)
    const bulkheads = new ModelBulkheads(definition)
    const poller = new Poller({
      slots,
      onDelivery: this.#onDelivery,
      extra: (free) => bulkheads.extra(free),
      hasFreePeer: () => this.#hasFreePeer(),
      // A freed slot goes to durable jobs, then to parked calls, and then to new records of the queue. Durable jobs get at most half of the
      // slots while attached calls are expected. A parked call is already on this worker, and waits for a permit of its model.
      onSlotReleased: () => {
        this.#claims?.pull()
        this.#parkedCalls.admitNext()
        // A draining worker publishes its capacity at once, because an operator waits for the report that the worker is
        // empty.
        if (bulkheads.isOutdated || poller.isDraining) this.presence.publishCapacity()
      },
    })
    const parkedCalls = new ParkedCalls((bulkhead: ModelBulkhead, lane: Lane) =>
      bulkheads.slotsFor(bulkhead, poller.freeOf(lane)),
    )
    const attempts = new Attempts({
      parkedCalls,
      boot: this.boot,
      blobs,
      bodyBudget,
      observer,
      reporter,
      bulkheads,
      poller,
    })
    this.#parkedCalls = parkedCalls
    this.#reporter = reporter
    this.#bulkheads = bulkheads
    this.#poller = poller
    this.#attempts = attempts
    this.#unsupported = new UnsupportedJobs({
      ...{ broker, log, pool, poller, attempts, reporter, requeueForMs, observer },
    })
    this.#calls = new Calls({ parkedCalls, attempts, broker, log, pool, worker: this, reporter, bulkheads, poller })
  }

  static async open(definition: WorkerDefinition, options: WorkerOptions): Promise<Worker> {
    const worker = new Worker(definition, options)
    const { broker, onFatal, store } = options
    await worker.#join()
    worker.#leaveUpstreams = options.upstreams?.join(definition.name, {
      boot: worker.boot,
      membersOf: (model) => worker.presence.workersWithModel(definition.name, model),
    })
    if (store) await worker.#openClaims(store)
    const lanes: Pick<Lane, 'priority' | 'consumer'>[] = []
    for (const priority of store ? LANES : LANES.slice(0, 1)) {
      lanes.push({ priority, consumer: await broker.openQueue(jobsTopic(definition.name, priority)) })
    }
    worker.#poller.start(lanes, onFatal)
    return worker
  }

  /** Number of slots in use: running attempts, claims in progress, and jobs that wait to be requeued. */
  get running(): number {
    return this.#poller.running
  }

  get parkedCalls(): number {
    return this.#parkedCalls.size
  }

  get isDraining(): boolean {
    return this.#poller.isDraining
  }

  get requeued(): number {
    return this.#calls.requeued
  }

  get taken(): number {
    return this.#poller.taken
  }

  get idleMs(): number {
    return this.#poller.idleMs
  }

  async change(own: Pick<WorkerDefinition, 'models' | 'concurrencyLimits' | 'modelCount'>): Promise<void> {
    this.#bulkheads.change(own)
    this.presence.publishCapacity()
    this.#poller.free()
    await this.#attempts.untilOver()
  }

  /** Stops polling and waits for running jobs. When `signal` aborts, the remaining jobs return to their owners. A second call waits as well. */
  async drain(signal: AbortSignal): Promise<void> {
    this.#claims?.stop()
    await this.#poller.stop()
    const waiting = () => this.#parkedCalls.size + this.#calls.delayed
    const handBackAll = () => {
      // The drain time is over. If the store is unreachable, then pending writes are abandoned, so that the process can exit.
      if (this.#options.store?.isReachable === false) this.#durable?.giveUp()
      const left = { jobs: this.#poller.running, waiting: waiting() }
      if (left.jobs + left.waiting > 0) this.#options.log.info(left, 'drain timeout passed; requeueing remaining jobs')
      this.#attempts.handBackAll()
    }
    if (signal.aborted) handBackAll()
    else signal.addEventListener('abort', handBackAll, { once: true })
    await this.#poller.untilEmpty(() => waiting() === 0)
    signal.removeEventListener('abort', handBackAll)
  }

  async close(): Promise<void> {
    await this.drain(AbortSignal.abort())
    await this.#poller.close()
    await this.#durable?.close()
    await this.presence.close()
    this.#leaveUpstreams?.()
    this.#reporter.close()
  }

  async #join(): Promise<void> {
    const { broker, log, version } = this.#options
    const { name: role, slots } = this.#definition
    this.presence = await Presence.open({
      broker,
      log,
      lostMs: INGRESS_LOST_MS,
      self: {
        boot: this.boot,
        role,
        version,
        slots: () => slots,
        running: () => this.running,
        isDraining: () => this.#poller.isDraining,
        capacity: () => this.#capacity(),
      },
      listener: {
        onLost: (peer) => this.#attempts.onPeerLost(peer.boot),
        onCapacity: (peer) => this.#onCapacity(peer),
        onControl: (record) => this.#onControl(record),
      },
    })
  }

  async #openClaims(store: Store): Promise<void> {
    const { blobs, broker, log, version, leaseMs, pauses } = this.#options
    const { name: pool, slots, kinds } = this.#definition
    const isDraining = () => this.#poller.isDraining
    const lease = { boot: this.boot, role: pool, version, slots, leaseMs, isDraining }
    const [bulkheads, poller, attempts, presence] = [this.#bulkheads, this.#poller, this.#attempts, this.presence]
    const runs = await DurableRuns.open({
      ...{ store, blobs, broker, log, ...lease },
      presence: () => presence,
      notifyOwner: cancelsIn(presence),
    })
    this.#durable = runs
    this.#claims = new Claims({ pool, kinds, log, presence, runs, bulkheads, poller, attempts, pauses })
  }

  #capacity(): Capacity {
    const capacity = this.#bulkheads.capacityToPublish() ?? UNLIMITED
    const found = this.#options.upstreams?.limitsToPublish(capacity.models ?? []) ?? []
    const failing = this.#options.upstreams?.failingModels(capacity.models ?? []) ?? []
    const prompts = this.#options.upstreams?.promptTokensOf(capacity.models ?? []) ?? []
    const preparing = this.#options.preparing?.() ?? []
    const self = { parked_calls: this.parkedCalls, host: hostname(), pid: process.pid }
    const work = this.#times.rows(this.#definition.name, this.#bulkheads.running)
    return {
      ...capacity,
      ...self,
      ...(found.length > 0 && { adaptive_limits: found }),
      ...(failing.length > 0 && { open_circuits: failing }),
      ...(prompts.length > 0 && { prompt_tokens: prompts }),
      ...(preparing.length > 0 && { preparing }),
      ...(work.length > 0 && { work }),
    }
  }

  #onControl(record: ControlRecord): void {
    this.#attempts.onControl(record)
    this.#options.pauses?.onControl(record)
    if (record.type === 'pause_work' && !record.paused) this.#claims?.pull()
    if (record.type === 'jobs_waiting' && record.pool === this.#definition.name) this.#onWaiting(record.backlog)
    if (record.type !== 'drain' || record.boot !== this.boot || record.drained === this.isDraining) return
    const message = record.drained
      ? 'worker drains and takes no new jobs'
      : 'worker takes jobs again, because its drain was undone'
    this.#options.log.info({ worker: this.boot, is_draining: record.drained }, message)
    this.#poller.setDrained(record.drained)
  }

  readonly #onDelivery = (lane: Lane, delivery: Delivery): void => {
    const job = (delivery.payload as JobEnvelope | undefined) ?? readJob(delivery.value)
    const { kinds } = this.#definition
    const kind = job && Object.hasOwn(kinds, job.kind) ? kinds[job.kind] : undefined
    // If this version does not support the kind of the job, then the record is requeued, because another worker may support the kind.
    if (!job || !kind) this.#unsupported.onDelivery(lane, delivery)
    else if (isAttached(job)) this.#calls.onDelivery(lane, delivery, job, kind)
    else if (this.#claims) this.#claims.onDelivery(lane, delivery, job, kind)
    else delivery.acknowledge()
  }

  #hasFreePeer(): boolean {
    return this.presence
      .workers(this.#definition.name)
      .some(({ boot, draining, isSuspected, slots, running, capacity }) => {
        const isFree = boot !== this.boot && !draining && !isSuspected && running < slots
        return isFree && this.#bulkheads.isCoveredBy(capacity?.models)
      })
  }

  /** Called when a worker of this pool has published its capacity. Shared upstream limits and waiting jobs may have changed. */
  #onCapacity({ boot, role, capacity }: Peer): void {
    if (role !== this.#definition.name || !capacity) return
    this.#options.upstreams?.applyPublished(boot === this.boot ? [] : (capacity.adaptiveLimits ?? []))
    this.#parkedCalls.admitNext()
    if (boot !== this.boot) this.#onWaiting(capacity.backlog)
  }

  #onWaiting(all: Capacity['backlog']): void {
    const waiting = all.filter(({ kind }) => Object.hasOwn(this.#definition.kinds, kind))
    if (this.#bulkheads.addWaiting(waiting)) this.#claims?.pull()
  }
}

function isAttached(job: JobEnvelope): job is AttachedEnvelope {
  return job.reply !== undefined
}

/** Time in ms without an iteration of the consume loop after which the worker counts as stuck. */
const IDLE_MS_MAX = 10_000

interface Pool extends Omit<WorkerDefinition, keyof OwnModels> {
  readonly own?: () => OwnModels
  /** Closes the engines of removed models when `untilOver` resolves, which is after the end of all present attempts. */
  readonly retire?: (untilOver: Promise<void>) => Promise<void>
}

/**
 * Starts one worker of a pool as a service, with metrics and health, and applies model changes.
 *
 * @param close Closes the resources of the kinds after the last attempt
 * @param problems Health problems of the kinds, as sentences
 */
export async function startWorker(
  ports: Ports,
  { own: ownModels, retire, ...pool }: Pool,
  close: () => Promise<void> = async () => {},
  problems: () => string[] = () => [],
): Promise<Service> {
  const { config, log, metrics, broker, blobs, version, onFatal } = ports
  const added = handlersOf(ports.extensions, pool)
  const definition = { ...pool, kinds: { ...pool.kinds, ...added } }
  const own =
    ownModels &&
    (() => {
      const models = ownModels()
      return { ...models, models: [...models.models, ...Object.keys(added)] }
    })
  const store = ports.store && ownerOf(ports.store)
  const { name, slots } = definition
  warnOfKeys(ports, name)
  const observer: PoolObserver = {
    onDeadLetter: () => metrics.deadLetters.inc({ pool: name }),
    onEnd: (job, end, durationMs) => {
      // The jobs of batches have no model of their own: their model field contains the fixed text `batch`. The label is empty instead.
      const model = job.pool === 'batches' ? '' : job.model
      metrics.attempts.inc({ pool: job.pool, model, outcome: end })
      metrics.attemptSeconds.observe({ pool: job.pool, model }, durationMs / 1_000)
    },
  }
  const { jobLeaseMs: leaseMs, bodyBudgetBytes } = config
  const { pauses, preparations, upstreams } = ports
  const preparing = () => preparingIn(ports, name)
  const capacity = { pauses, preparing, upstreams }
  const options = { broker, blobs, log, version, store, leaseMs, bodyBudgetBytes, ...capacity, onFatal, observer }
  const worker = await Worker.open({ ...definition, ...own?.() }, options)
  const forgetModels = ports.models.onChange(() => {
    const untilOver = own ? worker.change(own()) : Promise.resolve()
    retire?.(untilOver).catch((error: unknown) =>
      log.warn({ err: error, pool: name }, 'engine of a removed model stays in memory until the worker restarts'),
    )
  })
  const forgetPreparations = preparations.onChange(() => worker.presence.publishCapacity())
  metrics.deadLetters.inc({ pool: name }, 0)
  metrics.gauge('sluice_pool_running', { pool: name }, () => worker.running)
  metrics.gauge('sluice_worker_parked_calls', { pool: name }, () => worker.parkedCalls)
  metrics.gauge('sluice_worker_requeued_total', { pool: name }, () => worker.requeued)
  metrics.gauge('sluice_pool_slots', { pool: name }, () => slots)
  metrics.gauge('sluice_queue_unacked_records', { pool: name }, () => broker.lag(`jobs.${name}`))
  const starved = new Starvation(worker, slots, () => broker.lag(`jobs.${name}`))
  return {
    name,
    drain: (signal) => worker.drain(signal),
    problems: () => {
      const isStuck = worker.idleMs > IDLE_MS_MAX
      return [
        ...(isStuck
          ? [`The ${name} worker does not take jobs from its queue.`]
          : worker.isDraining
            ? []
            : starved.problems(name)),
        ...problems(),
      ]
    },
    async close() {
      forgetModels()
      forgetPreparations()
      starved.close()
      await worker.close()
      await close()
    },
  }
}

function warnOfKeys({ models, config, log }: Ports, pool: string): void {
  for (const model of models.served.models) {
    const variable = model.pool === pool ? missingKeyOf(model, config.env) : undefined
    if (variable)
      log.warn(
        { model: model.id, variable },
        'environment variable named by api_key_env or cache_salt_env is not set; calls to this model fail',
      )
  }
}

type OwnModels = Required<Pick<WorkerDefinition, 'models' | 'concurrencyLimits' | 'modelCount'>>

interface OwnModelsOptions {
  readonly pool: PoolName
  readonly kinds: readonly string[]
  readonly slots: number
  /** True if several jobs are combined into one engine call (batching). An engine's concurrency limit then does not apply to jobs. */
  readonly isBatched?: boolean
  readonly placesOf?: (model: string) => number | undefined
}

/**
 * Returns the models that a worker of a pool can run, each with its concurrency limit. The limit is that of the engine, but at most the number of
 * slots. If a worker has a single model with as many permits as slots, then the limit has no effect and is left out.
 */
export function modelsOf({ models }: Models, options: OwnModelsOptions): OwnModels {
  const { pool, kinds, slots, isBatched = false, placesOf } = options
  const own = models.filter((model) => model.pool === pool)
  const isSet = new Set(own.filter((model) => model.interactive_slots !== undefined).map(({ id }) => id))
  const concurrencyLimits = own.flatMap(({ id, engine, interactive_slots: interactive = 1 }) => {
    const capacity = isBatched ? slots : Math.min(slots, callsAtOnce(engine))
    const currentLimit = placesOf && (() => placesOf(id))
    return kinds.map(
      (kind): ConcurrencyLimit => ({
        ...{ kind, model: id, capacity, interactive },
        ...(currentLimit && { currentLimit }),
      }),
    )
  })
  return {
    models: own.flatMap(({ id, aliases }) => [id, ...aliases]),
    concurrencyLimits: concurrencyLimits.filter(
      ({ capacity, model }) => capacity < slots || placesOf || own.length > 1 || isSet.has(model),
    ),
    modelCount: own.length,
  }
}

/** Returns the maximum concurrent calls of one engine in one worker. Further calls wait in the engine's queue. */
function callsAtOnce(engine: EngineConfig): number {
  switch (engine.type) {
    case 'llama':
      return engine.parallel
    case 'openai':
    case 'anthropic':
      return (engine.concurrency ?? CALLS_PER_SERVER_MAX) * addressesOf(engine).length
    case 'local':
      return engine.concurrency
    case 'echo':
    case 'research':
      return Number.POSITIVE_INFINITY
  }
}
