import type { ErrorBody } from '#schemas/error.ts'
import type { JobEvent } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import type { ChannelRecord, Closable } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import { decide, type Outcome, RetryBudget } from '#shared/jobs/decide.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { passedReply, readReply, type SkippedEvent } from '#shared/jobs/records.ts'
import { jobsTopic, REPLIES, replyShard } from '#shared/jobs/topics.ts'
import { UnknownRecordLog } from '#shared/jobs/unknown-record-log.ts'
import { every } from '#shared/ticks.ts'
import { lateRefusal } from './admission-control.ts'
import { AttachedJob, envelopeOf, HeldJobs, type JobOwner, type NewAttachedJob } from './attached-job.ts'
import { type AttachedOptions, POLICY } from './options.ts'
import { Sender } from './sender.ts'
import { WaitQueues } from './wait-queues.ts'

/** How long a job waits for a worker that could start it, where there is none. */
const NO_WORKER_MS = 60_000
/** Silence after which an attempt counts as lost whose events may be gone: workers send again what the broker did not take. */
const REPLY_LOSS_MS = 10_000
/** How often those are looked for that wait and will not start in time. */
const LATE_EVERY_MS = 2_000

/**
 * The arbiter of attached jobs: the ingress process that holds their connections (docs/design.md, Arbiters).
 *
 * It submits each job in its tenant's turn, binds it to the worker whose `started` comes first, passes its output on, and
 * decides alone what follows a failure, a lost worker, a timeout or a cancel. Nothing of it is stored: when this process
 * ends, so do its jobs, and workers notice by its heartbeats.
 */
export class AttachedJobs implements JobOwner {
  readonly boot = newId('ing_', 16)
  presence!: Presence
  isDraining = false
  readonly #options: AttachedOptions
  /** Where workers send what they say to it. */
  readonly #reply = { boot: this.boot, shard: replyShard(this.boot) }
  readonly #skipped: UnknownRecordLog
  readonly #jobs = new HeldJobs()
  readonly #budget = new RetryBudget(0.1, 100)
  #sender!: Sender
  #lines!: WaitQueues<AttachedJob>
  #stopLooking: (() => void) | undefined
  #receiver: Closable | undefined
  #stopLosses: (() => void) | undefined
  readonly #lossTimers = new Set<NodeJS.Timeout>()

  private constructor(options: AttachedOptions) {
    this.#options = options
    this.#skipped = new UnknownRecordLog(options.log)
  }

