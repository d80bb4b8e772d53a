import { setTimeout } from 'node:timers/promises'
import type { Priority } from '#schemas/durable-job.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { ControlRecord } from '#schemas/event.ts'
import type { AttachedEnvelope, JobEnvelope, PoolName } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker, Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import { unpackJob } from '#shared/jobs/body.ts'
import { type Peer, Presence } from '#shared/jobs/presence.ts'
import { type ForeignJob, readForeign } from '#shared/jobs/records.ts'
import { DEAD, jobsTopic } from '#shared/jobs/topics.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import type { Store } from '#shared/store/store.ts'
import { Attempt, type AttemptEnd } from './attempt.ts'
import { BodyRoom } from './body-room.ts'
import { type ClaimedJob, DurableRuns } from './durable-runs.ts'
import { ForeignJobs } from './foreign-jobs.ts'
import { laneRoom } from './lanes.ts'
import { type ModelBound, type ModelRoom, ModelRooms } from './model-rooms.ts'
import { Reporter } from './reporter.ts'

/** Deliveries of one record after which its job is called poison; Kafka drops a record silently after five. */
const DELIVERIES_MAX = 4
/** How often it is looked whether waiting jobs can be claimed, beside each time a job ends. */
const PULL_MS = 1_000
/** How long a worker takes nothing after a call that it had to hand back: it comes again, and is to meet another one. */
const ASIDE_MS = 50
/** How long a durable job waits for a worker that knows its model, while none does. */
const UNKNOWN_MODEL_MS = 300_000
/** Waiting jobs claimed in one statement at most: each may have a body of 64 KiB. */
const PULL_MAX = 64
/** Jobs that may be taken at once, and beyond that a quarter of the free slots: a burst spreads over the workers. */
const TAKE_MIN = 8
/** Cancels remembered for jobs this worker has not seen yet. */
const CANCELS_MAX = 10_000
/** How long a record that could not be buried is kept before somebody tries again; the broker counts those tries. */
const BURY_AGAIN_MS = 5_000
/** Age at which a queued job has surely been preceded by a heartbeat of its ingress. */
const ORPHAN_AGE_MS = 5_000
/** Silence of an ingress after which the jobs it held are nobody's. */
const INGRESS_LOST_MS = 10_000

/** Lanes of a pool; without a store there are no jobs of low priority. */
const LANES: readonly Priority[] = ['normal', 'low']
/** How long after its last job the interactive lane still counts as having work. */
const LANE_BUSY_MS = 1_000

/** A pool of workers: its kinds of job, and how many jobs one worker runs at once. */
export interface PoolDefinition {
  readonly name: PoolName
  readonly slots: number
  readonly kinds: Readonly<Record<string, Kind>>
  /** Ids and aliases of the models it can run; default: whichever is asked for. */
  readonly models?: Iterable<string>
  /** Models of which fewer jobs can run at once than there are slots. */
  readonly bounds?: readonly ModelBound[]
}

/** What happened, for metrics. */
export interface PoolObserver {
  onEnd(job: JobEnvelope, end: AttemptEnd, durationMs: number): void
}

/** What {@link Pool.open} needs. */
export interface PoolOptions {
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly observer: PoolObserver
  readonly version: string
  /** Arbiter of durable jobs; undefined where there are none. */
  readonly store: Store | undefined
  /** How long a silent worker keeps its durable jobs. */
  readonly leaseMs: number
  /** How long jobs that this worker does not know are passed on; default: {@link ForeignJobs}'s. */
  readonly passOnMs?: number | undefined
  /** Memory that bodies from blobs may take here; see {@link BodyRoom}. */
  readonly bodyRoomBytes: number
  /** The loop broke for good: the process must end. */
  readonly onFatal: (error: unknown) => void
}

/** One queue of a pool, as this worker takes from it. */
interface Lane {
  readonly priority: Priority
  readonly consumer: QueueConsumer
  running: number
  /** When it last gave a job. */
  busyAtMs: number
  /** How many jobs are asked for now, and how to stop asking. */
  taking: { readonly max: number; readonly abort: AbortController } | undefined
}

/**
 * One worker of a pool: the consume loop (docs/design.md, The consume loop).
 *
 * Takes no more jobs than there are free slots, claims (says `started`, or takes the job's row in the store), acknowledges
 * as soon as that is out, runs, reports. So a record is held for milliseconds only, and a long job holds nothing at the
 * broker. Jobs of low priority wait in a lane of their own (`lanes.ts`).
 *
 * A durable job that there is no room for stays in the store, where this worker, or another, takes the oldest one as soon as
 * it has room (`model-rooms.ts`): its record is dropped, and nothing is spent.
 */
