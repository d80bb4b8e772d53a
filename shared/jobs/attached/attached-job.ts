/*
 * One attached job in the ingress that owns it: `queued → running → done`, and back to `queued` for a new attempt.
 *
 * The invariant: the caller never receives mixed output of two workers, nor output with a gap.
 *
 * 1. The first worker that sends `started` is bound to the attempt. If another worker starts the same attempt, then the owner cancels it there.
 * 2. Only events of the bound worker count, in the order of `seq`. Events of other workers and of other attempts are dropped.
 * 3. A gap in `seq` means lost events, so the attempt counts as lost. Example: event 4 arrives after event 2.
 * 4. Output is merged and buffered until the caller reads it. Above 256 KiB the worker receives a request to pause, and below 64 KiB a request to
 *    resume.
 * 5. A new attempt drops the unread output of the old one. A job without streaming returns all events when it is done.
 */

import type { FailedAttempt } from '#schemas/admin/requests.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { JobEvent } from '#schemas/event.ts'
import type { AttachedEnvelope, PoolName } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { Pauses } from '#shared/capacity/capacity.ts'
import type { DecodedBody, StoredBody } from '#shared/jobs/body.ts'
import type { Outcome, RetryPolicy } from '#shared/jobs/decide.ts'
import type { Work } from '#shared/jobs/fleet-work.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import type { SkippedEvent } from '#shared/jobs/records.ts'
import { EventBuffer, type MergeEvents } from '#shared/lib/buffers.ts'
import { answerTooLarge, ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import type { Log } from '#shared/log/log.ts'
import { startAttempt, type Tracer, tracing } from '#shared/telemetry/tracing.ts'

const PAUSE_BYTES = 256 * 1024
const RESUME_BYTES = 64 * 1024
/** Bytes of unread output at which the job fails. Reached only if one answer is very large, or if the worker ignores the pause. */
const BUFFER_BYTES_MAX = 8 * 1024 * 1024
/** Maximum failed attempts that are recorded per job. Later failures are not recorded. */
const FAILED_ATTEMPTS_MAX = 10

interface OutputOptions {
  readonly merge: MergeEvents
  /** Whether an event is output for the caller. After such an event, another attempt would repeat output that the caller already received. */
  readonly isOutput: (event: unknown) => boolean
  readonly answerBytesMax?: number | undefined
}

export interface NewAttachedJob extends OutputOptions {
  /** Default: a random id. */
  readonly id?: string
  readonly pool: PoolName
  readonly kind: string
  readonly tenant: string
  readonly model: string
  readonly body: unknown
  /**
   * Size of the body in bytes, which a memory budget has reserved until the call ends. The body may therefore stay in memory. If undefined,
   * then no memory is reserved, so the body must be stored (`shared/jobs/body.ts`).
   */
  readonly heldBytes?: number | undefined
  readonly stream: boolean
  readonly timeoutMs: number
  readonly requestId: string
  readonly traceparent: string | undefined
  /** Longest `Retry-After` that this caller's SDK honours, in ms. Default: one minute. */
  readonly retryMsMax?: number | undefined
}

export function envelopeOf(spec: NewAttachedJob, reply: AttachedEnvelope['reply']): AttachedEnvelope {
  const { pool, kind, tenant, model, stream, traceparent, requestId, timeoutMs } = spec
  const now = Date.now()
  const times = { created_at_ms: now, deadline_ms: now + timeoutMs }
  const head = { id: spec.id ?? newId('job_'), attempt: 1, pool, kind, tenant, model, ...times, reply }
  return { ...head, stream, traceparent, request_id: requestId }
}

export interface JobOwner {
  /** Called when an attempt has ended. The owner ends the job, requeues it or ignores the outcome. */
  onOutcome(job: AttachedJob, outcome: Outcome): void
  /** Called when unread output exceeds the limit. The attempt runs until the owner stops it. */
  onOverflow(job: AttachedJob, error: ErrorBody): void
  onPause(job: AttachedJob, isPaused: boolean): void
  /** Called if a worker starts an attempt that is already bound to another worker. */
  onStaleWorker(job: AttachedJob, worker: string): void
}

export class AttachedJob {
  /** Content of the queue record, without the body. A large body must not stay in memory for the life of the job. */
  readonly envelope: AttachedEnvelope
  readonly id: string
  /** Timers that the owner sets and clears: the job's deadline, the wait for a worker, and the delay before the next attempt. */
  readonly timers: Partial<Record<'deadline' | 'start' | 'retry', NodeJS.Timeout>> = {}
  stored: StoredBody | DecodedBody | undefined
  state: 'queued' | 'running' | 'done' = 'queued'
  attempt = 1
  /**
   * Time at which the last attempt was sent. Undefined before the first attempt. If set, then a worker may have the
   * job.
   */
  sentAtMs: number | undefined
  /** Time at which the wait for this attempt began: the call was accepted, or the previous attempt ended. Includes the retry delay. */
  queuedAtMs = Date.now()
  attemptStartedAtMs: number | undefined
  /** Number of jobs that were ahead of this job when it was accepted. */
  ahead: number | undefined
  isAtBroker = false
  tries = 0
  crashes = 0
  handBacks = 0
  worker: string | undefined
  /** Upstream server of the last attempt that has ended, as its event `completed` or `failed` reported. */
  server: string | undefined
  /** Failed attempts, for the request log. Undefined for a job without a failed attempt. */
  failedAttempts: FailedAttempt[] | undefined
  startedAtMs: number | undefined
  firstOutputAtMs: number | undefined
  readonly #owner: JobOwner
  readonly #isOutput: (event: unknown) => boolean
  readonly #buffer: EventBuffer
  readonly #bytesMax: number
  #lastSeq = 0
  #isPaused = false
  #error: ServiceError | undefined
  #wake: (() => void) | undefined

  constructor(envelope: AttachedEnvelope, owner: JobOwner, output: OutputOptions) {
    this.envelope = envelope
    this.id = envelope.id
    this.#owner = owner
    this.#isOutput = output.isOutput
    this.#buffer = new EventBuffer(output.merge)
    this.#bytesMax = output.answerBytesMax ?? BUFFER_BYTES_MAX
  }

  get lastSeq(): number {
    return this.#lastSeq
  }

  /** True if the caller may have received output, so that another attempt would repeat it. An answer that is not streamed is sent only at the end. */
  get hasOutput(): boolean {
    return this.envelope.stream && this.firstOutputAtMs !== undefined
  }

  /** Records the trace span of the time in the queue. The worker of the attempt records the later spans. */
  traceQueue(tracer: Tracer): void {
    const { traceparent: parent, pool, tenant } = this.envelope
    const [startMs, sentAtMs = startMs, endMs = Date.now()] = [this.queuedAtMs, this.sentAtMs, this.attemptStartedAtMs]
    const heldMs = Math.max(0, sentAtMs - startMs)
    const attributes = {
      'messaging.destination.name': `jobs.${pool}`,
      'sluice.job.id': this.id,
      'sluice.attempt': this.attempt,
      'sluice.project': tenant,
      'sluice.queue.ahead': this.attempt === 1 ? this.ahead : undefined,
      // Time before the job was sent to the broker. In this time, the job waits in the fair queue or, for a retry, until the retry delay
      // has passed. After this time, the job waits for a worker.
      'sluice.queue.held_ms': heldMs,
      'sluice.queue.reason':
        heldMs * 2 <= endMs - startMs ? 'worker' : this.attempt === 1 ? 'fair_queue' : 'retry_delay',
    }
    tracer.start({ name: `queue ${pool}`, kind: 'producer', parent, startMs, attributes })?.end(undefined, null, endMs)
  }

  /** Records the span of an attempt whose worker is lost, because the worker cannot record it. */
  traceLost(): void {
    if (!tracing.tracer || this.attemptStartedAtMs === undefined) return
    const attributes = { 'sluice.worker': this.worker, 'sluice.outcome': 'lost' }
    const job = { ...this.envelope, attempt: this.attempt }
    startAttempt(job, attributes, this.attemptStartedAtMs)?.end(undefined, 'worker_lost')
  }

  /**
   * Waits for events and returns all events since the last call, merged. Returns undefined after the last event. A job without streaming returns all
   * events together when it is done.
   *
   * @throws ServiceError if the job failed, after the events before the failure were returned
   */
  next(): Promise<unknown[] | undefined> {
    return new Promise((resolve, reject) => {
      this.#wake = () => {
        if (this.state !== 'done' && (this.#buffer.isEmpty || !this.envelope.stream)) return
        this.#wake = undefined
        const events = this.#buffer.takeAll()
        this.#pauseOrResume()
        if (events.length > 0) resolve(events)
        else if (this.#error) reject(this.#error)
        else resolve(undefined)
      }
      this.#wake()
    })
  }

  finish(error?: ErrorBody): void {
    if (this.state === 'done') return
    this.state = 'done'
    if (error) this.#error = ServiceError.fromBody(error)
    this.#wake?.()
  }

  /**
   * Records the failure of the current attempt.
   *
   * @param server Upstream server of the attempt
   * @param retryDelayMs Time until the next attempt. Null if no attempt follows
   */
  attemptFailed(error: ErrorBody, server: string | undefined, retryDelayMs: number | null): void {
    const { attempt, worker = null, queuedAtMs, attemptStartedAtMs: startedAtMs = queuedAtMs } = this
    this.failedAttempts ??= []
    if (this.failedAttempts.length >= FAILED_ATTEMPTS_MAX) return
    this.failedAttempts.push({
      ...{ attempt, started_at: startedAtMs / 1_000, duration_ms: Math.max(0, Date.now() - startedAtMs), worker },
      ...{ server: server ?? null, error_code: error.code, error_message: error.message },
      ...{ upstream_message: error.upstream_message ?? null },
      retry_delay_ms: retryDelayMs === null ? null : Math.round(retryDelayMs),
    })
  }

  requeue(): void {
    this.state = 'queued'
    this.attempt++
    this.isAtBroker = false
    this.worker = undefined
    this.queuedAtMs = Date.now()
    this.attemptStartedAtMs = undefined
    this.#lastSeq = 0
    this.#buffer.takeAll()
    this.#pauseOrResume()
  }

  onEvent(worker: string, event: JobEvent | SkippedEvent): void {
    if (this.state === 'done' || event.attempt !== this.attempt) return
    if (event.type === 'started') {
      if (this.worker === undefined) {
        this.worker = worker
        this.server = undefined
        this.state = 'running'
        this.attemptStartedAtMs = Date.now()
        this.startedAtMs ??= this.attemptStartedAtMs
        this.#lastSeq = 1
      } else if (this.worker !== worker) this.#owner.onStaleWorker(this, worker)
      return
    }
    if (worker !== this.worker || event.seq <= this.#lastSeq) return
    if (event.seq !== this.#lastSeq + 1) return this.#owner.onOutcome(this, { type: 'lost' })
    this.#lastSeq = event.seq
    // Without streaming, the output of a failed attempt is dropped. The caller then has not received a first output.
    if (!this.envelope.stream && (event.type === 'failed' || event.type === 'handed_back'))
      this.firstOutputAtMs = undefined
    switch (event.type) {
      case 'delta':
        return this.#onOutput(event.deltas)
      case 'completed':
        this.server = event.server
        this.#onOutput(event.deltas)
        // If the answer exceeded the buffer, then `onOverflow` has already ended the job, so no further outcome is
        // reported.
        if (this.state === 'running') this.#owner.onOutcome(this, { type: 'completed' })
        return
      case 'failed':
        this.server = event.server
        return this.#owner.onOutcome(this, { type: 'failed', error: event.error })
      case 'handed_back':
        return this.#owner.onOutcome(this, { type: 'handed_back' })
      // An event of an unknown type, from a newer version, is ignored. The sequence number of the event still counts, because otherwise the next
      // event would look like a gap.
      case 'skipped':
        return
    }
  }

  #onOutput(events: unknown[]): void {
    for (const event of events) {
      if (this.firstOutputAtMs === undefined && this.#isOutput(event)) this.firstOutputAtMs = Date.now()
      this.#buffer.push(event)
    }
    if (this.#buffer.bytes > this.#bytesMax) {
      const error = this.envelope.stream ? UNPAUSED : answerTooLarge(this.#bytesMax).toBody()
      return this.#owner.onOverflow(this, error)
    }
    this.#pauseOrResume()
    this.#wake?.()
  }

  #pauseOrResume(): void {
    if (!this.envelope.stream) return
    const isFull = this.#buffer.bytes > (this.#isPaused ? RESUME_BYTES : PAUSE_BYTES)
    if (isFull === this.#isPaused || this.state === 'done') return
    this.#isPaused = isFull
    this.#owner.onPause(this, isFull)
  }
}

const UNPAUSED: ErrorBody = {
  code: 'internal_error',
  message: 'The unread output of the call exceeds the buffer of the service, because the worker did not pause.',
  param: null,
}

export class JobRegistry extends Map<string, AttachedJob> {
  count(pool: PoolName, state: 'queued' | 'running'): number {
    let count = 0
    for (const job of this.values()) if (job.envelope.pool === pool && job.state === state) count++
    return count
  }

  oldestQueuedAtMs(pool: PoolName): number | undefined {
    // A Map iterates in insertion order, so the first match is the oldest.
    for (const { envelope, state } of this.values()) {
      if (envelope.pool === pool && state === 'queued') return envelope.created_at_ms
    }
    return undefined
  }

  work(): Work[] {
    const rows = new Map<string, { -readonly [Name in keyof Work]: Work[Name] }>()
    for (const { envelope, state } of this.values()) {
      const { pool, model, created_at_ms } = envelope
      const key = `${pool} ${model}`
      const row = rows.get(key) ?? { pool, model, queued: 0, running: 0 }
      rows.set(key, row)
      row[state === 'queued' ? 'queued' : 'running']++
      // A Map iterates in insertion order, so the first queued job is the oldest.
      if (state === 'queued') row.oldest_at_ms ??= created_at_ms
    }
    return [...rows.values()]
  }

  runBy(boot: string): AttachedJob[] {
    return [...this.values()].filter((job) => job.worker === boot)
  }

  /**
   * Jobs of a suspected worker that are cheap to run again on another worker. These jobs have sent no output, and started less than
   * `workerLostMs` before the last heartbeat of the worker. The repetition counts as a crash of the job. Jobs with an earlier crash are
   * excluded, because otherwise slow workers could use up all attempts of a job.
   *
   * @param workerLostMs Silence after which the worker is declared dead
   */
  hedgeCandidates({ boot, lastSeenMs }: Peer, workerLostMs: number): AttachedJob[] {
    const isCheap = ({ hasOutput, crashes, startedAtMs = 0 }: AttachedJob) =>
      !hasOutput && crashes === 0 && startedAtMs > lastSeenMs - workerLostMs
    return this.runBy(boot).filter(isCheap)
  }
}

/** Retry policy of attached jobs. Retries are few and quick, because a caller waits on an open connection. */
export const POLICY: RetryPolicy = {
  triesMax: 3,
  crashesMax: 3,
  backoff: { baseMs: 250, maxMs: 4_000 },
  // The job fails after workers have handed it back this many times without running it. The delay before a retry grows each time, so 40 times take
  // about a minute.
  handBacksMax: 40,
  delayMsMax: 5_000,
}

interface AttachedObserver {
  onRetry(job: AttachedJob, reason: string): void
  onWorkerLost?(pool: PoolName): void
  onEnd(job: AttachedJob, end: 'completed' | 'failed' | 'cancelled', error?: ErrorBody): void
}

export interface AttachedOptions {
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly observer: AttachedObserver
  readonly version: string
  /** Time in ms without heartbeats after which a worker is suspected. Calls without output may then be retried on another worker. */
  readonly workerSuspectedMs: number
  /**
   * Time in ms without heartbeats after which a worker is declared dead. Streams of this worker that have sent output
   * then fail.
   */
  readonly workerLostMs: number
  /** Maximum estimated wait in ms. A job with a longer estimate is rejected. */
  readonly startTimeoutMs: number
  readonly jobsMax: number
  readonly pauses?: Pauses | undefined
}
