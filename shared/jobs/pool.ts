import type { ControlRecord } from '#schemas/event.ts'
import type { JobEnvelope, PoolName } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker, Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import { newId } from '#shared/id.ts'
import type { Log } from '#shared/log.ts'
import { Attempt, type AttemptEnd } from './attempt.ts'
import { unpackJob } from './body.ts'
import type { MergeDeltas } from './delta-buffer.ts'
import { Presence } from './presence.ts'
import { Reporter } from './reporter.ts'
import { DEAD, jobsTopic } from './topics.ts'

/** Deliveries of one record after which its job is called poison; Kafka drops a record silently after five. */
const DELIVERIES_MAX = 4
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

/** What an attempt may use beside its body. */
export interface AttemptContext {
  /** Aborts on cancel, drain and deadline. The work must stop within a second. */
  readonly signal: AbortSignal
  /** `job_id:attempt`, to make outside effects idempotent. */
  readonly idempotencyKey: string
  readonly traceparent: string | undefined
}

/** One kind of job: how its body is read, how it runs, what its deltas are. */
export interface Kind {
  /** @throws When the body is not what the ingress sends. */
  parse(body: unknown): unknown
  /** Yields deltas until the job is done. @throws ServiceError */
  run(body: unknown, context: AttemptContext): AsyncIterable<unknown>
  readonly merge: MergeDeltas
  /** Whether a caller would see the delta twice if the job ran again. */
  isOutput(delta: unknown): boolean
}

/** A pool of workers: its kinds of job, and how many jobs one worker runs at once. */
export interface PoolDefinition {
  readonly name: PoolName
  readonly slots: number
  readonly kinds: Readonly<Record<string, Kind>>
}

/** What happened, for metrics. */
export interface PoolObserver {
  onStart(job: JobEnvelope): void
  onEnd(job: JobEnvelope, end: AttemptEnd, durationMs: number): void
}

/** What {@link Pool.open} needs. */
export interface PoolOptions {
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly observer: PoolObserver
  readonly version: string
  /** The loop broke for good: the process must end. */
  readonly onFatal: (error: unknown) => void
}

