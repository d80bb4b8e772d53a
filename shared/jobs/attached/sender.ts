import type { ErrorBody } from '#schemas/error.ts'
import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { recordOf, storeBody } from '#shared/jobs/body.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { jobsTopic } from '#shared/jobs/topics.ts'
import type { Log } from '#shared/log/log.ts'
import { every } from '#shared/ticks.ts'
import { AdmissionControl, type AdmissionControlOptions, type Asked } from './admission-control.ts'
import type { AttachedJob, NewAttachedJob } from './attached-job.ts'
import { Shares, type WaitingCalls } from './shares.ts'
import { TenantTurns } from './turns.ts'
import type { WaitQueues } from './wait-queues.ts'

/**
 * Jobs in a pool's queue at least, however few slots its workers have: the way to them may take far longer than a job. Of a pool
 * with four slots one more waits for no longer than a job takes. One more where others share it, each of which has one or more.
 */
const ROOM_MIN = { alone: 3, shared: 4 }
/** How often jobs that wait for their turn are looked at, beside each time one of them starts or ends. */
const DISPATCH_INTERVAL_MS = 1_000
/** Before that nobody should ask again whom a pool had no slot for. */
const RETRY_MS_MIN = 5_000

/** What a {@link Sender} needs. */
export interface SenderOptions {
  /** Boot id of this ingress. */
  readonly boot: string
  readonly broker: Broker
  readonly blobs: Blobs
  readonly presence: Presence
  readonly lines: WaitQueues<AttachedJob>
  readonly log: Log
  /** Longest wait that may be expected of a job when it is accepted. */
  readonly startTimeoutMs: number
  /** Called when the broker, which can be reached, did not take an attempt in its turn. */
  readonly onUnsent: (job: AttachedJob, error: unknown) => void
}

/**
 * Puts attached jobs on the queues of their pools, each in the turn of its tenant, and refuses those that would wait too long.
 * Whoever made it closes it.
 */
export class Sender {
  readonly #options: SenderOptions
  readonly #turns = new Map<PoolName, TenantTurns<AttachedJob>>()
  readonly #gate: AdmissionControl
  readonly #withBlob = new Set<string>()
  readonly #shares: Shares
  readonly #stopTurns: () => void

