import type { ErrorBody } from '#schemas/error.ts'
import type { JobEvent } from '#schemas/event.ts'
import type { AttachedEnvelope, PoolName } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker, Closable } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import { decide, type Outcome, type RetryPolicy } from '#shared/jobs/decide.ts'
import type { MergeDeltas } from '#shared/jobs/delta-buffer.ts'
import { type Peer, Presence } from '#shared/jobs/presence.ts'
import { readReply, type SkippedEvent } from '#shared/jobs/records.ts'
import { RetryBudget } from '#shared/jobs/retry-budget.ts'
import { SkippedLog } from '#shared/jobs/skipped.ts'
import { REPLIES, replyShard } from '#shared/jobs/topics.ts'
import { type Work, workKey } from '#shared/jobs/work.ts'
import type { Log } from '#shared/log/log.ts'
import { Admission } from './admission.ts'
import { type Arbiter, AttachedJob } from './attached-job.ts'
import { Sender } from './sender.ts'

/** A job as its caller asks for it. */
export interface NewJob {
  readonly pool: PoolName
  readonly kind: string
  readonly tenant: string
  readonly model: string
  readonly body: unknown
  readonly stream: boolean
  readonly timeoutMs: number
  /** Bytes of unread output at which the job ends; default: those of a long text. */
  readonly answerBytesMax?: number | undefined
  readonly requestId: string
  readonly traceparent: string | undefined
  readonly merge: MergeDeltas
  /** Whether a delta is output a caller would see twice if the job ran again. */
  readonly isOutput: (delta: unknown) => boolean
}

/** What happened, for metrics. */
export interface AttachedObserver {
  onRetry(job: AttachedJob, reason: string): void
  onEnd(job: AttachedJob, end: 'completed' | 'failed' | 'cancelled', error?: ErrorBody): void
}

/** What {@link AttachedJobs.open} needs. */
export interface AttachedOptions {
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly observer: AttachedObserver
  readonly version: string
  /** Silence of a worker after which its calls without output are run by another. */
  readonly workerSilentMs: number
  /** Silence of a worker after which streams it has begun are failed. */
  readonly workerLostMs: number
  /** Longest wait that may be expected of a job when it is accepted. */
  readonly startTimeoutMs: number
  /** Most jobs held at once. */
  readonly jobsMax: number
}

/** What a job waits for: its end, a worker, its next attempt. */
interface JobTimers {
  readonly deadline: NodeJS.Timeout
  start: NodeJS.Timeout
  retry?: NodeJS.Timeout
}

/** How long a job waits for a worker that could start it, where there is none. */
const NO_WORKER_MS = 60_000
/** Before that nobody should ask again whom a pool had no slot for. */
const RETRY_MS_MIN = 5_000

/** Retries of attached jobs: few and quick, since somebody waits. */
const POLICY: RetryPolicy = {
  triesMax: 3,
  crashesMax: 3,
  backoff: { baseMs: 250, maxMs: 4_000 },
  // About a minute.
  handBacksMax: 40,
  delayMsMax: 5_000,
}

/**
 * The arbiter of attached jobs: the ingress process that holds their connections (docs/design.md, Arbiters).
 *
 * It submits each job in its tenant's turn, binds it to the worker whose `started` comes first, passes its output on, and
 * decides alone what follows a failure, a lost worker, a timeout or a cancel. Nothing of it is stored: when this process
 * ends, so do its jobs, and workers notice by its heartbeats.
 */
export class AttachedJobs implements Arbiter {
  readonly boot = newId('ing_', 16)
  presence!: Presence
  isDraining = false
  readonly #options: AttachedOptions
  readonly #jobs = new Map<string, AttachedJob>()
  readonly #timers = new Map<string, JobTimers>()
  /** By pool, and by model where that has a bound of its own: a quick one says nothing of a slow one. */
  readonly #admissions = new Map<string, Admission>()
  readonly #budget = new RetryBudget(0.1, 100)
  readonly #shard: number
  readonly #skipped: SkippedLog
  #sender!: Sender
  #receiver: Closable | undefined

  private constructor(options: AttachedOptions) {
    this.#options = options
    this.#shard = replyShard(this.boot)
    this.#skipped = new SkippedLog(options.log)
  }

