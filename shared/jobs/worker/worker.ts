import { hostname } from 'node:os'
import type { Priority } from '#schemas/durable-job.ts'
import type { ControlRecord } from '#schemas/event.ts'
import type { AttachedEnvelope, JobEnvelope, PoolName } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker, Delivery } from '#shared/broker/broker.ts'
import type { UpstreamFleet } from '#shared/engines/upstream/share.ts'
import { newId } from '#shared/id.ts'
import { cancelsIn } from '#shared/jobs/durable/family.ts'
import type { Pauses } from '#shared/jobs/pauses.ts'
import type { Capacity, Peer } from '#shared/jobs/peers.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { jobOfPayload, readJob } from '#shared/jobs/records.ts'
import { jobsTopic } from '#shared/jobs/topics.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import type { Store } from '#shared/store/store.ts'
import { Attempts, type PoolObserver } from './attempts.ts'
import { BodyBudget } from './body-budget.ts'
import { type ModelBound, ModelBulkheads } from './bulkheads/bulkheads.ts'
import { ParkedCalls } from './bulkheads/parked-calls.ts'
import { Calls } from './calls.ts'
import { Claims } from './claims.ts'
import { DurableRuns } from './durable-runs.ts'
import { type Lane, Poller } from './poller.ts'
import { Reporter } from './reporter/reporter.ts'
import { UnsupportedJobs } from './unsupported-jobs.ts'

/** Silence of an ingress after which the jobs it held are nobody's. */
const INGRESS_LOST_MS = 10_000
/** Lanes of a pool; without a store there are no jobs of low priority. */
const LANES: readonly Priority[] = ['normal', 'low']

/** What a worker can start whose slots alone bound it. */
const UNBOUNDED: Capacity = { models: null, bounds: [], waiting: [] }

/** What a worker is: its pool, its kinds of job, and how many jobs it runs at once. */
export interface WorkerDefinition {
  readonly name: PoolName
  readonly slots: number
  readonly kinds: Readonly<Record<string, Handler>>
  /** Ids and aliases of the models it can run; default: whichever is asked for. */
  readonly models?: Iterable<string>
  /** Models of which fewer jobs can run at once than there are slots. */
  readonly bounds?: readonly ModelBound[]
  /** Models that share its slots (`bulkheads/lending.ts`); default: one. */
  readonly modelCount?: number
}

/** What {@link Worker.open} needs. */
export interface WorkerOptions {
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly observer: PoolObserver
  readonly version: string
  /** Arbiter of durable jobs; undefined where there are none. */
  readonly store: Store | undefined
  /** How long a silent worker keeps its durable jobs. */
  readonly leaseMs: number
  /** How long jobs that this worker does not know are passed on; default: {@link UnsupportedJobs}'s. */
  readonly passOnMs?: number | undefined
  /** Memory that bodies from blobs may take here; see {@link BodyBudget}. */
  readonly bodyRoomBytes: number
  /** Limits of servers that it shares with other workers; default: none. */
  readonly upstreams?: UpstreamFleet | undefined
  /** Work that is not started for now; default: none. */
  readonly pauses?: Pauses | undefined
  /** The loop broke for good: the process must end. */
  readonly onFatal: (error: unknown) => void
}

/**
 * One worker of a pool (docs/design.md, Topics and records).
 *
 * Takes no more jobs than there are free slots (`poller.ts`), claims (says `started`, or takes the job's row in the store:
 * `claims.ts`), acknowledges as soon as that is out, runs (`attempts.ts`), reports. So a record is held for milliseconds only,
 * and a long job holds nothing at the broker. Jobs of low priority wait in a lane of their own (`lanes.ts`).
 */
export class Worker {
  readonly boot = newId('wrk_', 16)
  presence!: Presence
  readonly #definition: WorkerDefinition
  readonly #options: WorkerOptions
  readonly #reporter: Reporter
  readonly #rooms: ModelBulkheads
  readonly #taking: Poller
  readonly #aside: ParkedCalls
  readonly #attempts: Attempts
  readonly #foreign: UnsupportedJobs
  readonly #calls: Calls
  #durable: DurableRuns | undefined
  #leaveUpstreams: (() => void) | undefined
  #claims: Claims | undefined

