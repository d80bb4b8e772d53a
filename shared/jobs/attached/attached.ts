/*
 * The owner of attached jobs: the ingress process that holds the connections of their callers (docs/internals/design.md, Owners).
 *
 * Life of a job:
 * 1. `submit` refuses the job if too many jobs are in progress, its pool or model is paused, or its estimated wait is too long.
 * 2. The fair queue of its pool releases the job to the topic of the pool (`sender.ts`).
 * 3. The first worker that sends `started` is bound to the job, and its output goes to the caller (`attached-job.ts`).
 * 4. After a failure, a lost worker, a timeout or a cancel, `decide.ts` decides whether a new attempt follows or the job ends.
 *
 * The invariant: every job ends, at the latest at its deadline. If no live worker can start a job, then the job ends after the start timeout, or
 * after a minute if that is shorter.
 *
 * One process decides alone, so neither consensus nor a store is needed. The price is that the jobs of a process end with the process. Workers detect
 * the end of the process by missing heartbeats and stop the work.
 */

import type { ErrorBody } from '#schemas/error.ts'
import { PoolName } from '#schemas/job.ts'
import type { ChannelRecord, Closable } from '#shared/broker/broker.ts'
import { AdmissionControl } from '#shared/capacity/admission-control.ts'
import { type Decision, decide, LOST, type Outcome, RetryBudget, withAttempts } from '#shared/jobs/decide.ts'
import { type PoolWork, type Work, workOf } from '#shared/jobs/fleet-work.ts'
import { type Peer, preparingText } from '#shared/jobs/peers.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { jobsTopic, REPLIES, readReply, replyShard, UnknownRecordLog, type WorkerReply } from '#shared/jobs/records.ts'
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import { traceField } from '#shared/telemetry/context.ts'
import { tracing } from '#shared/telemetry/tracing.ts'
import {
  AttachedJob,
  type AttachedOptions,
  envelopeOf,
  type JobOwner,
  JobRegistry,
  type NewAttachedJob,
  POLICY,
} from './attached-job.ts'
import { Sender } from './sender.ts'

const NO_WORKER_TIMEOUT_MS = 60_000
/** Cache lifetime in ms of the numbers of queued and running calls by model. One scrape of the metrics reads them several times. */
const WORK_TTL_MS = 100
/**
 * If the broker loses the reply topic, then an attempt counts as lost when no event arrives within this time, in ms. Workers need less time to resend
 * all events that the broker had not acknowledged.
 */
const REPLY_LOSS_GRACE_MS = 10_000
const LATE_CHECK_INTERVAL_MS = 2_000
/** Retry-After in ms of a call whose deadline ended while its model was being downloaded or built. */
const PREPARING_RETRY_MS = 10_000

export class AttachedJobs implements JobOwner {
  readonly boot = newId('ing_', 16)
  presence!: Presence
  isDraining = false
  readonly #options: AttachedOptions
  readonly #reply = { boot: this.boot, shard: replyShard(this.boot) }
  readonly #unknownRecords: UnknownRecordLog
  readonly #jobs = new JobRegistry()
  readonly #budget = new RetryBudget(0.1, 100)
  #sender!: Sender
  #admission!: AdmissionControl<AttachedJob>
  #work: { readonly atMs: number; readonly rows: readonly Work[] } = { atMs: 0, rows: [] }
  #stopLateCheck: (() => void) | undefined
  #receiver: Closable | undefined
  #stopLosses: (() => void) | undefined
  readonly #lossTimers = new Set<NodeJS.Timeout>()

  private constructor(options: AttachedOptions) {
    this.#options = options
    this.#unknownRecords = new UnknownRecordLog(options.log)
  }