  /** Starts to receive replies and heartbeats. */
  static async open(options: AttachedOptions): Promise<AttachedJobs> {
    const jobs = new AttachedJobs(options)
    jobs.#receiver = await options.broker.receive(REPLIES, jobs.#shard, (record) => {
      // Another replica may share the shard: the key tells whose record it is without parsing it.
      if (record.key === jobs.boot) jobs.#onReply(record.value)
    })
    jobs.presence = await Presence.open({
      broker: options.broker,
      log: options.log,
      silentMs: options.workerSilentMs,
      lostMs: options.workerLostMs,
      self: {
        boot: jobs.boot,
        role: 'ingress',
        version: options.version,
        slots: () => 0,
        running: () => jobs.#jobs.size,
        isDraining: () => jobs.isDraining,
      },
      listener: {
        onSilent: (peer) => jobs.#onWorkerSilent(peer),
        onLost: (peer) => jobs.#onWorkerLost(peer.boot),
      },
    })
    const { broker, blobs, log } = options
    const { presence } = jobs
    const onUnsent = (job: AttachedJob, error: unknown) => jobs.#onUnsent(job, error)
    jobs.#sender = new Sender({ broker, blobs, presence, log, onUnsent })
    return jobs
  }

  /** Jobs held now. */
  get size(): number {
    return this.#jobs.size
  }

  /** Jobs of a pool held now, that wait or run. */
  count(pool: PoolName, state: 'queued' | 'running'): number {
    let count = 0
    for (const job of this.#jobs.values()) if (job.envelope.pool === pool && job.state === state) count++
    return count
  }

  /** Jobs of a model that wait for their turn here. */
  waitingOf(pool: PoolName, model: string): number {
    return this.#sender.waitingOf(pool, model)
  }

  /**
   * Accepts a job and sends it to its pool. Resolves once the broker has it, or while it waits for the turn of its tenant.
   *
   * @throws ServiceError `overloaded` when too many jobs are held, or the broker cannot be reached
   */
  async submit(spec: NewJob): Promise<AttachedJob> {
    if (this.isDraining) throw new ServiceError('overloaded', 'This server is shutting down.', { retryAfterMs: 1_000 })
    if (this.#jobs.size >= this.#options.jobsMax) {
      throw new ServiceError('overloaded', 'Too many requests are under way. Try again shortly.', {
        retryAfterMs: 2_000,
      })
    }
    this.#refuseLongWait(spec)
    const job = new AttachedJob(this.#envelopeOf(spec), this, spec)
    this.#jobs.set(job.id, job)
    this.#budget.earn()
    this.#timers.set(job.id, {
      deadline: setTimeout(() => this.onOutcome(job, { type: 'timed_out' }), spec.timeoutMs),
      start: this.#startTimer(job),
    })
    try {
      const storing = this.#sender.store(job, spec.body)
      if (storing) await storing
      // It may have been ended meanwhile; its reader hears of it.
      if (job.state !== 'done') await this.#sender.send(job)
    } catch (error) {
      // A record whose acknowledgement was lost may be in the queue all the same.
      this.#stopWorker(job)
      this.#end(job, 'failed', ServiceError.from(error).toBody())
      throw error
    }
    return job
  }

  /**
   * The caller left or does not want it any more: the work stops, wherever it is. A second call does nothing.
   *
   * @param error What its reader gets, where there is one still.
   */
  cancel(job: AttachedJob, error?: ErrorBody): void {
    this.onOutcome(job, { type: 'cancelled', error })
  }

  /** Ends every job that is still held. @param error What their readers get. */
  failAll(error: ErrorBody): void {
    const held = [...this.#jobs.values()]
    // Or the end of each would send the next.
    this.#sender.forget(held)
    for (const job of held) {
      this.#stopWorker(job)
      this.#end(job, 'failed', error)
    }
  }

  /** Leaves the channels. Jobs still held are failed. */
  async close(): Promise<void> {
    this.#sender.close()
    this.failAll({ code: 'overloaded', message: 'The server shut down.', param: null })
    await this.presence.close()
    await this.#receiver?.close()
  }

  onOutcome(job: AttachedJob, outcome: Outcome): void {
    if (job.state === 'done') return
    if (outcome.type === 'failed') job.tries++
    if (outcome.type === 'lost') job.crashes++
    if (outcome.type === 'handed_back') job.handBacks++
    const remainingMs = job.envelope.deadline_ms - Date.now()
    const { tries, crashes, handBacks, hasOutput } = job
    const history = { tries, crashes, handBacks, hasOutput, remainingMs }
    const decision = decide(outcome, history, POLICY, this.#budget.canSpend, Math.random())
    // Whoever may still run it must stop, unless it said itself that it did. Only this attempt: another may follow.
    if (outcome.type === 'lost') this.presence.send({ type: 'cancel', job_id: job.id, attempt: job.attempt })
    if (outcome.type === 'cancelled' || outcome.type === 'timed_out') this.#stopWorker(job)
    if (decision.do === 'complete') this.#end(job, 'completed')
    else if (decision.do === 'cancel') this.#end(job, 'cancelled', decision.error)
    else if (decision.do === 'fail') this.#end(job, 'failed', decision.error)
    else this.#retry(job, outcome.type, decision.delayMs)
  }

  onOverflow(job: AttachedJob, error: ErrorBody): void {
    this.#stopWorker(job)
    this.onOutcome(job, { type: 'failed', error })
  }

  onPause(job: AttachedJob, isPaused: boolean): void {
    this.presence.send({ type: isPaused ? 'pause' : 'resume', job_id: job.id, attempt: job.attempt })
  }

  onIntruder(job: AttachedJob, worker: string): void {
    this.presence.send({ type: 'cancel', job_id: job.id, attempt: job.attempt, worker })
  }

  /** What cannot start in time is refused now, with the time after which it could (± 20 %, so that not all come back at once). */
  #refuseLongWait(spec: NewJob): void {
    const waitMs = this.#estimateMs(spec)
    if (waitMs <= this.#options.startTimeoutMs) return
    const retryAfterMs = (waitMs - this.#options.startTimeoutMs) * (0.8 + 0.4 * Math.random())
    const seconds = Math.round(waitMs / 1_000)
    throw new ServiceError('overloaded', `The queue is full: a call would wait about ${seconds} s.`, { retryAfterMs })
  }

  /** How long a new job would wait, in milliseconds. */
  #estimateMs({ pool, tenant, kind, model }: Pick<AttachedEnvelope, 'pool' | 'tenant' | 'kind' | 'model'>): number {
    const ahead = this.#sender.ahead({ pool, tenant, kind, model })
    return this.#admissionOf(pool, { kind, model }).estimateMs(ahead, Date.now())
  }

  #admissionOf(pool: PoolName, work: Work): Admission {
    const isBounded = this.presence.capacityOf(pool, work) !== undefined
    const key = isBounded ? `${pool} ${workKey(work)}` : pool
    const known = this.#admissions.get(key)
    if (known) return known
    const admission = new Admission()
    this.#admissions.set(key, admission)
    return admission
  }

  #envelopeOf(spec: NewJob): AttachedEnvelope {
    const now = Date.now()
    return {
      id: newId('job_'),
      attempt: 1,
      pool: spec.pool,
      kind: spec.kind,
      tenant: spec.tenant,
      model: spec.model,
      created_at_ms: now,
      deadline_ms: now + spec.timeoutMs,
      reply: { boot: this.boot, shard: this.#shard },
      stream: spec.stream,
      traceparent: spec.traceparent,
      request_id: spec.requestId,
    }
  }

  #retry(job: AttachedJob, reason: string, delayMs: number): void {
    if (reason === 'failed') this.#budget.spend()
    this.#options.observer.onRetry(job, reason)
    this.#options.log.info(
      { job_id: job.id, attempt: job.attempt, reason, delay_ms: delayMs, worker: job.worker },
      'job tried again',
    )
    job.requeue()
    this.#sender.leave(job)
    const timers = this.#timers.get(job.id)
    if (!timers) return
    timers.retry = setTimeout(() => {
      // The pool may have no worker left: this attempt waits no longer for one than the first.
      clearTimeout(timers.start)
      timers.start = this.#startTimer(job)
      this.#sender.sendAgain(job)
    }, delayMs)
  }

  #startTimer(job: AttachedJob): NodeJS.Timeout {
    const waitMs = Math.min(this.#options.startTimeoutMs, NO_WORKER_MS)
    return setTimeout(() => this.#onUnstarted(job, waitMs), waitMs)
  }

  #onReply(value: Buffer): void {
    const record = readReply(value)
    if (!record) return this.#skipped.note('reply not understood')
    for (const type of record.skipped) this.#skipped.note('event not understood', type)
    for (const event of record.events) this.#onEvent(record.worker, event)
  }

  #onEvent(worker: string, event: JobEvent | SkippedEvent): void {
    const job = this.#jobs.get(event.job_id)
    if (job) {
      job.onEvent(worker, event)
      if (event.type === 'started' && job.worker === worker) {
        this.#clearStartTimer(job)
        this.#sender.start(job)
        this.presence.expect(worker, job.envelope.pool)
      }
    } else if (event.type === 'started') {
      // Cancelled while it waited: its worker did not hear of it then.
      this.presence.send({ type: 'cancel', job_id: event.job_id, worker })
    }
  }

  /**
   * The worker need not be dead: its calls that wait on it run a second time where that costs them nothing. They have seen
   * no output; they lose less work than certainty takes; and a slot is free for them.
   * Once a job: workers that are often slow must not use up its attempts.
   */
  #onWorkerSilent({ boot, lastSeenMs }: Peer): void {
    const running = this.#runBy(boot)
    const pool = running[0]?.envelope.pool
    if (pool === undefined) return
    const free = this.presence.freeSlots(pool)
    const startedAfterMs = lastSeenMs - this.#options.workerLostMs
    const cheap = running.filter(
      (job) => !job.hasOutput && job.crashes === 0 && (job.startedAtMs ?? 0) > startedAfterMs,
    )
    this.#lose(cheap.slice(0, free), boot, 'worker silent')
  }

  #onWorkerLost(boot: string): void {
    this.#lose(this.#runBy(boot), boot, 'worker lost')
  }

  #runBy(boot: string): AttachedJob[] {
    return [...this.#jobs.values()].filter((job) => job.worker === boot)
  }

  #lose(jobs: readonly AttachedJob[], worker: string, message: string): void {
    if (jobs.length > 0) this.#options.log.warn({ worker, jobs: jobs.length }, message)
    for (const job of jobs) this.onOutcome(job, { type: 'lost' })
  }

  #onUnsent(job: AttachedJob, error: unknown): void {
    // It may have arrived all the same.
    this.presence.send({ type: 'cancel', job_id: job.id, attempt: job.attempt })
    this.onOutcome(job, { type: 'failed', error: ServiceError.from(error).toBody() })
  }

  /** It goes on waiting, to its deadline, as long as somebody can start it. */
  #onUnstarted(job: AttachedJob, waitMs: number): void {
    const timers = this.#timers.get(job.id)
    if (job.state !== 'queued' || !timers) return
    const why = this.#whyUnstarted(job, waitMs)
    if (why === undefined) {
      timers.start = this.#startTimer(job)
      return
    }
    this.#stopWorker(job)
    this.#end(job, 'failed', {
      code: 'overloaded',
      message: `${why} Try again later.`,
      param: null,
      retry_after_ms: Math.max(RETRY_MS_MIN, this.#estimateMs(job.envelope)),
    })
  }

  /** Why nobody will start a job; undefined while somebody may. */
  #whyUnstarted({ envelope: { pool, model }, sentAtMs }: AttachedJob, waitMs: number): string | undefined {
    if (this.presence.workers(pool).length === 0) return `No ${pool} worker is running.`
    if (!this.presence.hasModel(pool, model)) return `No ${pool} worker has the model '${model}'.`
    // The broker may lose what it has taken.
    const isLost = sentAtMs !== undefined && Date.now() - sentAtMs >= waitMs && this.presence.freeSlots(pool) > 0
    return isLost ? 'No worker has taken the request.' : undefined
  }

  #stopWorker(job: AttachedJob): void {
    // Workers remember the cancels of jobs they have not seen, and not without end.
    if (job.sentAtMs !== undefined) this.presence.send({ type: 'cancel', job_id: job.id })
  }

  #clearStartTimer(job: AttachedJob): void {
    clearTimeout(this.#timers.get(job.id)?.start)
  }

  #end(job: AttachedJob, end: 'completed' | 'failed' | 'cancelled', error?: ErrorBody): void {
    if (!this.#jobs.delete(job.id)) return
    const timers = this.#timers.get(job.id)
    clearTimeout(timers?.deadline)
    clearTimeout(timers?.start)
    clearTimeout(timers?.retry)
    this.#timers.delete(job.id)
    this.#sender.dropBlob(job)
    this.#sender.leave(job)
    if (end === 'completed') this.#admissionOf(job.envelope.pool, job.envelope).completed(Date.now())
    job.finish(error)
    this.#options.observer.onEnd(job, end, error)
  }
}