  /** Starts to receive replies and heartbeats. */
  static async open(options: AttachedOptions): Promise<AttachedJobs> {
    const jobs = new AttachedJobs(options)
    jobs.#receiver = await options.broker.receive(REPLIES, [jobs.#reply.shard], (record) => {
      // Another replica may share the shard: the key tells whose record it is without parsing it.
      if (record.key === jobs.boot) jobs.#onReply(record)
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
        onLost: ({ boot }) => jobs.#lose(jobs.#jobs.runBy(boot), { worker: boot }, 'worker lost'),
        // The channel is heard before there is anything to send.
        onControl: (record) => {
          jobs.#sender?.onControl(record)
          options.pauses?.onControl(record)
        },
      },
    })
    const { boot, presence } = jobs
    const lines = new WaitQueues<AttachedJob>(presence)
    jobs.#lines = lines
    const onUnsent = (job: AttachedJob, error: unknown) => jobs.#onUnsent(job, error)
    jobs.#sender = new Sender({ ...options, boot, presence, lines, onUnsent })
    jobs.#stopLosses = options.broker.onLoss?.((name) => jobs.#onLoss(name))
    jobs.#stopLooking = every(LATE_EVERY_MS, () => jobs.#refuseLate())
    return jobs
  }

  /** Jobs held now. */
  get size(): number {
    return this.#jobs.size
  }

  /** Jobs of a pool held now, that wait or run. */
  count(pool: PoolName, state: 'queued' | 'running'): number {
    return this.#jobs.count(pool, state)
  }

  /** When the oldest job of a pool came that waits here, in unix milliseconds; undefined where none does. */
  oldestQueuedAtMs(pool: PoolName): number | undefined {
    return this.#jobs.oldestQueuedAtMs(pool)
  }

  /** Jobs of a pool that wait for their turn, in all ingresses as far as they are known. */
  callsWaiting(pool: PoolName): number {
    return this.#sender.callsWaiting(pool)
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
  async submit(spec: NewAttachedJob): Promise<AttachedJob> {
    if (this.isDraining) throw new ServiceError('overloaded', 'This server is shutting down.', { retryAfterMs: 1_000 })
    if (this.#jobs.size >= this.#options.jobsMax) {
      const message = 'Too many requests are under way. Try again shortly.'
      throw new ServiceError('overloaded', message, { retryAfterMs: 2_000 })
    }
    if (this.#options.broker.missing?.includes(REPLIES)) {
      throw new ServiceError('overloaded', 'No answer can come back: the topic of replies is missing in Kafka.')
    }
    this.#options.pauses?.refuse(spec)
    this.#sender.admit(spec)
    const job = new AttachedJob(envelopeOf(spec, this.#reply), this, spec)
    this.#jobs.set(job.id, job)
    this.#lines.entered(job)
    this.#budget.earn()
    job.timers.deadline = setTimeout(() => this.onOutcome(job, { type: 'timed_out' }), spec.timeoutMs)
    this.#awaitStart(job)
    try {
      await this.#sender.accept(job, spec)
    } catch (error) {
      // A record whose acknowledgement was lost may be in the queue all the same.
      this.#stopWorker(job)
      this.#end(job, 'failed', ServiceError.from(error).toBody())
      throw error
    }
    return job
  }

  /** The caller does not want it any more: the work stops, wherever it is. @param error What its reader gets, if still there */
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
    this.#stopLooking?.()
    this.#stopLosses?.()
    for (const timer of this.#lossTimers) clearTimeout(timer)
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

  onStaleWorker(job: AttachedJob, worker: string): void {
    this.presence.send({ type: 'cancel', job_id: job.id, attempt: job.attempt, worker })
  }

  #retry(job: AttachedJob, reason: string, delayMs: number): void {
    // It goes from worker to worker, and none that lives has its model.
    const waitedMs = Date.now() - job.envelope.created_at_ms
    const isTooLate = reason === 'handed_back' && waitedMs >= Math.min(this.#options.startTimeoutMs, NO_WORKER_MS)
    const error = isTooLate ? this.#sender.unstartedError(job, waitedMs) : undefined
    if (error) return this.#end(job, 'failed', error)
    if (reason === 'failed') this.#budget.spend()
    this.#options.observer.onRetry(job, reason)
    const { id: job_id, attempt, worker } = job
    this.#options.log.info({ job_id, attempt, reason, delay_ms: delayMs, worker }, 'job tried again')
    job.requeue()
    this.#lines.entered(job)
    this.#sender.leave(job)
    job.timers.retry = setTimeout(() => {
      // The pool may have no worker left: this attempt waits no longer for one than the first.
      this.#awaitStart(job)
      this.#sender.sendAgain(job)
    }, delayMs)
  }

  #awaitStart(job: AttachedJob): void {
    const waitMs = Math.min(this.#options.startTimeoutMs, NO_WORKER_MS)
    clearTimeout(job.timers.start)
    job.timers.start = setTimeout(() => this.#onUnstarted(job, waitMs), waitMs)
  }

  #onReply(received: ChannelRecord): void {
    // The bytes of what was passed are made only where they are asked for.
    const record = received.payload ? passedReply(received.payload) : readReply(received.value)
    if (!record) return this.#skipped.note('reply not understood')
    for (const type of record.skipped) this.#skipped.note('event not understood', type)
    for (const event of record.events) this.#onEvent(record.worker, event)
  }

  #onEvent(worker: string, event: JobEvent | SkippedEvent): void {
    const job = this.#jobs.get(event.job_id)
    if (job) {
      job.onEvent(worker, event)
      if (event.type === 'started' && job.worker === worker) {
        clearTimeout(job.timers.start)
        this.#lines.started(job)
        this.#sender.start(job)
        this.presence.expect(worker, job.envelope.pool)
      }
    } else if (event.type === 'started') {
      // Cancelled while it waited: its worker did not hear of it then.
      this.presence.send({ type: 'cancel', job_id: event.job_id, worker })
    }
  }

  /** It need not be dead: what costs nothing to run a second time does so, where a slot is free for it. */
  #onWorkerSilent(worker: Peer): void {
    const jobs = this.#jobs.cheapToRepeat(worker, this.#options.workerLostMs)
    const free = jobs[0] ? this.presence.freeSlots(jobs[0].envelope.pool) : 0
    this.#lose(jobs.slice(0, free), { worker: worker.boot }, 'worker silent')
  }

  #lose(jobs: readonly AttachedJob[], cause: { worker: string } | { topic: string }, message: string): void {
    if (jobs.length > 0) this.#options.log.warn({ ...cause, jobs: jobs.length }, message)
    for (const job of jobs) this.onOutcome(job, { type: 'lost' })
  }

  /** Records that the broker had taken are gone with their topic: those of jobs that wait, or events of jobs that run. */
  #onLoss(name: string): void {
    const atBroker = [...this.#jobs.values()].filter(({ isAtBroker }) => isAtBroker)
    if (name !== REPLIES) {
      const waiting = atBroker.filter(({ state, envelope }) => state === 'queued' && jobsTopic(envelope.pool) === name)
      return this.#lose(waiting, { topic: name }, 'jobs lost with their topic')
    }
    const before = atBroker.map((job) => ({ job, attempt: job.attempt, seq: job.lastSeq }))
    const timer = setTimeout(() => {
      this.#lossTimers.delete(timer)
      const silent = before.filter(({ job, attempt, seq }) => job.attempt === attempt && job.lastSeq === seq)
      const jobs = silent.map(({ job }) => job).filter(({ state }) => state !== 'done')
      this.#lose(jobs, { topic: name }, 'jobs without a reply since their topic was lost')
    }, REPLY_LOSS_MS)
    this.#lossTimers.add(timer)
  }

  #onUnsent(job: AttachedJob, error: unknown): void {
    // It may have arrived all the same.
    this.presence.send({ type: 'cancel', job_id: job.id, attempt: job.attempt })
    this.onOutcome(job, { type: 'failed', error: ServiceError.from(error).toBody() })
  }

  /** It goes on waiting, to its deadline, as long as somebody can start it. */
  #onUnstarted(job: AttachedJob, waitMs: number): void {
    if (job.state !== 'queued') return
    const error = this.#lines.mayBeLost(job) ? this.#sender.unstartedError(job, waitMs) : undefined
    if (!error) return this.#awaitStart(job)
    this.#stopWorker(job)
    this.#end(job, 'failed', error)
  }

  /** Those that wait hear it as early as it is known. While the broker is away nothing is. */
  #refuseLate(): void {
    if (!this.#options.broker.isReachable) return
    const { startTimeoutMs } = this.#options
    for (const { job, waitMs } of this.#lines.late(startTimeoutMs)) {
      this.#stopWorker(job)
      this.#end(job, 'failed', lateRefusal(waitMs, startTimeoutMs).toBody())
    }
  }

  #stopWorker(job: AttachedJob): void {
    // Workers remember the cancels of jobs they have not seen, and not without end.
    if (job.sentAtMs !== undefined) this.presence.send({ type: 'cancel', job_id: job.id })
  }

  #end(job: AttachedJob, end: 'completed' | 'failed' | 'cancelled', error?: ErrorBody): void {
    if (!this.#jobs.delete(job.id)) return
    for (const timer of Object.values(job.timers)) clearTimeout(timer)
    this.#sender.dropBlob(job)
    this.#lines.left(job)
    this.#sender.leave(job)
    if (end === 'completed') this.#sender.completed(job)
    job.finish(error)
    this.#options.observer.onEnd(job, end, error)
  }
}
