/*
 * Encodes the output of one attempt of a durable job in the format of the endpoint, and commits it to the store, in order.
 *
 * 1. With streaming, output is committed every 50 ms, or less often if the store is slow. Writes take at most a quarter of a run's time.
 * 2. An end, a retry or a wait for children is committed together with the remaining output. A cancel, or the return of the job to its
 *    queue, drops the remaining output.
 * 3. A failure is retried by the rules of `decide.ts`. An exhausted retry budget means that many jobs fail at the same time, so retries are
 *    then spread over a longer time.
 * 4. Events are published after their commit (`owner-writes.ts`).
 *
 * The invariant: if the store rejects a write, then the claim of this worker has ended, and `onStop` is called. While the store is
 * unreachable, the engine waits (backpressure) instead of losing output.
 */

import type { DurableJob } from '#schemas/durable-job.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { EncodeContext, JobEnvelope } from '#schemas/job.ts'
import { Metered } from '#schemas/usage.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { decide, isTry, type RetryBudget, type RetryPolicy } from '#shared/jobs/decide.ts'
import type { Dispatcher, Family } from '#shared/jobs/durable/dispatch.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import type { Kind, Progress } from '#shared/kinds/kind.ts'
import { EventBuffer, sizeOf } from '#shared/lib/buffers.ts'
import { answerTooLarge, ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Used } from '#shared/store/jobs.ts'
import type { NewEvent, Store, TransitionResult } from '#shared/store/store.ts'
import { traceField } from '#shared/telemetry/context.ts'
import { addMetered, Meter, NOTHING } from '#shared/usage/usage.ts'
import { ANSWER_BYTES_MAX } from './attempt.ts'
import { Composing, wrapUpMsOf } from './compose.ts'
import { delay, OwnerWrites } from './owner-writes.ts'
import { Replaying } from './replay.ts'
import type { AttemptSink } from './reporter.ts'

/** Interval in ms at which output is committed (docs/internals/design.md, Commit before publish). */
const FLUSH_MS = 50
const BUSY_SHARE = 1 / 4
/**
 * Maximum pause between two writes, in ms. The pause is four times the duration of the last write. Without this maximum, one slow write
 * would delay output for long.
 */
const PAUSE_MS_MAX = 2_000
/** Bytes of uncommitted output at which the engine must wait. */
const BACKLOG_BYTES = 256 * 1024
/** Maximum number of messages per write. Encoding and storing this many blocks the event loop for about 5 ms. */
const WRITE_MESSAGES_MAX = 256
/** Maximum size of output ({@link sizeOf}) per write, because one transaction stores all of it. */
const WRITE_SIZE_MAX = 256 * 1024
/** Maximum number of events that are encoded at a time. One event becomes up to six messages. */
const ENCODED_AT_ONCE = 16
/** Minimum interval between progress events of one attempt, in ms (docs/internals/protocol.md, Job events). */
const PROGRESS_MS = 500

export const DURABLE_POLICY: RetryPolicy = {
  triesMax: 3,
  crashesMax: 3,
  handBacksMax: Number.POSITIVE_INFINITY,
  backoff: { baseMs: 1_000, maxMs: 60_000 },
  delayMsMax: 3_600_000,
}

/** Retry policy while the retry budget is exhausted. */
const PATIENT_POLICY: RetryPolicy = { ...DURABLE_POLICY, backoff: { baseMs: 60_000, maxMs: 300_000 } }

export interface RunOptions {
  readonly store: Store
  readonly blobs: Blobs
  readonly dispatcher: Dispatcher
  readonly family: Family
  readonly log: Log
  readonly budget: RetryBudget
  readonly signal: AbortSignal
}

export class DurableRun implements AttemptSink {
  readonly canRestart = true
  /**
   * Called when the attempt must stop.
   *
   * 1. `cancelled`: the job was cancelled.
   * 2. `partial`: the job was cancelled and may write a partial result.
   * 3. `lost`: the claim of this worker has ended, so another worker may run the job.
   * 4. `lapsed`: the lease is about to expire, so the attempt ends and another worker may claim the job.
   */
  onStop: (reason: 'cancelled' | 'partial' | 'lost' | 'lapsed') => void = () => {}
  readonly #job: JobEnvelope
  readonly #claimed: DurableJob
  readonly #writes: OwnerWrites
  readonly #options: RunOptions
  readonly #kind: Pick<Kind, 'childrenAtOnce' | 'wrapUpMs'>
  readonly #answer: Answer
  #stream: AnswerStream | undefined
  readonly #whole: EventBuffer
  readonly #meter = new Meter()
  readonly #bytesMax: number
  readonly #pending: EventBuffer
  #encoded: NewEvent[] = []
  #server: string | undefined
  #parkedOn: readonly string[] = []
  readonly #wrapsUp = new AbortController()
  #progress: Progress | undefined
  #progressAtMs = 0
  #encodingError: unknown
  #flush: Promise<void> | undefined
  /**
   * Aborts when the run is about to end. The periodic writes then stop, and pending output is committed together with
   * the end.
   */
  readonly #ending = new AbortController()