export class Pool {
  readonly boot = newId('wrk_', 16)
  presence!: Presence
  readonly #definition: PoolDefinition
  readonly #options: PoolOptions
  readonly #reporter: Reporter
  readonly #running = new Map<string, Attempt>()
  /** Ingresses that fell silent while jobs of theirs ran here. */
  readonly #silent = new Set<string>()
  readonly #cancelled = new Set<string>()
  readonly #stopTaking = new AbortController()
  readonly #rooms: ModelRooms
  readonly #foreign: ForeignJobs
  readonly #bodyRoom: BodyRoom
  #durable: DurableRuns | undefined
  #lanes: Lane[] = []
  #loop: Promise<unknown> = Promise.resolve()
  #slotFreed: PromiseWithResolvers<void> | undefined
  #pullTimer: NodeJS.Timeout | undefined
  #lastTurnMs = Date.now()
  #taken = 0
  #isHandingBack = false
  /** It is better if another worker takes the next job. */
  #isAside = false

  private constructor(definition: PoolDefinition, options: PoolOptions) {
    this.#definition = definition
    this.#options = options
    this.#bodyRoom = new BodyRoom(options.bodyRoomBytes)
    this.#reporter = new Reporter(options.broker, this.boot, options.log)
    this.#rooms = new ModelRooms(definition.models, definition.bounds ?? [])
    const { broker, log, passOnMs } = options
    this.#foreign = new ForeignJobs({ broker, log, passOnMs, signal: this.#stopTaking.signal })
  }

  /** Joins the pool and starts to take jobs. */
  static async open(definition: PoolDefinition, options: PoolOptions): Promise<Pool> {
    const pool = new Pool(definition, options)
    const { broker, log, version, store, leaseMs } = options
    const { name: role, slots } = definition
    const isDraining = () => pool.#stopTaking.signal.aborted
    pool.presence = await Presence.open({
      broker,
      log,
      lostMs: INGRESS_LOST_MS,
      self: {
        boot: pool.boot,
        role,
        version,
        slots: () => slots,
        running: () => pool.running,
        isDraining,
        capacity: () => pool.#rooms.tell(),
      },
      listener: {
        onLost: (peer) => pool.#onPeerLost(peer.boot),
        onCapacity: (peer) => pool.#onCapacity(peer),
        onControl: (record) => pool.#onControl(record),
      },
    })
    if (store) {
      const lease = { boot: pool.boot, role, version, slots, leaseMs, isDraining }
      pool.#durable = await DurableRuns.open({ store, broker, log, ...lease })
    }
    for (const priority of store ? LANES : LANES.slice(0, 1)) {
      const consumer = await broker.openQueue(jobsTopic(role, priority))
      pool.#lanes.push({ priority, consumer, running: 0, busyAtMs: 0, taking: undefined })
    }
    pool.#pullTimer = setInterval(() => pool.#pull(), PULL_MS)
    pool.#loop = Promise.all(pool.#lanes.map((lane) => pool.#takeForEver(lane))).catch(options.onFatal)
    return pool
  }

  /** Attempts that run now, claims, and jobs that are passed on to other workers: each takes a slot. */
  get running(): number {
    return this.#lanes.reduce((sum, lane) => sum + lane.running, 0)
  }

  /** Records taken so far. */
  get taken(): number {
    return this.#taken
  }

  /** Milliseconds since the consume loop last came round. With free slots this stays near a second. */
  get idleMs(): number {
    return this.running >= this.#definition.slots ? 0 : Date.now() - this.#lastTurnMs
  }