  private constructor(definition: WorkerDefinition, options: WorkerOptions) {
    const { blobs, broker, bodyRoomBytes, log, observer, passOnMs } = options
    const { name: pool, slots } = definition
    this.#definition = definition
    this.#options = options
    const bodyRoom = new BodyBudget(bodyRoomBytes)
    const reporter = new Reporter(broker, this.boot, log)
    const rooms = new ModelBulkheads(definition)
    const taking = new Poller({
      slots,
      onDelivery: (lane, delivery) => this.#onDelivery(lane, delivery),
      extra: (free) => rooms.extra(free),
      hasFreePeer: () => this.#hasFreePeer(),
      // Durable jobs take their share at once, calls that wait aside what is left, and the queue what they leave.
      onFree: () => {
        this.#claims?.pull()
        this.#aside.letIn()
        // Who drains it waits until it holds nothing more.
        if (rooms.hasNews || taking.isHeld) this.presence.publishCapacity()
      },
    })
    const aside = new ParkedCalls(rooms, taking)
    const attempts = new Attempts({ aside, boot: this.boot, blobs, bodyRoom, observer, reporter, rooms, taking })
    this.#aside = aside
    this.#reporter = reporter
    this.#rooms = rooms
    this.#taking = taking
    this.#attempts = attempts
    this.#foreign = new UnsupportedJobs({ broker, log, pool, taking, attempts, reporter, passOnMs })
    const presence = () => this.presence
    this.#calls = new Calls({ ...{ aside, attempts, broker, log, pool, presence, reporter, rooms, taking } })
  }