  constructor(job: JobEnvelope, kind: Kind, moved: TransitionResult, boot: string, options: RunOptions) {
    this.#job = job
    this.#claimed = moved.job
    this.#writes = new OwnerWrites({ id: job.id, attempt: job.attempt, boot }, options, () => this.onStop('lost'))
    this.#options = options
    this.#kind = kind
    this.#answer = kind.answer(job.endpoint)
    this.#whole = new EventBuffer(kind.merge)
    this.#bytesMax = kind.answerBytesMax ?? ANSWER_BYTES_MAX
    this.#pending = new EventBuffer(kind.merge)
    // If a partial result was requested during an earlier attempt, then this attempt starts with that request.
    if (moved.job.cancel_requested_at_ms !== null) this.#wrapsUp.abort()
  }

  /**
   * Time at which the wait for this attempt began, in Unix ms. For a later attempt, this is `published_at_ms`, which each transition to `queued`
   * sets. The first attempt cannot use this field, because a republication of its record changes the field.
   */
  get queuedAtMs(): number {
    const { attempt, created_at_ms, run_at_ms, published_at_ms } = this.#claimed
    return Math.max(created_at_ms, run_at_ms, attempt > 1 ? (published_at_ms ?? 0) : 0)
  }

  publishSoon(claimed: TransitionResult): void {
    this.#writes.publishSoon(claimed)
  }

  get isWrappingUp(): boolean {
    return this.#wrapsUp.signal.aborted
  }

  wrapUp(): void {
    this.#wrapsUp.abort()
  }

  ranOn(server: string): void {
    this.#server = server
  }