  /**
   * Takes nothing new and waits for what runs; at `signal` hands back what still runs. A second call waits as well.
   */
  async drain(signal: AbortSignal): Promise<void> {
    this.#stopTaking.abort()
    clearInterval(this.#pullTimer)
    for (const lane of this.#lanes) lane.taking?.abort.abort()
    this.#freeSlot()
    await this.#loop
    const handBackAll = () => {
      this.#isHandingBack = true
      // Its time is over: a store that is away must not keep the process from ending.
      if (this.#options.store?.isReachable === false) this.#durable?.giveUp()
      for (const attempt of this.#running.values()) attempt.handBack()
    }
    if (signal.aborted) handBackAll()
    else signal.addEventListener('abort', handBackAll, { once: true })
    while (this.running > 0) await this.#untilSlotFreed()
    signal.removeEventListener('abort', handBackAll)
  }

  /** Leaves the pool. What still runs is handed back first. */
  async close(): Promise<void> {
    await this.drain(AbortSignal.abort())
    await Promise.all(this.#lanes.map((lane) => lane.consumer.close()))
    await this.#durable?.close()
    await this.presence.close()
    this.#reporter.close()
  }

  async #takeForEver(lane: Lane): Promise<void> {
    const { signal } = this.#stopTaking
    while (!signal.aborted) {
      if (lane.priority === 'normal') this.#lastTurnMs = Date.now()
      const room = this.#roomOf(lane)
      if (room <= 0) {
        // The batch lane may also borrow again once the other has been quiet for a while.
        await Promise.race([this.#untilSlotFreed(), setTimeout(LANE_BUSY_MS, undefined, { ref: false })])
        continue
      }
      lane.taking = { max: shareOf(room), abort: new AbortController() }
      const deliveries = await lane.consumer.take(lane.taking.max, lane.taking.abort.signal)
      lane.taking = undefined
      for (const delivery of deliveries) {
        lane.busyAtMs = Date.now()
        this.#taken++
        this.#onDelivery(lane, delivery)
      }
      if (this.#isAside) await setTimeout(ASIDE_MS, undefined, { ref: false })
      this.#isAside = false
    }
  }

  /** Both lanes ask for jobs at once: what one has got, the other must not ask for any longer. */
  #shrinkTakes(): void {
    for (const lane of this.#lanes) if (lane.taking && lane.taking.max > this.#roomOf(lane)) lane.taking.abort.abort()
  }

  #roomOf(lane: Lane): number {
    const [interactive, batch] = this.#lanes
    if (!interactive || !batch) return this.#definition.slots - this.running
    const isInteractiveBusy = Date.now() - interactive.busyAtMs < LANE_BUSY_MS
    const use = { slots: this.#definition.slots, running: this.running, batch: batch.running, isInteractiveBusy }
    return laneRoom(lane.priority, use)
  }

  #onDelivery(lane: Lane, delivery: Delivery): void {
    const job = unpackJob(delivery.value)
    const kind = job && this.#kindOf(job)
    if (!job || !kind) return this.#onForeign(lane, delivery)
    if (isAttached(job)) this.#onAttached(lane, delivery, job, kind)
    else void this.#onDurable(lane, delivery, job, kind)
  }

  /** Not for this version: another worker may know it. */
  #onForeign(lane: Lane, delivery: Delivery): void {
    const job = readForeign(delivery.value)
    if (!job) return this.#bury(delivery)
    const isOver = this.#cancelled.delete(job.id) || job.deadline_ms < Date.now()
    if (isOver) return delivery.acknowledge()
    void this.#passOn(lane, delivery, job)
  }

  async #passOn(lane: Lane, delivery: Delivery, job: ForeignJob): Promise<void> {
    lane.running++
    this.#shrinkTakes()
    const isPassedOn = await this.#foreign.passOn(jobsTopic(this.#definition.name, lane.priority), delivery, job)
    lane.running--
    this.#freeSlot()
    if (!isPassedOn) this.#giveUp(delivery, job)
  }

  /** Nobody knows the job. Its caller is told; a durable one waits in the store, whence it is published again. */
  #giveUp(delivery: Delivery, job: ForeignJob): void {
    if (!job.reply) return delivery.acknowledge()
    const events = this.#reporter.open({ ...job, reply: job.reply }, () => undefined)
    void events.started()
    void events.failed(UNKNOWN_KIND)
    this.#bury(delivery)
  }

  #onAttached(lane: Lane, delivery: Delivery, job: AttachedEnvelope, kind: Kind): void {
    const key = keyOf(job.id, job.attempt)
    if (this.#cancelled.delete(job.id) || this.#cancelled.delete(key) || this.#running.has(key)) {
      return delivery.acknowledge()
    }
    if (this.#isOrphan(job)) {
      this.#options.log.info({ job_id: job.id, ingress: job.reply.boot }, 'job of a dead ingress dropped')
      return delivery.acknowledge()
    }
    if (this.#roomOf(lane) <= 0) return delivery.release()
    const events = this.#reporter.open(job, kind.merge)
    // The broker has seen the record as soon as `started` is out: from then on the ingress watches over the job.
    events.started().then(() => delivery.acknowledge())
    if (delivery.deliveryCount >= DELIVERIES_MAX) {
      this.#options.log.error({ job_id: job.id, deliveries: delivery.deliveryCount }, 'poison job')
      void events.failed({ code: 'internal_error', message: 'The request keeps ending its workers.', param: null })
      return
    }
    // Models are rolled out worker by worker: another one may know it.
    if (!this.#rooms.knows(job.model)) {
      this.#isAside = true
      return void events.handedBack()
    }
    void this.#run(lane, new Attempt(job, kind, events, this.#options.log))
  }

  /**
   * The record is a hint: the store says who may run the job. A record that could not be used is acknowledged all the same,
   * for what still waits is claimed when there is room, or published again; so the broker never reaches its own limit of
   * deliveries.
   */
  async #onDurable(lane: Lane, delivery: Delivery, envelope: JobEnvelope, kind: Kind): Promise<void> {
    const durable = this.#durable
    if (!durable) return delivery.acknowledge()
    const room = this.#rooms.of(envelope)
    if (this.#mustWait(lane, room)) {
      delivery.acknowledge()
      if (room.wait(lane.priority)) this.presence.tellCapacity()
      return this.#pull()
    }
    this.#enter(lane, room)
    const claimed = await durable.claim(envelope, kind)
    this.#leave(lane, room)
    delivery.acknowledge()
    if (claimed) await this.#runDurable(lane, kind, claimed, durable)
    else this.#freeSlot()
  }

  /**
   * Whether a job stays in the store: there is no room for it; others wait already, which are older; or another worker may know
   * its model, which this one does not. When none does for long it is run here all the same, and fails.
   */
  #mustWait(lane: Lane, room: ModelRoom): boolean {
    if (this.#claimable(lane, room) <= 0) return true
    if (this.#rooms.knows(room.model)) return room.isWaiting(lane.priority)
    const isNew = this.#rooms.unknownForMs(room.model) < UNKNOWN_MODEL_MS
    return isNew || this.presence.hasModel(this.#definition.name, room.model)
  }

  /** Claims what waits in the store, as far as there is room. */
  #pull(): void {
    if (this.#stopTaking.signal.aborted) return
    for (const room of this.#rooms.waiting()) {
      for (const lane of this.#lanes) if (room.isWaiting(lane.priority)) void this.#pullFor(lane, room)
    }
  }

  async #pullFor(lane: Lane, room: ModelRoom): Promise<void> {
    const { priority } = lane
    const { kinds, name: pool } = this.#definition
    const [durable, kind] = [this.#durable, kinds[room.kind]]
    const count = Math.min(this.#claimable(lane, room), PULL_MAX)
    if (!durable || !kind || count <= 0 || !room.beginPull(priority)) return
    this.#enter(lane, room, count)
    const claimed = await durable.claimNext({ pool, kind: room.kind, model: room.model, priority }, kind, count)
    this.#leave(lane, room, count)
    room.endPull(priority, claimed === undefined || claimed.length === count)
    for (const job of claimed ?? []) void this.#runDurable(lane, kind, job, durable)
    // Not when the store failed: the timer tries again.
    if (claimed) this.#freeSlot()
  }

  async #runDurable(lane: Lane, kind: Kind, { job, sink }: ClaimedJob, durable: DurableRuns): Promise<void> {
    const attempt = new Attempt(job, kind, sink, this.#options.log)
    sink.onStop = (reason) => {
      if (reason === 'lost') attempt.lose()
      else if (reason === 'cancelled') attempt.cancel()
      else attempt.handBack()
    }
    if (durable.isLapsed) attempt.handBack()
    // A cancel that was faster than the answer to the claim found nothing to stop.
    if (this.#cancelled.delete(keyOf(job.id, job.attempt))) attempt.cancel()
    await this.#run(lane, attempt)
    durable.release(job)
  }

  /** Durable jobs of a model that may be claimed now. */
  #claimable(lane: Lane, room: ModelRoom): number {
    if (this.#durable?.isLapsed) return 0
    return Math.min(this.#roomOf(lane), room.free(lane.priority))
  }

  /** Jobs take slots, be it that they run or that they are about to be claimed. */
  #enter(lane: Lane, room: ModelRoom, count = 1): void {
    lane.running += count
    room.enter(lane.priority, count)
    this.#shrinkTakes()
  }

  #leave(lane: Lane, room: ModelRoom, count = 1): void {
    lane.running -= count
    room.leave(lane.priority, count)
  }

  /** Nobody waits for the job: its ingress was never heard. A young job may have overtaken its first heartbeat. */
  #isOrphan(job: AttachedEnvelope): boolean {
    return Date.now() - job.created_at_ms > ORPHAN_AGE_MS && this.presence.isUnheard(job.reply.boot)
  }

  #kindOf(job: JobEnvelope): Kind | undefined {
    const { kinds } = this.#definition
    return Object.hasOwn(kinds, job.kind) ? kinds[job.kind] : undefined
  }

  async #run(lane: Lane, attempt: Attempt): Promise<void> {
    const startedAt = performance.now()
    const key = keyOf(attempt.job.id, attempt.job.attempt)
    const room = this.#rooms.of(attempt.job)
    const counted = attempt.job.reply ? undefined : lane.priority
    this.#running.set(key, attempt)
    lane.running++
    room.enter(counted)
    this.#shrinkTakes()
    // A claim that came through when it was too late.
    if (this.#isHandingBack) attempt.handBack()
    try {
      const end = await attempt.run(this.#options.blobs, this.#bodyRoom)
      this.#options.observer.onEnd(attempt.job, end, performance.now() - startedAt)
    } finally {
      this.#running.delete(key)
      lane.running--
      room.leave(counted)
      if (attempt.job.reply) this.#forgetSilent(attempt.job.reply.boot)
      this.#freeSlot()
    }
  }

  /** A record nobody can read goes to `dead`, raw; the queue moves on. */
  #bury(delivery: Delivery): void {
    this.#options.log.error({ position: delivery.position, bytes: delivery.value.length }, 'record not understood')
    this.#options.broker.send(DEAD, 0, this.#definition.name, delivery.value).then(
      () => delivery.acknowledge(),
      (error: unknown) => {
        // What `dead` will never take would come back for ever; the line above has its position.
        if (ServiceError.from(error).code === 'request_too_large') return delivery.acknowledge()
        void setTimeout(BURY_AGAIN_MS, undefined, { ref: false }).then(() => delivery.release())
      },
    )
  }

  /** Another worker has no room for jobs that this one may have room for. */
  #onCapacity({ boot, role, capacity }: Peer): void {
    if (boot === this.boot || role !== this.#definition.name || !capacity) return
    const waiting = capacity.waiting.filter(({ kind }) => Object.hasOwn(this.#definition.kinds, kind))
    if (this.#rooms.hear(waiting)) this.#pull()
  }

  #onControl(record: ControlRecord): void {
    if (record.type === 'pause') this.#running.get(keyOf(record.job_id, record.attempt))?.pause()
    else if (record.type === 'resume') this.#running.get(keyOf(record.job_id, record.attempt))?.resume()
    else if (record.type === 'cancel' && (record.worker ?? this.boot) === this.boot) this.#onCancel(record)
  }

  #onCancel({ job_id, attempt }: { job_id: string; attempt?: number | undefined }): void {
    let isRunning = false
    for (const running of this.#running.values()) {
      if (running.job.id !== job_id || (attempt !== undefined && running.job.attempt !== attempt)) continue
      running.cancel()
      isRunning = true
    }
    if (!isRunning) this.#remember(attempt === undefined ? job_id : keyOf(job_id, attempt))
  }

  /** A job that is cancelled before it is taken must not run; the oldest are forgotten first. */
  #remember(cancelled: string): void {
    this.#cancelled.add(cancelled)
    if (this.#cancelled.size <= CANCELS_MAX) return
    for (const oldest of this.#cancelled) {
      this.#cancelled.delete(oldest)
      return
    }
  }

  /** Its callers are gone, or it was only silent: then it hears that its jobs have ended here. */
  #onPeerLost(boot: string): void {
    this.#silent.add(boot)
    for (const attempt of this.#running.values()) if (attempt.job.reply?.boot === boot) attempt.handBack()
    this.#forgetSilent(boot)
  }

  #forgetSilent(boot: string): void {
    if (!this.#silent.has(boot)) return
    for (const attempt of this.#running.values()) if (attempt.job.reply?.boot === boot) return
    this.#silent.delete(boot)
    this.#reporter.drop(boot)
  }

  #untilSlotFreed(): Promise<void> {
    this.#slotFreed ??= Promise.withResolvers<void>()
    return this.#slotFreed.promise
  }

  #freeSlot(): void {
    this.#slotFreed?.resolve()
    this.#slotFreed = undefined
    this.#pull()
  }
}

/** The wait is longer than an ingress makes on its caller's behalf: every worker there is has been tried. */
const UNKNOWN_KIND: ErrorBody = {
  code: 'overloaded',
  message: 'No worker that runs knows this kind of request: the service is being upgraded. Try again later.',
  param: null,
  retry_after_ms: 30_000,
}

function isAttached(job: JobEnvelope): job is AttachedEnvelope {
  return job.reply !== undefined
}

function shareOf(free: number): number {
  return Math.max(Math.min(free, TAKE_MIN), Math.ceil(free / 4))
}

function keyOf(jobId: string, attempt: number): string {
  return `${jobId}:${attempt}`
}