  constructor(options: SenderOptions) {
    this.#options = options
    const { boot, presence } = options
    const sendAll = () => {
      for (const [pool, turns] of this.#turns) if (turns.hasWaiting) void this.#sendNext(pool)
    }
    const waiting = () => this.#waiting()
    const ahead: AdmissionControlOptions['ahead'] = (asked, reserved, own) =>
      this.#turnsOf(asked.pool).ahead(asked.tenant, asked, reserved, own)
    this.#gate = new AdmissionControl({ ...options, ahead })
    this.#shares = new Shares({ boot, publish: (record) => presence.send(record), waiting, onShares: sendAll })
    this.#stopTurns = every(DISPATCH_INTERVAL_MS, sendAll)
  }

  /** Another process said something: of another ingress it may be what waits there. */
  onControl(record: ControlRecord): void {
    if (record.type === 'calls_waiting') this.#shares.receive(record)
  }

  /** Refuses what cannot start in time (see {@link AdmissionControl}). @throws ServiceError `overloaded` */
  admit(asked: Asked): void {
    this.#gate.admit(asked)
  }

  /** What the caller of a job hears that nobody will start; undefined while somebody may. @param waitMs How long it waited */
  unstartedError(job: AttachedJob, waitMs: number): ErrorBody | undefined {
    const why = whyUnstarted(this.#options.presence, job, waitMs)
    if (why === undefined) return undefined
    const retry_after_ms = Math.max(RETRY_MS_MIN, this.#gate.estimateMs(job.envelope))
    return { code: 'overloaded', message: `${why} Try again later.`, param: null, retry_after_ms }
  }

  /** A job ended well: others like it need not wait as long. */
  completed(job: AttachedJob): void {
    this.#gate.completed(job.envelope)
  }

  /**
   * Takes the body of a new job, for all of its attempts, and sends it in its turn. Settles when the broker has it, or while it waits
   * for its turn. While the broker is away nobody gets a turn, and a new job is refused at once.
   *
   * @throws ServiceError `overloaded`
   */
  async accept(job: AttachedJob, spec: Pick<NewAttachedJob, 'body' | 'heldBytes'>): Promise<void> {
    const handing = this.#hand(job, spec)
    if (handing) return await handing
    const storing = this.#store(job, spec.body)
    if (storing) await storing
    // It may have been ended meanwhile; its reader hears of it.
    if (job.state !== 'done') await this.#send(job)
  }

  /**
   * Hands a new job to the workers of this process with its body as it is, where its turn has come at once and its caller accounts
   * for the body. Undefined where it must be stored: what waits is small.
   */
  #hand(job: AttachedJob, { body, heldBytes }: Pick<NewAttachedJob, 'body' | 'heldBytes'>): Promise<void> | undefined {
    const { broker } = this.#options
    if (!broker.enqueueLocal || !broker.isReachable || heldBytes === undefined) return undefined
    const { pool } = job.envelope
    job.stored = { value: body, bytes: heldBytes }
    this.#turnsOf(pool).enter(job)
    const sending = this.#sendNext(pool, job)
    if (sending) return sending
    this.#turnsOf(pool).leave(job)
    job.stored = undefined
    return undefined
  }

  /** A large body goes into a blob before the job waits for its turn. Undefined when it is stored already. */
  #store(job: AttachedJob, body: unknown): Promise<void> | undefined {
    const stored = storeBody(job.id, body, this.#options.blobs)
    if (!(stored instanceof Promise)) {
      job.stored = stored
      return undefined
    }
    return stored.then((late) => {
      job.stored = late
      if ('blob' in late) this.#withBlob.add(job.id)
      if (job.state === 'done') this.dropBlob(job)
    })
  }

  /** Undefined while it waits for its turn. */
  #send(job: AttachedJob): Promise<void> | undefined {
    if (!this.#options.broker.isReachable) return this.#publish(job)
    const { pool } = job.envelope
    this.#turnsOf(pool).enter(job)
    return this.#sendNext(pool, job)
  }

  /** Sends the next attempt of a job that had its turn, before all others. */
  sendAgain(job: AttachedJob): void {
    const { pool } = job.envelope
    this.#turnsOf(pool).leave(job)
    this.#turnsOf(pool).enterFirst(job)
    void this.#sendNext(pool)
  }

  /** A worker has the job: the next may be on its way. */
  start(job: AttachedJob): void {
    const { pool } = job.envelope
    if (this.#turnsOf(pool).start(job)) void this.#sendNext(pool)
  }

  /** A job waits and runs no more. */
  leave(job: AttachedJob): void {
    const { pool } = job.envelope
    if (this.#turnsOf(pool).leave(job)) void this.#sendNext(pool)
  }

  /** Jobs of a pool that wait for their turn, in all ingresses as far as they are known. */
  callsWaiting(pool: PoolName): number {
    return this.#turnsOf(pool).waiting + this.#shares.callsElsewhere(pool)
  }

  /** Jobs of a model that wait for their turn. */
  waitingOf(pool: PoolName, model: string): number {
    return this.#turnsOf(pool).waitingOf(model)
  }

  /** Nobody waits any more, and nobody is sent. */
  forget(jobs: Iterable<AttachedJob>): void {
    for (const job of jobs) this.#turnsOf(job.envelope.pool).leave(job)
  }

  /** Deletes what was stored of a job that has ended. */
  dropBlob(job: AttachedJob): void {
    if (!this.#withBlob.delete(job.id)) return
    this.#options.blobs.delete(job.id).catch((error: unknown) => {
      this.#options.log.warn({ err: error, job_id: job.id }, 'blob not deleted')
    })
  }

  /** Gives no more turns. */
  close(): void {
    this.#stopTurns()
    this.#shares.close()
  }

  #turnsOf(pool: PoolName): TenantTurns<AttachedJob> {
    const known = this.#turns.get(pool)
    if (known) return known
    const { broker, presence } = this.#options
    const turns: TenantTurns<AttachedJob> = new TenantTurns<AttachedJob>({
      room: () => (broker.isReachable ? this.#roomIn(pool, turns.running) : undefined),
      slots: () => presence.slots(pool),
      capacityOf: (work) => presence.capacityOf(pool, work),
      waitingElsewhere: () => this.#shares.waitingElsewhere(pool),
      shareOf: (work) => this.#shares.of(pool, work),
      spreadOf: (tenant) => this.#shares.spread(pool, tenant),
      isIdle: () => presence.freeSlots(pool) > 0,
    })
    this.#turns.set(pool, turns)
    return turns
  }

  /**
   * Those that are free, and a quarter of all where many end at once: whoever comes to a pool that is full waits behind no
   * more than these. What workers said of their free slots may be older than what they have got from here.
   */
  #roomIn(pool: PoolName, running: number): number {
    const { presence } = this.#options
    const share = this.#shares.of(pool)
    const slots = presence.slots(pool)
    const least = slots === 0 || share < 1 ? ROOM_MIN.shared : ROOM_MIN.alone
    return Math.max(least, slots / 4, Math.min(presence.freeSlots(pool), slots - running)) * share
  }

  *#waiting(): Generator<WaitingCalls> {
    for (const [pool, turns] of this.#turns) for (const calls of turns.calls()) yield { pool, ...calls }
  }

  /** Publishes every job whose turn it is. @returns Settles when the broker has `own`; undefined if that still waits */
  #sendNext(pool: PoolName, own?: AttachedJob): Promise<void> | undefined {
    const turns = this.#turnsOf(pool)
    let sending: Promise<void> | undefined
    for (let job = turns.next(); job; job = turns.next()) {
      if (job === own) sending = this.#publish(job)
      else this.#publishLater(job)
    }
    if (turns.hasWaiting) this.#shares.changed()
    return sending
  }

  /** Publishes a job whose caller waits for its output already: it hears there of a failure. */
  #publishLater(job: AttachedJob): void {
    const { attempt } = job
    this.#publish(job).catch((error: unknown) => {
      // Not acknowledged in time, yet it arrived: the attempt runs.
      if (job.state !== 'queued' || job.attempt !== attempt) return
      if (this.#options.broker.isReachable) this.#options.onUnsent(job, error)
      // It waits for the broker as those do that are in its queue.
      else this.sendAgain(job)
    })
  }

  async #publish(job: AttachedJob): Promise<void> {
    const { stored, envelope, attempt } = job
    if (!stored || job.state === 'done') return
    job.sentAtMs = Date.now()
    const { broker } = this.#options
    const topic = jobsTopic(envelope.pool)
    if ('value' in stored) broker.enqueueLocal?.(topic, { ...envelope, attempt, body: stored.value }, stored.bytes)
    else {
      await broker.submit(topic, recordOf({ ...envelope, attempt }, stored), envelope.deadline_ms - Date.now())
      if (job.attempt === attempt) job.isAtBroker = true
    }
  }
}

function whyUnstarted(presence: Presence, { envelope, sentAtMs }: AttachedJob, waitMs: number): string | undefined {
  const { pool, model } = envelope
  if (presence.workers(pool).length === 0) return `No ${pool} worker is running.`
  if (!presence.hasModel(pool, model)) return `No ${pool} worker has the model '${model}'.`
  // The broker may lose what it has taken.
  const isLost = sentAtMs !== undefined && Date.now() - sentAtMs >= waitMs && presence.freeSlots(pool) > 0
  return isLost ? 'No worker has taken the request.' : undefined
}