  event(event: unknown): Promise<void> | undefined {
    this.#collect(event)
    if (!this.#job.stream) return undefined
    this.#pending.push(event)
    this.#flush ??= this.#flushSoon()
    return this.#pending.bytes > BACKLOG_BYTES ? this.#flush : undefined
  }

  #collect(event: unknown): void {
    this.#meter.see(event)
    this.#whole.push(event)
    if (this.#whole.bytes > this.#bytesMax) throw answerTooLarge(this.#bytesMax)
  }

  readonly #encodeStep = (events: readonly unknown[]): NewEvent[] => {
    for (const event of events) this.#collect(event)
    if (!this.#job.stream) return []
    return events.flatMap((event) => (this.#open()?.push(event) ?? []).map(outputOf))
  }

  readonly onProgress = (progress: Progress): void => {
    this.#progress = progress
    this.#flush ??= this.#flushSoon()
  }

  async completed(): Promise<void> {
    await this.#stopFlushing()
    await this.#writeBacklog()
    // If some output could not be encoded, then it is missing in the store, so the job must not end as completed.
    if (this.#encodingError !== undefined) throw this.#encodingError
    const events = this.#whole.takeAll()
    const result = await this.#answer.whole(events, this.#encode)
    if (this.#job.stream) this.#encoded.push(...(this.#open()?.end() ?? []).map(outputOf))
    await this.#writeBacklog()
    const output = this.#takeOutput(this.#hasProgress)
    const end = { result, usage: usageOf(result, events), metered: this.#metered, output }
    await this.#writes.write(() => (run) => this.#options.store.complete(run, end), result)
  }

  async failed(error: ErrorBody, isInfrastructure = false): Promise<void> {
    await this.#stopFlushing()
    await this.#writeBacklog()
    const { store, budget } = this.#options
    const remainingMs = this.#job.deadline_ms - Date.now()
    const isTried = isTry(error) && !isInfrastructure
    const tries = isInfrastructure ? 1 : this.#claimed.tries + (isTried ? 1 : 0)
    const history = { tries, crashes: 0, handBacks: 0, hasOutput: false, remainingMs }
    const { canSpend } = budget
    const policy = canSpend ? DURABLE_POLICY : PATIENT_POLICY
    const decision = decide({ type: 'failed', error }, history, policy, true, Math.random())
    // Before a retry, pending progress is always committed, because the job continues in another attempt. A job that fails finally needs its
    // progress only if subscribers have already received some.
    const output = this.#takeOutputIfEncodable(decision.do === 'retry' || this.#hasProgress)
    if (decision.do === 'retry') {
      const { delayMs } = decision
      if (canSpend && isTried) budget.spend()
      this.#logRetry(error, delayMs)
      const end = { error, delayMs, output, isTry: isTried, ...this.#used }
      await this.#writes.write(() => (run) => store.retry(run, end))
    } else {
      const end = { error, output, ...this.#used }
      await this.#writes.write(() => (run) => store.fail(run, end))
    }
  }

  #logRetry({ code }: ErrorBody, delayMs: number): void {
    const { id: job_id, attempt, traceparent } = this.#job
    const fields = { job_id, ...traceField(traceparent), attempt, reason: code, delay_ms: Math.round(delayMs) }
    this.#options.log.info(fields, 'job retried')
  }

  async handedBack(): Promise<void> {
    await this.#stopFlushing()
    const used = this.#used
    await this.#queued(await this.#writes.write(() => (run) => this.#options.store.handBack(run, [], used)))
  }

  compose(signal: AbortSignal, onPark: () => void): Composition {
    const own = { job: this.#claimed, writes: this.#writes, childrenAtOnce: this.#kind.childrenAtOnce, signal }
    const options = { ...this.#options, ...own }
    const inner = new Composing({
      ...options,
      writeBacklog: () => this.#writeBacklog(),
      takeOutput: () => this.#takeOutput(),
      encode: this.#encodeStep,
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
    await this.#writeBacklog()
    const on = { ids: this.#parkedOn, wrapUpMs: this.#wrapUpMs, output: this.#takeOutput(this.#hasProgress) }
    await this.#queued(await this.#writes.write(() => (run) => this.#options.store.park(run, on)))
  }

  async cancelled(): Promise<void> {
    await this.#stopFlushing()
    const output = this.#hasProgress ? this.#takeProgress() : []
    const used = this.#used
    await this.#writes.write(() => (run) => this.#options.store.honourCancel(run, output, used))
  }

  /**
   * Usage of all attempts so far. In a composed job, the usage of this attempt already contains all recorded steps, so the usage of earlier attempts is
   * not added.
   */
  get #metered(): Metered {
    if (this.#job.replay_of !== undefined) return { ...NOTHING, server: this.#server }
    const { steps, children, usage } = this.#claimed
    const { data: earlier = NOTHING } = Metered.safeParse(steps + children === 0 ? usage : null)
    return { ...addMetered(earlier, this.#meter.metered), server: this.#server }
  }

  /** Usage of an attempt that ended without a result. */
  get #used(): Used {
    const metered = this.#metered
    const amounts = Object.entries(metered).filter(([name, amount]) => name !== 'server' && amount !== 0)
    return { metered, usage: amounts.length > 0 ? Object.fromEntries(amounts) : undefined }
  }

  lose(): void {
    this.#writes.lose()
  }

  async #queued(moved: TransitionResult | undefined): Promise<void> {
    if (moved?.job.state !== 'queued') return
    const { store, dispatcher } = this.#options
    const content = await store.findContent(moved.job.tenant, moved.job.id)
    if (content) await dispatcher.publishJob(moved.job, content.request)
  }

  get #hasProgress(): boolean {
    return this.#progressAtMs > 0 || this.#claimed.progress !== null
  }

  /**
   * Time before the deadline, in ms, at which the job should write its result. Derived from the job's total time, so
   * that the value is equal in every attempt.
   */
  get #wrapUpMs(): number {
    const { deadline_ms, started_at_ms, run_at_ms } = this.#claimed
    return this.#kind.wrapUpMs ?? wrapUpMsOf(deadline_ms - (started_at_ms ?? run_at_ms))
  }

  async #stopFlushing(): Promise<void> {
    // Without an explicit reason, `abort` would create an AbortError with a costly stack trace.
    this.#ending.abort('ended')
    await this.#flush
  }

  /** Writes output until none is left. At most one flush runs at a time. Never rejects. */
  async #flushSoon(): Promise<void> {
    try {
      while (!this.#writes.isLost && (this.#hasOutput || this.#progress)) {
        await delay(this.#pauseMs(), this.#ending.signal)
        if (this.#ending.signal.aborted) return
        await this.#writeSome()
      }
    } catch (error) {
      this.#options.log.error(
        { err: error, job_id: this.#job.id },
        'job output could not be stored; the next write stores it or fails the job',
      )
    } finally {
      this.#flush = undefined
    }
  }

  /**
   * Commits output until the rest fits into the next write, which also contains the end or the step. If output cannot be encoded, then the
   * next write reports the error.
   */
  async #writeBacklog(): Promise<void> {
    while (!this.#writes.isLost) {
      try {
        this.#encodePending(WRITE_MESSAGES_MAX)
      } catch {
        // The next write encodes these events again, and reports the error.
        return
      }
      if (this.#pending.isEmpty && sizeOf(this.#encoded, WRITE_SIZE_MAX) <= WRITE_SIZE_MAX) return
      await this.#writeSome()
    }
  }

  get #hasOutput(): boolean {
    return !this.#pending.isEmpty || this.#encoded.length > 0
  }

  #writeSome(): Promise<TransitionResult | undefined> {
    return this.#writes.write(() => {
      const output = this.#takeOutput(undefined, WRITE_MESSAGES_MAX, WRITE_SIZE_MAX)
      return output.length > 0 ? (run) => this.#options.store.append(run, output) : undefined
    })
  }

  #pauseMs(): number {
    if (this.#hasOutput && this.#writes.count === 0) return 0
    const minMs = this.#encoded.length > 0 || this.#pending.length > WRITE_MESSAGES_MAX ? 0 : FLUSH_MS
    const pauseMs = Math.min(Math.max(minMs, this.#writes.writeMs / BUSY_SHARE), PAUSE_MS_MAX)
    if (this.#hasOutput) return pauseMs
    return Math.max(pauseMs, this.#progressAtMs + PROGRESS_MS - Date.now())
  }

  /**
   * Takes encoded output for the next write.
   *
   * @param withProgress If false, then pending progress is dropped. A job that ends before its first progress event needs none
   */
  #takeOutput(
    withProgress = Date.now() - this.#progressAtMs >= PROGRESS_MS,
    messagesMax = Number.POSITIVE_INFINITY,
    sizeMax = Number.POSITIVE_INFINITY,
  ): NewEvent[] {
    this.#encodePending(messagesMax)
    let [count, size] = [0, 0]
    while (count < this.#encoded.length && size <= sizeMax) size += sizeOf(this.#encoded[count++], sizeMax)
    const output = this.#encoded.slice(0, count)
    this.#encoded = this.#encoded.slice(count)
    return [...output, ...(withProgress ? this.#takeProgress() : [])]
  }

  #encodePending(messagesMax: number): void {
    try {
      while (!this.#pending.isEmpty && this.#encoded.length < messagesMax)
        for (const event of this.#pending.take(ENCODED_AT_ONCE))
          this.#encoded.push(...(this.#open()?.push(event) ?? []).map(outputOf))
    } catch (error) {
      this.#encodingError ??= error
      throw error
    }
  }

  /**
   * Takes the output of a failed attempt. If encoding fails as well, then the job fails without output, because otherwise the job would
   * never end.
   */
  #takeOutputIfEncodable(withProgress: boolean): NewEvent[] {
    try {
      return this.#takeOutput(withProgress)
    } catch (error) {
      this.#options.log.error(
        { err: error, job_id: this.#job.id },
        'output of a failed attempt could not be encoded and was dropped',
      )
      return withProgress ? this.#takeProgress() : []
    }
  }

  #takeProgress(): NewEvent[] {
    if (!this.#progress) return []
    const progress = { ...this.#progress, updated_at: Math.floor(Date.now() / 1_000) }
    this.#progress = undefined
    this.#progressAtMs = Date.now()
    return [{ type: 'job.progress', data: { progress } }]
  }

  get #encode(): EncodeContext {
    if (this.#job.encode) return this.#job.encode
    throw new ServiceError('internal_error', 'The stored job does not name the API format of its output.')
  }

  #open(): AnswerStream | undefined {
    this.#stream ??= this.#answer.open?.(this.#encode)
    return this.#stream
  }
}

/** Returns the usage of a job, as reported by the answer. For an answer without token counts, such as plain text, the counts come from the events. */
function usageOf(result: unknown, events: readonly unknown[]): unknown {
  const reported = (result as { usage?: object } | null)?.usage
  if (reported && ('input_tokens' in reported || 'prompt_tokens' in reported)) return reported
  const last = events.findLast((event) => (event as { type?: unknown }).type === 'usage') as
    | { usage?: object }
    | undefined
  return last ? { ...last.usage, ...reported } : reported
}

/** Makes the stored event of one streamed message. The message is stored without framing, so that any transport can send it later. */
function outputOf(frame: Frame): NewEvent {
  return { type: 'job.output.delta', data: { chunk: frame.value ?? JSON.parse(frame.data) } }
}