  /** Joins the pool and starts to take jobs. */
  static async open(definition: WorkerDefinition, options: WorkerOptions): Promise<Worker> {
    const worker = new Worker(definition, options)
    const { broker, onFatal, store } = options
    await worker.#join()
    worker.#leaveUpstreams = options.upstreams?.join(definition.name, {
      boot: worker.boot,
      membersOf: (model) => worker.presence.knowing(definition.name, model),
    })
    if (store) await worker.#openClaims(store)
    const lanes: Pick<Lane, 'priority' | 'consumer'>[] = []
    for (const priority of store ? LANES : LANES.slice(0, 1)) {
      lanes.push({ priority, consumer: await broker.openQueue(jobsTopic(definition.name, priority)) })
    }
    worker.#taking.start(lanes, onFatal)
    return worker
  }

  /** Attempts that run now, claims, and jobs that are passed on to other workers: each takes a slot. */
  get running(): number {
    return this.#taking.running
  }

  /** Calls that this worker holds without a slot: their models have no place for them. */
  get aside(): number {
    return this.#aside.size
  }

  /** It takes nothing more: the process ends, or an operator drains it. */
  get isDraining(): boolean {
    return this.#taking.isHeld
  }

  /** Calls of other workers' models that this one has passed on so far, each time counted. */
  get passed(): number {
    return this.#calls.passed
  }

  /** Records taken so far. */
  get taken(): number {
    return this.#taking.taken
  }

  /** See {@link Poller.idleMs}. */
  get idleMs(): number {
    return this.#taking.idleMs
  }

  /** It has other models from now on. Resolves when all that ran until now has ended. */
  async change(own: Pick<WorkerDefinition, 'models' | 'bounds' | 'modelCount'>): Promise<void> {
    this.#rooms.change(own)
    this.presence.publishCapacity()
    this.#taking.free()
    await this.#attempts.untilOver()
  }

  /**
   * Takes nothing new and waits for what runs; at `signal` hands back what still runs. A second call waits as well.
   */
  async drain(signal: AbortSignal): Promise<void> {
    this.#claims?.stop()
    await this.#taking.stop()
    const handBackAll = () => {
      // Its time is over: a store that is away must not keep the process from ending.
      if (this.#options.store?.isReachable === false) this.#durable?.giveUp()
      this.#attempts.handBackAll()
    }
    if (signal.aborted) handBackAll()
    else signal.addEventListener('abort', handBackAll, { once: true })
    await this.#taking.untilEmpty(() => this.#aside.size + this.#calls.kept === 0)
    signal.removeEventListener('abort', handBackAll)
  }

  /** Leaves the pool. What still runs is handed back first. */
  async close(): Promise<void> {
    await this.drain(AbortSignal.abort())
    await this.#taking.close()
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
        isDraining: () => this.#taking.isHeld,
        capacity: () => this.#tell(),
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
    const isDraining = () => this.#taking.isHeld
    const lease = { boot: this.boot, role: pool, version, slots, leaseMs, isDraining }
    const [rooms, taking, attempts, presence] = [this.#rooms, this.#taking, this.#attempts, this.presence]
    const runs = await DurableRuns.open({
      ...{ store, blobs, broker, log, ...lease },
      presence: () => presence,
      notifyOwner: cancelsIn(presence),
    })
    this.#durable = runs
    this.#claims = new Claims({ pool, kinds, log, presence, runs, rooms, taking, attempts, pauses })
  }

  #tell(): Capacity {
    const capacity = this.#rooms.tell() ?? UNBOUNDED
    const found = this.#options.upstreams?.tell(capacity.models ?? []) ?? []
    const failing = this.#options.upstreams?.failing(capacity.models ?? []) ?? []
    const self = { aside: this.aside, host: hostname(), pid: process.pid }
    return { ...capacity, ...self, ...(found.length > 0 && { found }), ...(failing.length > 0 && { failing }) }
  }

  #onControl(record: ControlRecord): void {
    this.#attempts.onControl(record)
    this.#options.pauses?.onControl(record)
    if (record.type === 'pause_work' && !record.paused) this.#claims?.pull()
    if (record.type === 'jobs_waiting' && record.pool === this.#definition.name) this.#onWaiting(record.waiting)
    if (record.type !== 'drain' || record.boot !== this.boot || record.drained === this.isDraining) return
    this.#options.log.info({ worker: this.boot, is_draining: record.drained }, 'worker drain changed')
    this.#taking.hold(record.drained)
  }

  #onDelivery(lane: Lane, delivery: Delivery): void {
    const job = delivery.payload ? jobOfPayload(delivery.payload) : readJob(delivery.value)
    const kind = job && this.#kindOf(job)
    // Not for this version: another worker may know it.
    if (!job || !kind) this.#foreign.onDelivery(lane, delivery)
    else if (isAttached(job)) this.#calls.onDelivery(lane, delivery, job, kind)
    else if (this.#claims) this.#claims.onDelivery(lane, delivery, job, kind)
    else delivery.acknowledge()
  }

  #kindOf(job: JobEnvelope): Handler | undefined {
    const { kinds } = this.#definition
    return Object.hasOwn(kinds, job.kind) ? kinds[job.kind] : undefined
  }

  /** Whether another worker has a free slot for whatever this one could take. */
  #hasFreePeer(): boolean {
    return this.presence
      .workers(this.#definition.name)
      .some(({ boot, draining, isSilent, slots, running, capacity }) => {
        const isFree = boot !== this.boot && !draining && !isSilent && running < slots
        return isFree && this.#rooms.isCoveredBy(capacity?.models)
      })
  }

  /** A worker may have found out something, may be new, or has no room for jobs that this one may have room for. */
  #onCapacity({ boot, role, capacity }: Peer): void {
    if (role !== this.#definition.name || !capacity) return
    this.#options.upstreams?.hear(boot === this.boot ? [] : (capacity.found ?? []))
    this.#aside.letIn()
    if (boot !== this.boot) this.#onWaiting(capacity.waiting)
  }

  #onWaiting(all: Capacity['waiting']): void {
    const waiting = all.filter(({ kind }) => Object.hasOwn(this.#definition.kinds, kind))
    if (this.#rooms.hear(waiting)) this.#claims?.pull()
  }
}

function isAttached(job: JobEnvelope): job is AttachedEnvelope {
  return job.reply !== undefined
}