/**
 * One worker of a pool: the consume loop (DESIGN section 4).
 *
 * Takes no more jobs than there are free slots, says `started`, acknowledges as soon as that is out, runs, reports. So a
 * record is held for milliseconds only, and a long job holds nothing at the broker.
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
  #consumer!: QueueConsumer
  #loop: Promise<void> = Promise.resolve()
  #slotFreed: PromiseWithResolvers<void> | undefined
  #lastTurnMs = Date.now()

  private constructor(definition: PoolDefinition, options: PoolOptions) {
    this.#definition = definition
    this.#options = options
    this.#reporter = new Reporter(options.broker, this.boot, options.log)
  }

  /** Joins the pool and starts to take jobs. */
  static async open(definition: PoolDefinition, options: PoolOptions): Promise<Pool> {
    const pool = new Pool(definition, options)
    pool.presence = await Presence.open({
      broker: options.broker,
      log: options.log,
      lostMs: INGRESS_LOST_MS,
      self: {
        boot: pool.boot,
        role: definition.name,
        version: options.version,
        slots: () => definition.slots,
        running: () => pool.running,
        isDraining: () => pool.#stopTaking.signal.aborted,
      },
      listener: {
        onLost: (peer) => pool.#onPeerLost(peer.boot),
        onControl: (record) => pool.#onControl(record),
      },
    })
    pool.#consumer = await options.broker.openQueue(jobsTopic(definition.name))
    pool.#loop = pool.#takeForEver().catch(options.onFatal)
    return pool
  }

  /** Attempts that run now. */
  get running(): number {
    return this.#running.size
  }

  /** Milliseconds since the consume loop last came round. With free slots this stays near a second. */
  get idleMs(): number {
    return this.#running.size >= this.#definition.slots ? 0 : Date.now() - this.#lastTurnMs
  }

  /**
   * Takes nothing new and waits for what runs; at `signal` hands back what still runs. A second call waits as well.
   */
  async drain(signal: AbortSignal): Promise<void> {
    this.#stopTaking.abort()
    this.#freeSlot()
    await this.#loop
    const handBackAll = () => {
      for (const attempt of this.#running.values()) attempt.handBack()
    }
    if (signal.aborted) handBackAll()
    else signal.addEventListener('abort', handBackAll, { once: true })
    while (this.#running.size > 0) await this.#untilSlotFreed()
    signal.removeEventListener('abort', handBackAll)
  }

  /** Leaves the pool. What still runs is handed back first. */
  async close(): Promise<void> {
    await this.drain(AbortSignal.abort())
    await this.#consumer.close()
    await this.presence.close()
    this.#reporter.close()
  }

  async #takeForEver(): Promise<void> {
    const { signal } = this.#stopTaking
    while (!signal.aborted) {
      this.#lastTurnMs = Date.now()
      const free = this.#definition.slots - this.#running.size
      if (free <= 0) {
        await this.#untilSlotFreed()
        continue
      }
      for (const delivery of await this.#consumer.take(shareOf(free), signal)) this.#onDelivery(delivery)
    }
  }

  #onDelivery(delivery: Delivery): void {
    const job = unpackJob(delivery.value)
    const kind = job && this.#kindOf(job)
    if (!job || !kind) return this.#bury(delivery)
    const key = keyOf(job.id, job.attempt)
    if (this.#cancelled.delete(job.id) || this.#cancelled.delete(key) || this.#running.has(key)) {
      return delivery.acknowledge()
    }
    if (this.#isOrphan(job)) {
      this.#options.log.info({ job_id: job.id, ingress: job.reply.boot }, 'job of a dead ingress dropped')
      return delivery.acknowledge()
    }
    const events = this.#reporter.open(job, kind.merge)
    // The broker has seen the record as soon as `started` is out: from then on the ingress watches over the job.
    events.started().then(() => delivery.acknowledge())
    if (delivery.deliveryCount >= DELIVERIES_MAX) {
      this.#options.log.error({ job_id: job.id, deliveries: delivery.deliveryCount }, 'poison job')
      void events.failed({ code: 'internal_error', message: 'The request keeps ending its workers.', param: null })
      return
    }
    void this.#run(new Attempt(job, kind, events, this.#options.log), key)
  }

  /** Nobody waits for the job: its ingress was never heard. A young job may have overtaken its first heartbeat. */
  #isOrphan(job: JobEnvelope): boolean {
    return Date.now() - job.created_at_ms > ORPHAN_AGE_MS && this.presence.isUnheard(job.reply.boot)
  }

  #kindOf(job: JobEnvelope): Kind | undefined {
    const { kinds } = this.#definition
    return Object.hasOwn(kinds, job.kind) ? kinds[job.kind] : undefined
  }

  async #run(attempt: Attempt, key: string): Promise<void> {
    const startedAt = performance.now()
    this.#running.set(key, attempt)
    this.#options.observer.onStart(attempt.job)
    try {
      const end = await attempt.run(this.#options.blobs)
      this.#options.observer.onEnd(attempt.job, end, performance.now() - startedAt)
    } finally {
      this.#running.delete(key)
      this.#forgetSilent(attempt.job.reply.boot)
      this.#freeSlot()
    }
  }

  /** A record nobody can read goes to `dead`, raw; the queue moves on. */
  #bury(delivery: Delivery): void {
    this.#options.log.error({ position: delivery.position, bytes: delivery.value.length }, 'record not understood')
    this.#options.broker.send(DEAD, 0, this.#definition.name, delivery.value).then(
      () => delivery.acknowledge(),
      () => void setTimeout(() => delivery.release(), BURY_AGAIN_MS).unref(),
    )
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
    for (const attempt of this.#running.values()) if (attempt.job.reply.boot === boot) attempt.handBack()
    this.#forgetSilent(boot)
  }

  #forgetSilent(boot: string): void {
    if (!this.#silent.has(boot)) return
    for (const attempt of this.#running.values()) if (attempt.job.reply.boot === boot) return
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
  }
}

function shareOf(free: number): number {
  return Math.max(Math.min(free, TAKE_MIN), Math.ceil(free / 4))
}

function keyOf(jobId: string, attempt: number): string {
  return `${jobId}:${attempt}`
}
