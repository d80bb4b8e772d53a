import type { DurableJob } from '#schemas/durable-job.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { EncodeContext, JobEnvelope } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { answerTooLarge, ServiceError } from '#shared/error.ts'
import { decide, isTry, type RetryBudget, type RetryPolicy } from '#shared/jobs/decide.ts'
import type { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import type { Family } from '#shared/jobs/durable/family.ts'
import { EventBuffer } from '#shared/jobs/event-buffer.ts'
import type { Answer, AnswerStream } from '#shared/kinds/answer.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import type { Kind, Progress } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import type { Moved, NewEvent, Store } from '#shared/store/store.ts'
import { type Metered, meteredOf, NOTHING } from '#shared/usage/meter.ts'
import { Composing, wrapUpMsOf } from './compose/compose.ts'
import { Replaying } from './compose/replay.ts'
import { outputOf, usageOf } from './durable-output.ts'
import { delay, OwnerWrites } from './owner-writes.ts'
import { ANSWER_BYTES_MAX, type AttemptSink } from './sink.ts'

/** Output is committed in chunks of this time (docs/design.md, Commit before you speak). */
const FLUSH_MS = 50
/** A store that takes long is asked less often: writes of one run fill at most this share of the time. */
const BUSY_SHARE = 1 / 4
/** One slow write must not silence a run for long. */
const PAUSE_MS_MAX = 2_000
/** Unwritten output of one run at which its engine is made to wait. */
const BACKLOG_BYTES = 256 * 1024
/** Progress is told at most twice a second, and once more when an attempt ends (docs/protocol.md, Job events). */
const PROGRESS_MS = 500

/** Retries of durable jobs: nobody holds a connection, so they may take their time. */
export const DURABLE_POLICY: RetryPolicy = {
  triesMax: 3,
  crashesMax: 3,
  handBacksMax: Number.POSITIVE_INFINITY,
  backoff: { baseMs: 1_000, maxMs: 60_000 },
  delayMsMax: 3_600_000,
}

/** The same while the retry budget is used up: many jobs fail at once, so they are spread over a longer time. */
const PATIENT_POLICY: RetryPolicy = { ...DURABLE_POLICY, backoff: { baseMs: 60_000, maxMs: 300_000 } }

/** What a run works with. */
export interface RunOptions {
  readonly store: Store
  readonly blobs: Blobs
  readonly dispatcher: Dispatcher
  readonly family: Family
  readonly log: Log
  readonly budget: RetryBudget
  /** Aborts when the process gives up on what it still has to write. */
  readonly signal: AbortSignal
}

/**
 * What one attempt of a durable job writes to the store, in order (see {@link OwnerWrites}). While the store cannot be reached
 * the engine waits. When a guard refuses, the job is no longer ours: `onStop`.
 */
export class DurableRun implements AttemptSink {
  readonly canRestart = true
  /**
   * Called when the attempt is to stop: the store wants it cancelled, or cancelled once it has written what there is (`partial`),
   * the job is no longer ours, or may not be for long (it is to be handed back).
   */
  onStop: (reason: 'cancelled' | 'partial' | 'lost' | 'lapsed') => void = () => {}
  readonly #job: JobEnvelope
  readonly #claimed: DurableJob
  readonly #writes: OwnerWrites
  readonly #options: RunOptions
  readonly #kind: Pick<Kind, 'childrenAtOnce' | 'wrapUpMs'>
  /** In the words of the endpoint that the job stands for. */
  readonly #answer: Answer
  #stream: AnswerStream | undefined
  readonly #whole: EventBuffer
  readonly #bytesMax: number
  readonly #pending: EventBuffer
  #parkedOn: readonly string[] = []
  /** Aborts when the job is to write what there is. */
  readonly #wrapsUp = new AbortController()
  #progress: Progress | undefined
  #progressAtMs = 0
  /** First failure of an encoder. */
  #encodingError: unknown
  #flush: Promise<void> | undefined
  /** Aborts when the run is about to end: what waits to be written goes along with the end. */
  readonly #ending = new AbortController()

  /** @param moved The claim. */
  constructor(job: JobEnvelope, kind: Kind, moved: Moved, boot: string, options: RunOptions) {
    this.#job = job
    this.#claimed = moved.job
    this.#writes = new OwnerWrites({ id: job.id, attempt: job.attempt, boot }, options, () => this.onStop('lost'))
    this.#options = options
    this.#kind = kind
    this.#answer = kind.answer(job.endpoint)
    this.#whole = new EventBuffer(kind.merge)
    this.#bytesMax = kind.answerBytesMax ?? ANSWER_BYTES_MAX
    this.#pending = new EventBuffer(kind.merge)
    // An attempt before was told so.
    if (moved.job.cancel_requested_at_ms !== null) this.#wrapsUp.abort()
  }

  /** See {@link OwnerWrites.tellSoon}. */
  publishSoon(claimed: Moved): void {
    this.#writes.tellSoon(claimed)
  }

  get isWrappingUp(): boolean {
    return this.#wrapsUp.signal.aborted
  }

  wrapUp(): void {
    this.#wrapsUp.abort()
  }

  /** Gives a promise of room when there is none. @throws ServiceError `answer_too_large` */
  event(event: unknown): Promise<void> | undefined {
    this.#hear(event)
    if (!this.#job.stream) return undefined
    this.#pending.push(event)
    this.#flush ??= this.#flushSoon()
    return this.#pending.bytes > BACKLOG_BYTES ? this.#flush : undefined
  }

  #hear(event: unknown): void {
    this.#whole.push(event)
    if (this.#whole.bytes > this.#bytesMax) throw answerTooLarge(this.#bytesMax)
  }

  /** Takes events that a step remembers, and gives them as they are written. */
  readonly #say = (events: readonly unknown[]): NewEvent[] => {
    for (const event of events) this.#hear(event)
    if (!this.#job.stream) return []
    return events.flatMap((event) => (this.#open()?.push(event) ?? []).map(outputOf))
  }

  readonly onProgress = (progress: Progress): void => {
    this.#progress = progress
    this.#flush ??= this.#flushSoon()
  }

  async completed(): Promise<void> {
    await this.#stopFlushing()
    // Output that could not be encoded is missing from the record: such a job has not ended well.
    if (this.#encodingError !== undefined) throw this.#encodingError
    const events = this.#whole.takeAll()
    const result = await this.#answer.whole(events, this.#encode)
    const output = this.#takeOutput(this.#hasTold)
    if (this.#job.stream) output.push(...(this.#open()?.end() ?? []).map(outputOf))
    const usage = usageOf(result, events)
    const metered = this.#metered(events)
    const end = { result, usage, metered, output }
    await this.#writes.write(() => (run) => this.#options.store.complete(run, end), result)
  }

  async failed(error: ErrorBody, isInfrastructure = false): Promise<void> {
    await this.#stopFlushing()
    const { store, budget } = this.#options
    const remainingMs = this.#job.deadline_ms - Date.now()
    const isTried = isTry(error) && !isInfrastructure
    const tries = isInfrastructure ? 1 : this.#claimed.tries + (isTried ? 1 : 0)
    const history = { tries, crashes: 0, handBacks: 0, hasOutput: false, remainingMs }
    const { canSpend } = budget
    const policy = canSpend ? DURABLE_POLICY : PATIENT_POLICY
    const decision = decide({ type: 'failed', error }, history, policy, true, Math.random())
    // What the next attempt waits for is told in any case.
    const output = this.#takeOutputIfEncodable(decision.do === 'retry' || this.#hasTold)
    if (decision.do === 'retry') {
      const { delayMs } = decision
      if (canSpend && isTried) budget.spend()
      await this.#writes.write(() => (run) => store.retry(run, { error, delayMs, output, isTry: isTried }))
    } else {
      const metered = this.#metered(this.#whole.takeAll())
      await this.#writes.write(() => (run) => store.fail(run, { error, metered, output }))
    }
  }

  async handedBack(): Promise<void> {
    await this.#stopFlushing()
    await this.#queued(await this.#writes.write(() => (run) => this.#options.store.handBack(run)))
  }

  compose(signal: AbortSignal, onPark: () => void): Composition {
    const own = { job: this.#claimed, writes: this.#writes, childrenAtOnce: this.#kind.childrenAtOnce, signal }
    const options = { ...this.#options, ...own }
    const inner = new Composing({
      ...options,
      takeOutput: () => this.#takeOutput(),
      say: this.#say,
      wrapUpAtMs: this.#job.deadline_ms - this.#wrapUpMs,
      cancelled: this.#wrapsUp.signal,
      onPark: (ids) => {
        this.#parkedOn = ids
        onPark()
      },
    })
    const of = this.#job.replay_of
    return of === undefined ? inner : new Replaying({ ...options, inner, of })
  }

  async parked(): Promise<void> {
    await this.#stopFlushing()
    const on = { ids: this.#parkedOn, wrapUpMs: this.#wrapUpMs, output: this.#takeOutput(this.#hasTold) }
    await this.#queued(await this.#writes.write(() => (run) => this.#options.store.park(run, on)))
  }

  async cancelled(): Promise<void> {
    await this.#stopFlushing()
    const output = this.#hasTold ? this.#takeProgress() : []
    const metered = this.#metered(this.#whole.takeAll())
    await this.#writes.write(() => (run) => this.#options.store.honourCancel(run, output, metered))
  }

  /** A job that is answered from a record uses nothing again. */
  #metered(events: readonly unknown[]): Metered {
    return this.#job.replay_of === undefined ? meteredOf(events) : NOTHING
  }

  /** The job is no longer ours: a write that waits to be made again is given up. A second call does nothing. */
  lose(): void {
    this.#writes.lose()
  }

  /** Publishes the job where it waits for a worker again. */
  async #queued(moved: Moved | undefined): Promise<void> {
    if (moved?.job.state !== 'queued') return
    const { store, dispatcher } = this.#options
    const content = await store.findContent(moved.job.tenant, moved.job.id)
    if (content) await dispatcher.publishJob(moved.job, content.request)
  }

  /** This attempt, or one before, has told its progress. */
  get #hasTold(): boolean {
    return this.#progressAtMs > 0 || this.#claimed.progress !== null
  }

  /** Of all its time, which begins with the first start, so that each attempt says the same. */
  get #wrapUpMs(): number {
    const { deadline_ms, started_at_ms, run_at_ms } = this.#claimed
    return this.#kind.wrapUpMs ?? wrapUpMsOf(deadline_ms - (started_at_ms ?? run_at_ms))
  }

  async #stopFlushing(): Promise<void> {
    // With a reason, since making an AbortError takes a stack.
    this.#ending.abort('ended')
    await this.#flush
  }

  /** One flush at a time; it goes on while there is more. Never rejects. */
  async #flushSoon(): Promise<void> {
    try {
      while (!this.#writes.isLost && (!this.#pending.isEmpty || this.#progress)) {
        await delay(this.#pauseMs(), this.#ending.signal)
        if (this.#ending.signal.aborted) return
        await this.#writes.write(() => {
          const output = this.#takeOutput()
          return output.length > 0 ? (run) => this.#options.store.append(run, output) : undefined
        })
      }
    } catch (error) {
      this.#options.log.error({ err: error, job_id: this.#job.id }, 'output not written')
    } finally {
      this.#flush = undefined
    }
  }

  /** The first output goes out at once. */
  #pauseMs(): number {
    if (!this.#pending.isEmpty && this.#writes.count === 0) return 0
    const pauseMs = Math.min(Math.max(FLUSH_MS, this.#writes.writeMs / BUSY_SHARE), PAUSE_MS_MAX)
    if (!this.#pending.isEmpty) return pauseMs
    return Math.max(pauseMs, this.#progressAtMs + PROGRESS_MS - Date.now())
  }

  /** @param tellsProgress Of a job that is over before it told any progress nobody waited for it. */
  #takeOutput(tellsProgress = Date.now() - this.#progressAtMs >= PROGRESS_MS): NewEvent[] {
    const output: NewEvent[] = []
    try {
      for (const event of this.#pending.takeAll()) output.push(...(this.#open()?.push(event) ?? []).map(outputOf))
    } catch (error) {
      this.#encodingError ??= error
      throw error
    }
    return [...output, ...(tellsProgress ? this.#takeProgress() : [])]
  }

  /** The output of a failed attempt: if it cannot be encoded either, the job fails without it instead of never ending. */
  #takeOutputIfEncodable(tellsProgress: boolean): NewEvent[] {
    try {
      return this.#takeOutput(tellsProgress)
    } catch (error) {
      this.#options.log.error({ err: error, job_id: this.#job.id }, 'output of a failed attempt not encoded')
      return tellsProgress ? this.#takeProgress() : []
    }
  }

  #takeProgress(): NewEvent[] {
    if (!this.#progress) return []
    const progress = { ...this.#progress, updated_at: Math.floor(Date.now() / 1_000) }
    this.#progress = undefined
    this.#progressAtMs = Date.now()
    return [{ type: 'job.progress', data: { progress } }]
  }

  /** @throws ServiceError `internal_error` for a job that nothing of ours has made */
  get #encode(): EncodeContext {
    if (this.#job.encode) return this.#job.encode
    throw new ServiceError('internal_error', 'The job does not say how its output is kept.')
  }

  #open(): AnswerStream | undefined {
    this.#stream ??= this.#answer.open?.(this.#encode)
    return this.#stream
  }
}
