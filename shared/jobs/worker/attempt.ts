/*
 * One execution of one job on a worker, from its start to its last event, for attached and durable jobs alike.
 *
 * 1. If the model of an attached call has no free permit, then the attempt waits for one without a slot.
 * 2. A body in a blob is fetched within the memory budget of the worker. The handler of the kind parses the body.
 * 3. The handler runs and yields events. With streaming, each event goes to the sink at once, and the attempt pauses if the sink is full or the
 *    caller reads slowly. Without streaming, events of an attached job are sent at the end, so that it can still run elsewhere until then.
 * 4. The sink receives one end, which `reporter.ts` sends to the ingress or `durable-run.ts` commits to the store.
 *
 * When the attempt has ended, one log line and one span state its outcome, times, tokens and server.
 *
 * An abort is an outcome, not an error. A cancel ends the attempt as cancelled, and the deadline ends it as `timeout`. A drain hands the job back,
 * unless output was sent that cannot be repeated. If the claim of this worker has ended (another worker may run the job), then the attempt stops
 * without a report.
 */

import { setTimeout as delay } from 'node:timers/promises'
import type { ErrorBody } from '#schemas/error.ts'
import type { ControlRecord } from '#schemas/event.ts'
import type { JobEnvelope } from '#schemas/job.ts'
import type { Metered } from '#schemas/usage.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { ModelBulkhead, ModelBulkheads } from '#shared/capacity/bulkheads.ts'
import type { Semaphore } from '#shared/capacity/semaphore.ts'
import type { ParkedCalls } from '#shared/capacity/slots.ts'
import { type FetchedBody, fetchBodyWithin } from '#shared/jobs/body.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { EventBuffer } from '#shared/lib/buffers.ts'
import { answerTooLarge, ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import { traceField } from '#shared/telemetry/context.ts'
import { type Span, startAttempt, type Tracer, tracing } from '#shared/telemetry/tracing.ts'
import { Meter } from '#shared/usage/usage.ts'
import type { Lane, Poller } from './poller.ts'
import type { AttemptSink, Reporter } from './reporter.ts'

/** Maximum attempt number at which a job with an unreadable body is returned to its owner, for a newer worker. In a later attempt, the job fails. */
const UNREADABLE_ATTEMPTS_MAX = 10
/** Delay in ms before a job with an unreadable body is returned. Without a delay, a fleet of old workers would pass the job around in a tight loop. */
const UNREADABLE_DELAY_MS = 100

/**
 * End of an attempt, as a metric label. `lost` means that the claim of this worker has ended, so another worker may run the job. `parked` means that
 * the job waits for child jobs.
 */
type AttemptEnd = 'completed' | 'failed' | 'cancelled' | 'handed_back' | 'lost' | 'parked'

type AbortReason = 'cancelled' | 'timed_out' | 'handed_back' | 'lost'

export class Attempt {
  readonly job: JobEnvelope
  readonly #kind: Handler
  readonly #sink: AttemptSink
  readonly #log: Log
  readonly #abort = new AbortController()
  readonly #parked = Promise.withResolvers<'parked'>()
  #pause: PromiseWithResolvers<void> | undefined
  /** True if an ingress in this process passed the body as an object that the handler accepts, so that the body is not parsed again. */
  readonly #isUnparsed: boolean
  #hasOutput = false
  #firstOutputAtMs: number | undefined
  readonly #meter = new Meter()
  #server: string | undefined
  #failure: ServiceError | ErrorBody | undefined
  #span: Span | undefined

  constructor(job: JobEnvelope, kind: Handler, sink: AttemptSink, log: Log, isHanded = false) {
    this.#isUnparsed = isHanded && kind.acceptsUnparsed === true
    this.job = job
    this.#kind = kind
    this.#sink = sink
    this.#log = log
  }

  /**
   * Runs the attempt to its end. Never throws. Resolves when the last event is sent.
   *
   * @param turn Waits for a permit of the model's bulkhead, and rejects with the reason of its signal. If undefined, then the attempt starts at once
   */
  async run(blobs: Blobs, budget: Semaphore, turn?: (signal: AbortSignal) => Promise<void>): Promise<AttemptEnd> {
    const remainingMs = this.job.deadline_ms - Date.now()
    if (remainingMs <= 0) this.#stop('timed_out')
    const deadline = setTimeout(() => this.#stop('timed_out'), Math.max(0, remainingMs))
    let fetched: FetchedBody | undefined
    try {
      if (turn) await turn(this.#abort.signal)
      const { blob, history } = this.job
      if (blob !== undefined || history) fetched = await fetchBodyWithin(budget, this.job, blobs, this.#abort.signal)
      const given = fetched ? fetched.body : this.job.body
      const body = this.#isUnparsed ? given : await this.#read(given)
      // Without streaming, output is buffered until success: by the sink of a durable job itself (`canRestart`), or for an ingress by `#whole`.
      const work = this.job.stream || this.#sink.canRestart ? this.#stream(body) : this.#whole(body)
      // A handler that waits for child jobs is abandoned here, so that its slot becomes free. A new attempt starts when
      // the children have ended.
      if ((await Promise.race([work, this.#parked.promise])) === 'parked') {
        await this.#sink.parked?.()
        return 'parked'
      }
      await this.#sink.completed()
      return 'completed'
    } catch (error) {
      return await this.#onError(error).catch((cause: unknown) => this.#onUnreported(cause))
    } finally {
      clearTimeout(deadline)
      fetched?.release()
    }
  }

  /** Starts the attempt's span. The time in the queue gets a span here for a durable job, and in the ingress for an attached call. */
  startSpan(tracer: Tracer, worker: string): void {
    const { id, attempt, pool, tenant, traceparent: parent } = this.job
    const { queuedAtMs } = this.#sink
    const ids = { 'sluice.job.id': id, 'sluice.attempt': attempt, 'sluice.pool': pool, 'sluice.project': tenant }
    if (queuedAtMs !== undefined)
      tracer.start({ name: `queue ${pool}`, kind: 'producer', parent, startMs: queuedAtMs, attributes: ids })?.end()
    this.#span = startAttempt(this.job, { 'sluice.worker': worker })
  }

  /** Logs the end of the attempt and ends its span. The span of a lost attempt is not ended, because the ingress or the scheduler records it. */
  end(outcome: AttemptEnd, worker: string, startedAtMs: number): void {
    const { id: job_id, attempt, pool, kind, model, traceparent, created_at_ms, reply } = this.job
    const queuedAtMs = this.#sink.queuedAtMs ?? (attempt === 1 ? created_at_ms : undefined)
    const code = this.#failure?.code
    const ids = { job_id, ...traceField(traceparent), attempt, worker, pool, kind, model, outcome }
    const line = {
      ...ids,
      ...(this.#failure && { error_code: code }),
      ...(this.#failure instanceof ServiceError && { err: this.#failure }),
      ...(this.#server !== undefined && { server: this.#server }),
      ...(queuedAtMs !== undefined && { queue_ms: Math.max(0, startedAtMs - queuedAtMs) }),
      ...(this.#firstOutputAtMs !== undefined && { first_output_ms: this.#firstOutputAtMs - startedAtMs }),
      duration_ms: Date.now() - startedAtMs,
      ...this.#usage,
    }
    if (outcome !== 'failed') {
      // The ingress logs each attached call with its tokens and times, so an attempt that went well is not logged twice by default.
      this.#log[reply && outcome === 'completed' ? 'debug' : 'info'](line, 'attempt ended')
    } else {
      // An internal error is a defect that an operator must see. Any other failure is retried, or is reported to the caller.
      const level = code === 'internal_error' ? 'error' : 'info'
      this.#log[level](line, 'attempt of a job failed; the job is retried or fails')
    }
    if (outcome !== 'lost') this.#span?.end({ 'sluice.outcome': outcome }, outcome === 'failed' ? code : undefined)
  }

  cancel(isPartial = false): void {
    if (isPartial && this.#sink.wrapUp) this.#sink.wrapUp()
    else this.#stop('cancelled')
  }

  lose(): void {
    this.#stop('lost')
  }

  handBack(): void {
    this.#stop('handed_back')
  }

  pause(): void {
    // A stopping attempt is not paused, because no resume would follow.
    if (!this.#abort.signal.aborted) this.#pause ??= Promise.withResolvers<void>()
  }

  resume(): void {
    this.#pause?.resolve()
    this.#pause = undefined
  }

  #stop(reason: AbortReason): void {
    this.#abort.abort(reason)
    this.resume()
  }

  async #stream(body: unknown): Promise<void> {
    const { signal } = this.#abort
    for await (const event of this.#run(body)) {
      signal.throwIfAborted()
      this.#see(event)
      this.#hasOutput ||= this.#firstOutputAtMs !== undefined
      const bulkhead = this.#sink.event(event)
      if (bulkhead) await bulkhead
      if (this.#pause) await this.#pause.promise
    }
    // Some engines return normally after an abort. Their work is incomplete, so the abort is reported instead.
    signal.throwIfAborted()
  }

  async #whole(body: unknown): Promise<void> {
    const { signal } = this.#abort
    const buffer = new EventBuffer(this.#kind.merge)
    const { answerBytesMax = ANSWER_BYTES_MAX } = this.#kind
    try {
      for await (const event of this.#run(body)) {
        signal.throwIfAborted()
        this.#see(event)
        buffer.push(event)
        if (buffer.bytes > answerBytesMax) throw answerTooLarge(answerBytesMax)
      }
      signal.throwIfAborted()
    } catch (error) {
      // The output is dropped, but its usage counts. The event `start` has the duration of audio.
      const [first] = buffer.takeAll()
      if ((first as { type?: string } | undefined)?.type === 'start') void this.#sink.event(first)
      if (this.#usage) void this.#sink.event({ type: 'usage', usage: this.#usage })
      throw error
    }
    for (const event of buffer.takeAll()) await this.#sink.event(event)
  }

  get #usage(): Partial<Metered> | undefined {
    const { input_tokens, cached_tokens, output_tokens } = this.#meter.metered
    if (input_tokens + output_tokens === 0) return undefined
    return { input_tokens, ...(cached_tokens > 0 && { cached_tokens }), output_tokens }
  }

  #see(event: unknown): void {
    if (this.#firstOutputAtMs === undefined && this.#kind.isOutput(event)) this.#firstOutputAtMs = Date.now()
    this.#meter.see(event)
  }

  /**
   * Parses the body. If this version cannot parse the body, then the job is returned to its owner, so that a newer worker can run it. The number of
   * such returns is limited.
   */
  async #read(body: unknown): Promise<unknown> {
    try {
      return await this.#kind.parse(body)
    } catch (cause) {
      if (cause instanceof ServiceError || this.job.attempt > UNREADABLE_ATTEMPTS_MAX) throw cause
      this.#log.warn(
        { job_id: this.job.id, attempt: this.job.attempt, err: cause },
        'job body could not be parsed; job requeued for another worker',
      )
      await delay(UNREADABLE_DELAY_MS, undefined, { signal: this.#abort.signal }).catch(() => {
        // The delay rejects only if the signal aborts. The next statement handles the abort, so the rejection is ignored.
      })
      this.#stop('handed_back')
      throw cause
    }
  }

  #run(body: unknown): AsyncIterable<unknown> {
    const { signal } = this.#abort
    signal.throwIfAborted()
    const idempotencyKey = `${this.job.id}:${this.job.attempt}`
    const { tenant, traceparent } = this.job
    const onServer = (model: string, server: number) => {
      this.#server = model === this.job.model ? String(server) : `${model}/${server}`
      sink.ranOn(this.#server)
    }
    const sink = this.#sink
    const park = () => this.#parked.resolve('parked')
    let composition: Composition | undefined
    return this.#kind.run(body, {
      signal,
      idempotencyKey,
      tenant,
      traceparent: this.#span?.traceparent ?? traceparent,
      onServer,
      onProgress: sink.onProgress,
      get composition() {
        composition ??= sink.compose?.(signal, park)
        return composition
      },
    })
  }

  async #onError(error: unknown): Promise<AttemptEnd> {
    const { signal } = this.#abort
    if (signal.aborted) return await this.#onAbort(signal.reason as AbortReason)
    const failure = ServiceError.from(error)
    // If a cancelled job has no partial result, then it ends as cancelled instead of failed.
    if (failure.code === 'job_cancelled' && this.#sink.isWrappingUp) return await this.#onAbort('cancelled')
    this.#failure = failure
    await this.#sink.failed(failure.toBody(), failure.isInfrastructure)
    return 'failed'
  }

  /** Handles an end that could not be reported. The owner then detects the end by missing heartbeats or an expired lease. */
  #onUnreported(cause: unknown): AttemptEnd {
    this.#log.error(
      { err: cause, job_id: this.job.id, attempt: this.job.attempt },
      "result of an attempt could not be published; the job's owner retries the job or ends it with an error",
    )
    return 'lost'
  }

  async #onAbort(reason: AbortReason): Promise<AttemptEnd> {
    if (reason === 'lost') return 'lost'
    if (reason === 'cancelled') {
      await this.#sink.cancelled()
      return 'cancelled'
    }
    if (reason === 'handed_back' && (!this.#hasOutput || this.#sink.canRestart)) {
      await this.#sink.handedBack()
      return 'handed_back'
    }
    const error = reason === 'timed_out' ? TIMEOUT : SHUT_DOWN
    this.#failure = error
    await this.#sink.failed(error)
    return 'failed'
  }
}

const TIMEOUT: ErrorBody = {
  code: 'timeout',
  message: 'The request took longer than its deadline allows.',
  param: null,
}
const SHUT_DOWN: ErrorBody = {
  code: 'worker_lost',
  message: 'The worker that ran this request was shut down.',
  param: null,
}

/** Maximum bytes of a complete answer, unless its kind sets another limit. A larger answer is an error. */
export const ANSWER_BYTES_MAX = 8 * 1024 * 1024

const CANCELS_MAX = 10_000

export interface PoolObserver {
  onEnd(job: JobEnvelope, end: AttemptEnd, durationMs: number): void
  onDeadLetter?(): void
}

interface AttemptsOptions {
  readonly parkedCalls: ParkedCalls<Lane, ModelBulkhead>
  readonly boot: string
  readonly blobs: Blobs
  readonly bodyBudget: Semaphore
  readonly observer: PoolObserver
  readonly reporter: Reporter
  readonly bulkheads: ModelBulkheads
  readonly poller: Poller
}

/**
 * Running attempts of one worker. If a cancel arrives before the job, then this class stores the cancel and applies it when the job arrives. A pause
 * that arrives before the job is ignored.
 */
export class Attempts {
  readonly #options: AttemptsOptions
  readonly #running = new Map<string, Attempt>()
  readonly #lostPeers = new Set<string>()
  /**
   * Cancels that arrived before their job. The key is the id of the job, or {@link keyOf} of one attempt. The value is true if the cancel allows a
   * partial result.
   */
  readonly #cancelled = new Map<string, boolean>()
  readonly #awaited = new Set<{ readonly left: Set<Attempt>; readonly done: () => void }>()
  #isHandingBack = false

  constructor(options: AttemptsOptions) {
    this.#options = options
  }

  /**
   * Runs one attempt to its end in a slot of its lane. If the bulkhead of its model is full, then an attached call first waits for a permit, without
   * a slot.
   */
  async run(lane: Lane, attempt: Attempt): Promise<void> {
    const { boot, parkedCalls, blobs, bodyBudget, observer, bulkheads, poller } = this.#options
    const { job } = attempt
    const key = keyOf(job.id, job.attempt)
    const bulkhead = bulkheads.of(job)
    const isAttached = job.reply !== undefined
    const counted = isAttached ? undefined : lane.priority
    let startedAt: number | undefined
    let end: (() => void) | undefined
    let startedAtMs = Date.now()
    const enter = () => {
      startedAt = performance.now()
      startedAtMs = Date.now()
      end = bulkhead.begin(counted)
      poller.enter(lane, 1, isAttached)
      if (isAttached) parkedCalls.count(bulkhead, job.tenant, 1)
    }
    this.#running.set(key, attempt)
    if (tracing.tracer) attempt.startSpan(tracing.tracer, boot)
    if (isAttached) poller.countAttached(1)
    const mustWait = isAttached && !parkedCalls.canStart(lane, bulkhead)
    if (!mustWait) enter()
    // If the grace period of a drain has ended, then all attempts that were running are already being returned to their owners. This
    // attempt was claimed later, so it is returned too.
    if (this.#isHandingBack) attempt.handBack()
    try {
      const turn = mustWait
        ? (signal: AbortSignal) => parkedCalls.wait(bulkhead, { lane, tenant: job.tenant, enter }, signal)
        : undefined
      const outcome = await attempt.run(blobs, bodyBudget, turn)
      attempt.end(outcome, boot, startedAtMs)
      observer.onEnd(job, outcome, performance.now() - (startedAt ?? performance.now()))
    } finally {
      this.#running.delete(key)
      if (end) {
        poller.leave(lane, 1, isAttached)
        end()
        if (isAttached) parkedCalls.count(bulkhead, job.tenant, -1)
      }
      if (isAttached) poller.countAttached(-1)
      if (job.reply && this.#lostPeers.has(job.reply.boot)) this.#forgetLost(job.reply.boot)
      if (this.#awaited.size > 0) this.#noteEnd(attempt)
      poller.free()
    }
  }

  /** Returns true if the attempt already runs, or was cancelled before its record arrived. Removes the stored cancel. */
  isOver(job: JobEnvelope): boolean {
    const key = keyOf(job.id, job.attempt)
    return this.#cancelled.delete(job.id) || this.#cancelled.delete(key) || this.#running.has(key)
  }

  /**
   * Returns whether an attempt was cancelled before its record arrived, and removes the stored cancel. `partial` means that the cancel allows a
   * partial result.
   */
  wasCancelled({ id, attempt }: Pick<JobEnvelope, 'id' | 'attempt'>): false | 'at once' | 'partial' {
    const key = keyOf(id, attempt)
    const isPartial = this.#cancelled.get(key)
    return this.#cancelled.delete(key) && (isPartial ? 'partial' : 'at once')
  }

  /** Returns whether the whole job was cancelled before it arrived, and removes the stored cancel. */
  wasJobCancelled({ id }: Pick<JobEnvelope, 'id'>): boolean {
    return this.#cancelled.delete(id)
  }

  async untilOver(): Promise<void> {
    if (this.#running.size === 0) return
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#awaited.add({ left: new Set(this.#running.values()), done: resolve })
    await promise
  }

  handBackAll(): void {
    this.#isHandingBack = true
    for (const attempt of this.#running.values()) attempt.handBack()
  }

  onControl(record: ControlRecord): void {
    const { boot } = this.#options
    if (record.type === 'pause') this.#running.get(keyOf(record.job_id, record.attempt))?.pause()
    else if (record.type === 'resume') this.#running.get(keyOf(record.job_id, record.attempt))?.resume()
    else if (record.type === 'cancel' && (record.worker ?? boot) === boot) this.#onCancel(record)
  }

  /**
   * Called when an ingress is declared dead. All its jobs stop here. If the ingress was only slow, then it receives the events `handed_back` and
   * retries the jobs.
   */
  onPeerLost(boot: string): void {
    this.#lostPeers.add(boot)
    for (const attempt of this.#of(boot)) attempt.handBack()
    this.#forgetLost(boot)
  }

  #onCancel({ job_id: id, attempt, partial = false }: Extract<ControlRecord, { type: 'cancel' }>): void {
    let isRunning = false
    for (const running of this.#running.values()) {
      if (running.job.id !== id || (attempt !== undefined && running.job.attempt !== attempt)) continue
      running.cancel(partial)
      isRunning = true
    }
    if (!isRunning) this.#remember(attempt === undefined ? id : keyOf(id, attempt), partial)
  }

  /** Keeps a cancel, because a job that is cancelled before it arrives must not run. Beyond the limit, the oldest cancels are dropped. */
  #remember(cancelled: string, isPartial: boolean): void {
    this.#cancelled.set(cancelled, isPartial)
    const [oldest = cancelled] = this.#cancelled.keys()
    if (this.#cancelled.size > CANCELS_MAX) this.#cancelled.delete(oldest)
  }

  #noteEnd(attempt: Attempt): void {
    for (const awaited of this.#awaited) {
      if (!awaited.left.delete(attempt) || awaited.left.size > 0) continue
      this.#awaited.delete(awaited)
      awaited.done()
    }
  }

  #forgetLost(boot: string): void {
    if (!this.#of(boot).next().done) return
    this.#lostPeers.delete(boot)
    this.#options.reporter.drop(boot)
  }

  *#of(boot: string): Generator<Attempt> {
    for (const attempt of this.#running.values()) if (attempt.job.reply?.boot === boot) yield attempt
  }
}

function keyOf(jobId: string, attempt: number): string {
  return `${jobId}:${attempt}`
}