  static async open(options: AttachedOptions): Promise<AttachedJobs> {
    const jobs = new AttachedJobs(options)
    jobs.#receiver = await options.broker.receive(REPLIES, [jobs.#reply.shard], (record) => {
      // Several ingresses may share a partition of the reply topic. The key names the receiving ingress, so that other ingresses drop the record
      // without parsing.
      if (record.key === jobs.boot) jobs.#onReply(record)
    })
    jobs.presence = await Presence.open({
      broker: options.broker,
      log: options.log,
      suspectedMs: options.workerSuspectedMs,
      lostMs: options.workerLostMs,
      self: {
        boot: jobs.boot,
        role: 'ingress',
        version: options.version,
        slots: () => 0,
        running: () => jobs.#jobs.size,
        isDraining: () => jobs.isDraining,
        work: () => jobs.work(),
      },
      listener: {
        onSuspected: (peer) => jobs.#onWorkerSuspected(peer),
        onLost: (peer) => jobs.#onWorkerLost(peer),
        // The control channel may deliver records before the code below has set the sender and the admission control, so both may be undefined here.
        onCapacity: () => jobs.#admission?.onCapacity(),
        onControl: (record) => {
          jobs.#sender?.onControl(record)
          options.pauses?.onControl(record)
        },
      },
    })
    const { boot, presence } = jobs
    const admission = new AdmissionControl<AttachedJob>(presence, options.startTimeoutMs)
    jobs.#admission = admission
    const onUnsent = (job: AttachedJob, error: unknown) => jobs.#onUnsent(job, error)
    jobs.#sender = new Sender({ ...options, boot, presence, admission, onUnsent })
    jobs.#stopLosses = options.broker.onLoss?.((name) => jobs.#onLoss(name))
    jobs.#stopLateCheck = atAlignedInterval(LATE_CHECK_INTERVAL_MS, () => jobs.#refuseLate())
    return jobs
  }

  get size(): number {
    return this.#jobs.size
  }

  all(): Iterable<AttachedJob> {
    return this.#jobs.values()
  }

  count(pool: PoolName, state: 'queued' | 'running'): number {
    return this.#jobs.count(pool, state)
  }

  oldestQueuedAtMs(pool: PoolName): number | undefined {
    return this.#jobs.oldestQueuedAtMs(pool)
  }

  callsWaiting(pool: PoolName): number {
    return this.#sender.callsWaiting(pool)
  }

  waitingOf(pool: PoolName, model: string): number {
    return this.#sender.waitingOf(pool, model)
  }

  /** Returns the numbers of queued and running attached jobs by pool and model, which this ingress publishes to other processes. */
  work(): readonly Work[] {
    const now = Date.now()
    if (now - this.#work.atMs >= WORK_TTL_MS) this.#work = { atMs: now, rows: this.#jobs.work() }
    return this.#work.rows
  }

  /** Returns the waiting and running work of a pool in the whole fleet. The numbers of other processes are up to two seconds old. */
  fleetWork(pool: PoolName): PoolWork {
    return workOf(this.presence.peers.values(), pool, { boot: this.boot, rows: this.work() })
  }

  /**
   * Admits a job and sends it to its pool. Resolves when the broker has the record, or at once if the job waits in the fair queue.
   *
   * @throws ServiceError `overloaded` if admission control rejects the job, too many jobs are in progress, or the broker is unreachable
   */
  async submit(spec: NewAttachedJob): Promise<AttachedJob> {
    if (this.isDraining)
      throw new ServiceError('overloaded', 'This server is shutting down.', { retryAfterMs: 1_000, reason: 'draining' })
    if (this.#jobs.size >= this.#options.jobsMax) {
      const message = `The server has ${this.#options.jobsMax} calls in progress, the maximum. Try again shortly.`
      throw new ServiceError('overloaded', message, { retryAfterMs: 2_000, reason: 'calls_full' })
    }
    if (this.#options.broker.missing?.includes(REPLIES)) {
      throw new ServiceError('overloaded', 'No answer can be received: the Kafka topic for replies is missing.', {
        reason: 'kafka',
      })
    }
    this.#options.pauses?.refuse(spec)
    const ahead = this.#sender.ahead(spec)
    this.#admission.admit(spec, ahead)
    const job = new AttachedJob(envelopeOf(spec, this.#reply), this, spec)
    job.ahead = ahead
    this.#jobs.set(job.id, job)
    this.#admission.entered(job)
    this.#budget.earn()
    job.timers.deadline = setTimeout(() => this.onOutcome(job, { type: 'timed_out' }), spec.timeoutMs)
    this.#awaitStart(job)
    try {
      await this.#sender.accept(job, spec)
    } catch (error) {
      // The record may be in the queue although its acknowledgement was lost, so a worker could still start the job.
      this.#stopWorker(job)
      this.#end(job, 'failed', ServiceError.from(error).toBody())
      throw error
    }
    return job
  }

  /**
   * Ends a job and stops its worker, because the caller disconnected or cancelled.
   *
   * @param error Error for the caller, if still connected
   */
  cancel(job: AttachedJob, error?: ErrorBody): void {
    this.onOutcome(job, { type: 'cancelled', error })
  }

  /** Reason why a job without output waits, as text for its caller. Undefined if the job has output, or runs in a slot. */
  waitOf(job: AttachedJob): string | undefined {
    if (job.state === 'done' || job.firstOutputAtMs !== undefined) return undefined
    const { pool, model } = job.envelope
    const preparing = preparingText(this.presence.preparing(pool, model))
    if (preparing !== undefined) return preparing
    const wait = this.placeOf(job)
    if (!wait) return undefined
    const { position, waitMs } = wait
    return `#${position} in queue${waitMs === undefined ? '' : `, about ${Math.max(1, Math.round(waitMs / 1_000))} s`}`
  }

  /** Queue position and estimated wait of a job. Undefined if the job runs in a slot. */
  placeOf(job: AttachedJob): { readonly position: number; readonly waitMs: number | undefined } | undefined {
    return this.#admission.waitOf(job)
  }

  failAll(error: ErrorBody): void {
    const held = [...this.#jobs.values()]
    // The fair queue is emptied first. Otherwise each ended job would release the next waiting job to the broker.
    this.#sender.forget(held)
    for (const job of held) {
      this.#stopWorker(job)
      this.#end(job, 'failed', error)
    }
  }

  async close(): Promise<void> {
    this.#sender.close()
    this.#stopLateCheck?.()
    this.#stopLosses?.()
    for (const timer of this.#lossTimers) clearTimeout(timer)
    this.failAll({ code: 'overloaded', message: 'The server shut down.', param: null, reason: 'draining' })
    await this.presence.close()
    await this.#receiver?.close()
  }

  onOutcome(job: AttachedJob, outcome: Outcome): void {
    if (job.state === 'done') return
    if (outcome.type === 'failed') job.tries++
    if (outcome.type === 'lost') {
      job.crashes++
      job.traceLost()
    }
    if (outcome.type === 'handed_back') job.handBacks++
    const remainingMs = job.envelope.deadline_ms - Date.now()
    const { tries, crashes, handBacks, hasOutput } = job
    const history = { tries, crashes, handBacks, hasOutput, remainingMs }
    const decision = decide(outcome, history, POLICY, this.#budget.canSpend, Math.random())
    if (decision.do === 'retry' || decision.do === 'fail') recordFailure(job, outcome, decision)
    // A lost attempt may still run on a slow worker. Only this attempt is cancelled, because a new attempt may follow.
    if (outcome.type === 'lost') this.presence.send({ type: 'cancel', job_id: job.id, attempt: job.attempt })
    if (outcome.type === 'cancelled' || outcome.type === 'timed_out') this.#stopWorker(job)
    if (decision.do === 'complete') this.#end(job, 'completed')
    else if (decision.do === 'cancel') this.#end(job, 'cancelled', decision.error)
    else if (decision.do === 'fail') this.#end(job, 'failed', withAttempts(decision.error, tries))
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
    // Workers may return a job again and again without running it. The job therefore fails if its start timeout has passed and no live
    // worker can start it.
    const waitedMs = Date.now() - job.envelope.created_at_ms
    const isTooLate =
      reason === 'handed_back' && waitedMs >= Math.min(this.#options.startTimeoutMs, NO_WORKER_TIMEOUT_MS)
    const error = isTooLate ? this.#sender.unstartedError(job, waitedMs) : undefined
    if (error) return this.#end(job, 'failed', error)
    if (reason === 'failed') this.#budget.spend()
    this.#options.observer.onRetry(job, reason)
    const { id: job_id, attempt, worker } = job
    const trace = traceField(job.envelope.traceparent)
    const fields = { job_id, ...trace, attempt, reason, delay_ms: Math.round(delayMs), worker }
    this.#options.log.info(fields, 'job retried')
    job.requeue()
    this.#admission.entered(job)
    this.#sender.leave(job)
    job.timers.retry = setTimeout(() => {
      // The new attempt gets the full start timeout again, because the pool may have lost its last worker.
      this.#awaitStart(job)
      this.#sender.sendAgain(job)
    }, delayMs)
  }

  #awaitStart(job: AttachedJob): void {
    const waitMs = Math.min(this.#options.startTimeoutMs, NO_WORKER_TIMEOUT_MS)
    clearTimeout(job.timers.start)
    job.timers.start = setTimeout(() => this.#onUnstarted(job, waitMs), waitMs)
  }

  #onReply(received: ChannelRecord): void {
    const record = (received.payload as WorkerReply | undefined) ?? readReply(received.value)
    if (!record) return this.#unknownRecords.note('unreadable reply ignored')
    for (const type of record.skipped ?? []) this.#unknownRecords.note('event of unknown type ignored', type)
    const { worker } = record
    for (const event of record.events) {
      const job = this.#jobs.get(event.job_id)
      if (job) {
        job.onEvent(worker, event)
        if (event.type === 'started' && job.worker === worker) {
          clearTimeout(job.timers.start)
          if (tracing.tracer) job.traceQueue(tracing.tracer)
          this.#admission.started(job)
          this.#sender.start(job)
          this.presence.expect(worker, job.envelope.pool)
        }
      } else if (event.type === 'started') {
        // The job has already ended here, for example by a cancel while its record was in the queue. The worker must stop the attempt.
        this.presence.send({ type: 'cancel', job_id: event.job_id, worker })
      }
    }
  }

  /**
   * Called when a worker is suspected but not yet declared dead. Jobs of this worker that are cheap to repeat are retried on other workers, limited
   * by the free slots.
   */
  #onWorkerSuspected(worker: Peer): void {
    const jobs = this.#jobs.hedgeCandidates(worker, this.#options.workerLostMs)
    const free = jobs[0] ? this.presence.freeSlots(jobs[0].envelope.pool) : 0
    this.#failAttempts(jobs.slice(0, free), { worker: worker.boot }, 'worker suspected')
  }

  /** Called when a worker is dead. Retries or fails its jobs. The loss is logged, unless the worker had announced its end and ran no jobs. */
  #onWorkerLost({ boot: worker, role, slots, draining, capacity }: Peer): void {
    const { data: pool } = PoolName.safeParse(role)
    if (!pool) return
    const jobs = this.#jobs.runBy(worker)
    if (!draining || slots > 0) {
      this.#options.observer.onWorkerLost?.(pool)
      const { host, pid } = capacity ?? {}
      this.#options.log.warn({ worker, pool, host, pid, jobs: jobs.length }, 'worker lost')
    } else if (jobs.length > 0)
      this.#options.log.warn({ worker, jobs: jobs.length }, 'worker shut down before its jobs had ended')
    for (const job of jobs) this.onOutcome(job, { type: 'lost' })
  }

  #failAttempts(jobs: readonly AttachedJob[], cause: { worker: string } | { topic: string }, message: string): void {
    if (jobs.length > 0) this.#options.log.warn({ ...cause, jobs: jobs.length }, message)
    for (const job of jobs) this.onOutcome(job, { type: 'lost' })
  }

  /** Called when the broker has lost a topic with acknowledged records, which were queued jobs of a pool or events of running jobs. */
  #onLoss(name: string): void {
    const atBroker = [...this.#jobs.values()].filter(({ isAtBroker }) => isAtBroker)
    if (name !== REPLIES) {
      const waiting = atBroker.filter(({ state, envelope }) => state === 'queued' && jobsTopic(envelope.pool) === name)
      return this.#failAttempts(waiting, { topic: name }, 'Kafka lost the topic of a queue; its jobs are sent again')
    }
    const before = atBroker.map((job) => ({ job, attempt: job.attempt, seq: job.lastSeq }))
    const timer = setTimeout(() => {
      this.#lossTimers.delete(timer)
      const silent = before.filter(({ job, attempt, seq }) => job.attempt === attempt && job.lastSeq === seq)
      const jobs = silent.map(({ job }) => job).filter(({ state }) => state !== 'done')
      this.#failAttempts(jobs, { topic: name }, 'Kafka lost the reply topic; jobs without a reply are retried or fail')
    }, REPLY_LOSS_GRACE_MS)
    this.#lossTimers.add(timer)
  }

  #onUnsent(job: AttachedJob, error: unknown): void {
    // The record may have reached the broker in spite of the error, so a worker may start this attempt.
    this.presence.send({ type: 'cancel', job_id: job.id, attempt: job.attempt })
    this.onOutcome(job, { type: 'failed', error: ServiceError.from(error).toBody() })
  }

  /** Fails a job that has not started in time, unless a live worker can still start it before its deadline. */
  #onUnstarted(job: AttachedJob, waitMs: number): void {
    if (job.state !== 'queued') return
    const error = this.#admission.mayBeLost(job) ? this.#sender.unstartedError(job, waitMs) : undefined
    if (!error) return this.#awaitStart(job)
    this.#stopWorker(job)
    this.#end(job, 'failed', error)
  }

  /** Rejects waiting jobs as soon as the estimate shows that they will start too late. While the broker is unreachable, no estimate is possible. */
  #refuseLate(): void {
    if (!this.#options.broker.isReachable) return
    for (const { job, error } of this.#admission.late()) {
      this.#stopWorker(job)
      this.#end(job, 'failed', error.toBody())
    }
  }

  #stopWorker(job: AttachedJob): void {
    // A cancel is sent only if a worker may have the job. Workers store only a limited number of cancels of unknown jobs, so a needless
    // cancel could displace another one.
    if (job.sentAtMs !== undefined) this.presence.send({ type: 'cancel', job_id: job.id })
  }

  #end(job: AttachedJob, end: 'completed' | 'failed' | 'cancelled', error?: ErrorBody): void {
    if (!this.#jobs.delete(job.id)) return
    const shown = error?.code === 'timeout' ? (this.#unpreparedError(job) ?? error) : error
    for (const timer of Object.values(job.timers)) clearTimeout(timer)
    if (job.stored && 'blob' in job.stored) this.#sender.dropBlob(job.id)
    if (end === 'completed') this.#admission.completed(job.envelope)
    this.#admission.left(job)
    this.#sender.leave(job)
    job.finish(shown)
    this.#options.observer.onEnd(job, end, shown)
  }

  /** Error for a job whose deadline has passed while all workers with its model were still preparing the model. Undefined if a worker is ready. */
  #unpreparedError({ envelope: { pool, model }, firstOutputAtMs }: AttachedJob): ErrorBody | undefined {
    const preparing = this.presence.preparing(pool, model)
    if (!preparing || firstOutputAtMs !== undefined) return undefined
    const message = `The deadline of the call ended during the preparation (${preparingText(preparing)}). Try again later.`
    const code = pool === 'code' ? 'sandbox_unavailable' : 'model_loading'
    return { code, message, param: null, retry_after_ms: PREPARING_RETRY_MS }
  }
}

/** Records a failed attempt. An attempt that a worker handed back, or that no worker started, has not failed, so it is not recorded. */
function recordFailure(
  job: AttachedJob,
  outcome: Outcome,
  decision: Extract<Decision, { do: 'retry' | 'fail' }>,
): void {
  const delayMs = decision.do === 'retry' ? decision.delayMs : null
  if (outcome.type === 'failed') return job.attemptFailed(outcome.error, job.server, delayMs)
  if (outcome.type === 'handed_back' || job.attemptStartedAtMs === undefined) return
  job.attemptFailed(decision.do === 'fail' ? decision.error : LOST, undefined, delayMs)
}
