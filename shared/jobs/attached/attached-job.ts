import type { ErrorBody } from '#schemas/error.ts'
import type { JobEvent } from '#schemas/event.ts'
import type { AttachedEnvelope, PoolName } from '#schemas/job.ts'
import { answerTooLarge, ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import type { HandedBody, StoredBody } from '#shared/jobs/body.ts'
import type { Outcome } from '#shared/jobs/decide.ts'
import { EventBuffer, type MergeEvents } from '#shared/jobs/event-buffer.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import type { SkippedEvent } from '#shared/jobs/records.ts'

/** Buffered bytes of unread output at which the worker is told to pause, and at which it may go on. */
const PAUSE_BYTES = 256 * 1024
const RESUME_BYTES = 64 * 1024
/** Buffered bytes at which the job ends: a whole answer of that size, or a worker that ignores the pause. */
const BUFFER_BYTES_MAX = 8 * 1024 * 1024

/** How the output of a kind of job is kept for its reader. */
export interface OutputOptions {
  readonly merge: MergeEvents
  /** Whether an event is output a caller would see twice if the job ran again. */
  readonly isOutput: (event: unknown) => boolean
  /** Bytes of unread output at which the job ends; default: 8 MiB, those of a long text. */
  readonly answerBytesMax?: number | undefined
}

/** An attached job as its caller asks for it. */
export interface NewAttachedJob extends OutputOptions {
  readonly pool: PoolName
  readonly kind: string
  readonly tenant: string
  readonly model: string
  readonly body: unknown
  /** Bytes of memory that somebody accounts for until the call has ended, so that the body may stay there; absent: it is stored. */
  readonly heldBytes?: number | undefined
  readonly stream: boolean
  readonly timeoutMs: number
  readonly requestId: string
  readonly traceparent: string | undefined
  /** The longest `Retry-After` that its caller obeys, in milliseconds; default: a minute. */
  readonly retryMsMax?: number | undefined
}

/** The envelope of its first attempt. @param reply Where its events go */
export function envelopeOf(spec: NewAttachedJob, reply: AttachedEnvelope['reply']): AttachedEnvelope {
  const { pool, kind, tenant, model, stream, traceparent, requestId, timeoutMs } = spec
  const now = Date.now()
  const times = { created_at_ms: now, deadline_ms: now + timeoutMs }
  const head = { id: newId('job_'), attempt: 1, pool, kind, tenant, model, ...times, reply }
  return { ...head, stream, traceparent, request_id: requestId }
}

/** What a job asks of its arbiter. */
export interface JobOwner {
  /** An attempt ended; the arbiter decides and calls `start`, `finish` or nothing. */
  onOutcome(job: AttachedJob, outcome: Outcome): void
  /** More output waits than may; the attempt goes on until it is told to stop. */
  onOverflow(job: AttachedJob, error: ErrorBody): void
  onPause(job: AttachedJob, isPaused: boolean): void
  /** A worker other than the bound one started the attempt. */
  onStaleWorker(job: AttachedJob, worker: string): void
}

/**
 * One attached job, seen by the ingress that holds it.
 *
 * `queued → running → done`, and back to `queued` when the arbiter tries again. Output of an attempt is taken only from
 * the worker whose `started` came first, in the order of `seq`, without gaps; all else is dropped.
 */
export class AttachedJob {
  /** Without the body, which a large job must not keep in memory. */
  readonly envelope: AttachedEnvelope
  readonly id: string
  /** What it waits for: its deadline, a worker that starts the attempt, the next attempt. They are its arbiter's. */
  readonly timers: Partial<Record<'deadline' | 'start' | 'retry', NodeJS.Timeout>> = {}
  /** Where the body is, once it is taken. */
  stored: StoredBody | HandedBody | undefined
  state: 'queued' | 'running' | 'done' = 'queued'
  attempt = 1
  /** When an attempt was sent last, so that a worker may have it; undefined before the first. */
  sentAtMs: number | undefined
  /** The broker has taken the record of the current attempt. */
  isAtBroker = false
  tries = 0
  crashes = 0
  handBacks = 0
  /** Boot id of the worker that runs the current attempt. */
  worker: string | undefined
  startedAtMs: number | undefined
  firstOutputAtMs: number | undefined
  readonly #arbiter: JobOwner
  readonly #isOutput: (event: unknown) => boolean
  readonly #buffer: EventBuffer
  readonly #bytesMax: number
  #lastSeq = 0
  #isPaused = false
  #error: ServiceError | undefined
  #wake: (() => void) | undefined

  constructor(envelope: AttachedEnvelope, arbiter: JobOwner, output: OutputOptions) {
    this.envelope = envelope
    this.id = envelope.id
    this.#arbiter = arbiter
    this.#isOutput = output.isOutput
    this.#buffer = new EventBuffer(output.merge)
    this.#bytesMax = output.answerBytesMax ?? BUFFER_BYTES_MAX
  }

  /** Number of the last event of the current attempt; 0 before it started. */
  get lastSeq(): number {
    return this.#lastSeq
  }

  /** The caller may have seen output of this job, so another attempt would repeat it. A whole answer is seen at the end. */
  get hasOutput(): boolean {
    return this.envelope.stream && this.firstOutputAtMs !== undefined
  }

  /**
   * Waits for output. Gives the events that came since the last call, merged, at least one; undefined after the last.
   * A job that does not stream gives all of them at once, when it is done.
   *
   * @throws ServiceError When the job failed. Events that came before the failure are given first.
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

  /** Ends the job for its reader: no event is taken after this. */
  finish(error?: ErrorBody): void {
    if (this.state === 'done') return
    this.state = 'done'
    if (error) this.#error = ServiceError.fromBody(error)
    this.#wake?.()
  }

  /** Makes the job wait for a worker again, as the next attempt. Output that nobody may have seen is dropped. */
  requeue(): void {
    this.state = 'queued'
    this.attempt++
    this.isAtBroker = false
    this.worker = undefined
    this.#lastSeq = 0
    this.#buffer.takeAll()
    this.#pauseOrResume()
  }

  /** Takes one event from a worker. */
  onEvent(worker: string, event: JobEvent | SkippedEvent): void {
    if (this.state === 'done' || event.attempt !== this.attempt) return
    if (event.type === 'started') return this.#onStarted(worker)
    if (worker !== this.worker || event.seq <= this.#lastSeq) return
    if (event.seq !== this.#lastSeq + 1) return this.#arbiter.onOutcome(this, { type: 'lost' })
    this.#lastSeq = event.seq
    switch (event.type) {
      case 'delta':
        return this.#onOutput(event.deltas)
      case 'completed':
        this.#onOutput(event.deltas)
        // Too much unread output has already ended the job otherwise.
        if (this.state === 'running') this.#arbiter.onOutcome(this, { type: 'completed' })
        return
      case 'failed':
        return this.#arbiter.onOutcome(this, { type: 'failed', error: event.error })
      case 'handed_back':
        return this.#arbiter.onOutcome(this, { type: 'handed_back' })
      // What it says this version cannot know; what comes after it must not look like a gap.
      case 'skipped':
        return
    }
  }

  #onStarted(worker: string): void {
    if (this.worker === undefined) {
      this.worker = worker
      this.state = 'running'
      this.startedAtMs ??= Date.now()
      this.#lastSeq = 1
    } else if (this.worker !== worker) {
      this.#arbiter.onStaleWorker(this, worker)
    }
  }

  #onOutput(events: unknown[]): void {
    for (const event of events) {
      if (this.firstOutputAtMs === undefined && this.#isOutput(event)) this.firstOutputAtMs = Date.now()
      this.#buffer.push(event)
    }
    if (this.#buffer.bytes > this.#bytesMax) {
      const error = this.envelope.stream ? UNPAUSED : answerTooLarge(this.#bytesMax).toBody()
      return this.#arbiter.onOverflow(this, error)
    }
    this.#pauseOrResume()
    this.#wake?.()
  }

  #pauseOrResume(): void {
    if (!this.envelope.stream) return
    const isFull = this.#buffer.bytes > (this.#isPaused ? RESUME_BYTES : PAUSE_BYTES)
    if (isFull === this.#isPaused || this.state === 'done') return
    this.#isPaused = isFull
    this.#arbiter.onPause(this, isFull)
  }
}

const UNPAUSED: ErrorBody = {
  code: 'internal_error',
  message: 'The output is larger than the service can hold for its reader.',
  param: null,
}

/** The jobs that one ingress holds, by their ids. */
export class HeldJobs extends Map<string, AttachedJob> {
  /** Those of a pool that wait or run. */
  count(pool: PoolName, state: 'queued' | 'running'): number {
    let count = 0
    for (const job of this.values()) if (job.envelope.pool === pool && job.state === state) count++
    return count
  }

  /** When the oldest of a pool came that waits, in unix milliseconds; undefined where none does. */
  oldestQueuedAtMs(pool: PoolName): number | undefined {
    // They are in the order in which they came.
    for (const { envelope, state } of this.values()) {
      if (envelope.pool === pool && state === 'queued') return envelope.created_at_ms
    }
    return undefined
  }

  /** Those that a worker runs. @param boot Its boot id */
  runBy(boot: string): AttachedJob[] {
    return [...this.values()].filter((job) => job.worker === boot)
  }

  /**
   * Those of a silent worker that run a second time at no cost: they have seen no output, and lose less work than certainty
   * takes. Once a job: workers that are often slow must not use up its attempts.
   *
   * @param workerLostMs Silence after which the worker is surely dead.
   */
  cheapToRepeat({ boot, lastSeenMs }: Peer, workerLostMs: number): AttachedJob[] {
    const isCheap = ({ hasOutput, crashes, startedAtMs = 0 }: AttachedJob) =>
      !hasOutput && crashes === 0 && startedAtMs > lastSeenMs - workerLostMs
    return this.runBy(boot).filter(isCheap)
  }
}
