import { setTimeout as delay } from 'node:timers/promises'
import type { ErrorBody } from '#schemas/error.ts'
import type { JobEnvelope } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Semaphore } from '#shared/capacity/semaphore.ts'
import { type FetchedBody, fetchBodyWithin } from '#shared/jobs/body.ts'
import { EventBuffer } from '#shared/jobs/event-buffer.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import type { Handler, Progress } from '#shared/kinds/kind.ts'
import { answerTooLarge, ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'

/** Maximum attempts at which an unreadable body is handed back. During a rolling upgrade, that suffices to reach a newer worker. */
const UNREAD_ATTEMPTS_MAX = 10
/**
 * Delay before a job with an unreadable body is handed back, in ms. Without a delay, a fleet of old workers would pass the job
 * around in a tight loop.
 */
const UNREAD_MS = 100

/** End of an attempt, as a metric label. `lost`: another worker owns the job now. `parked`: the job waits for child jobs. */
export type AttemptEnd = 'completed' | 'failed' | 'cancelled' | 'handed_back' | 'lost' | 'parked'

type AbortReason = 'cancelled' | 'timed_out' | 'handed_back' | 'lost'

/**
 * One execution of one job on this worker, from `started` to its last event.
 *
 * An abort is an outcome, not an error. A cancel ends the attempt as cancelled, the deadline as `timeout`, and a drain hands the
 * job back.
 */
export class Attempt {
  readonly job: JobEnvelope
  readonly #kind: Handler
  readonly #sink: AttemptSink
  readonly #log: Log
  readonly #abort = new AbortController()
  readonly #parked = Promise.withResolvers<'parked'>()
  #pause: PromiseWithResolvers<void> | undefined
  /** True if the body is an object of an ingress in this process, already in the form that the handler expects. */
  readonly #isUnparsed: boolean
  #hasOutput = false

  constructor(job: JobEnvelope, kind: Handler, sink: AttemptSink, log: Log, isHanded = false) {
    this.#isUnparsed = isHanded && kind.acceptsUnparsed === true
    this.job = job
    this.#kind = kind
    this.#sink = sink
    this.#log = log
  }

  /**
   * Runs to the end and never throws. Resolves when the last event is sent.
   *
   * @param turn Waits for a permit of the model's bulkhead, and rejects with the reason of its signal. Undefined: start at once
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
      const work = this.job.stream ? this.#stream(body) : this.#whole(body)
      // A handler that waits for child jobs is abandoned here. A new attempt runs when the children have ended.
      if ((await Promise.race([work, this.#parked.promise])) === 'parked') return await this.#park()
      await this.#sink.completed()
      return 'completed'
    } catch (error) {
      return await this.#onError(error).catch((cause: unknown) => this.#onUnreported(cause))
    } finally {
      clearTimeout(deadline)
      fetched?.release()
    }
  }

  cancel(isPartial = false): void {
    if (isPartial && this.#sink.wrapUp) this.#sink.wrapUp()
    else this.#stop('cancelled')
  }

  /** Stops without any report, because another worker owns the job now. */
  lose(): void {
    this.#stop('lost')
  }

  /** Hands the job back for another worker, unless output was sent. Used when this worker exits. */
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
      this.#hasOutput ||= this.#kind.isOutput(event)
      const bulkhead = this.#sink.event(event)
      if (bulkhead) await bulkhead
      if (this.#pause) await this.#pause.promise
    }
    // An engine that returns normally after an abort has not completed its work.
    signal.throwIfAborted()
  }

  /** Runs a handler without streaming. Output is sent only at the end, so that the job can still run elsewhere until then. */
  async #whole(body: unknown): Promise<void> {
    const { signal } = this.#abort
    const buffer = new EventBuffer(this.#kind.merge)
    const { answerBytesMax = ANSWER_BYTES_MAX } = this.#kind
    for await (const event of this.#run(body)) {
      signal.throwIfAborted()
      buffer.push(event)
      if (buffer.bytes > answerBytesMax) throw answerTooLarge(answerBytesMax)
    }
    signal.throwIfAborted()
    for (const event of buffer.takeAll()) await this.#sink.event(event)
  }

  /** Parses the body. If this version cannot parse the body, then the job is handed back for a newer worker, a limited number of times. */
  async #read(body: unknown): Promise<unknown> {
    try {
      return await this.#kind.parse(body)
    } catch (cause) {
      if (cause instanceof ServiceError || this.job.attempt > UNREAD_ATTEMPTS_MAX) throw cause
      this.#log.warn(
        { job_id: this.job.id, attempt: this.job.attempt, err: cause },
        'job body could not be parsed; job requeued for another worker',
      )
      await delay(UNREAD_MS, undefined, { signal: this.#abort.signal }).catch(() => {
        // Only the abort can reject, and the next statement handles it.
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
    const sink = this.#sink
    const park = () => this.#parked.resolve('parked')
    let composition: Composition | undefined
    return this.#kind.run(body, {
      signal,
      idempotencyKey,
      tenant,
      traceparent,
      onProgress: sink.onProgress,
      get composition() {
        composition ??= sink.compose?.(signal, park)
        return composition
      },
    })
  }

  async #park(): Promise<AttemptEnd> {
    await this.#sink.parked?.()
    return 'parked'
  }

  async #onError(error: unknown): Promise<AttemptEnd> {
    const { signal } = this.#abort
    if (signal.aborted) return await this.#onAbort(signal.reason as AbortReason)
    const failure = ServiceError.from(error)
    // The job was asked to stop early but has no partial result, so it ends as cancelled.
    if (failure.code === 'job_cancelled' && this.#sink.isWrappingUp) return await this.#onAbort('cancelled')
    this.#log.warn(
      { job_id: this.job.id, attempt: this.job.attempt, model: this.job.model, code: failure.code, err: failure },
      'attempt of a job failed',
    )
    await this.#sink.failed(failure.toBody(), failure.isInfrastructure)
    return 'failed'
  }

  /** Called if the end could not be reported. The owner then detects it by missing heartbeats or an expired lease. */
  #onUnreported(cause: unknown): AttemptEnd {
    this.#log.error(
      { err: cause, job_id: this.job.id, attempt: this.job.attempt },
      'result of an attempt could not be published; the job is retried once this is detected',
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
    await this.#sink.failed(reason === 'timed_out' ? TIMEOUT : SHUT_DOWN)
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

/**
 * Receiver of an attempt's output and end: the ingress, or the store. Exactly one end method is called, and its promise resolves
 * when the end is sent or committed.
 */
export interface AttemptSink {
  readonly canRestart: boolean
  /**
   * Adds an event. Returns a promise to wait for if the buffer is full. @throws ServiceError `answer_too_large`; `internal_error`
   * for an event too large for any record
   */
  event(event: unknown): Promise<void> | undefined
  readonly onProgress?: ((progress: Progress) => void) | undefined
  /** @throws ServiceError if the output is incomplete; nothing is published then */
  completed(): Promise<void>
  /** @param isInfrastructure See {@link ServiceError.isInfrastructure}: a job that can wait is then retried */
  failed(error: ErrorBody, isInfrastructure?: boolean): Promise<void>
  handedBack(): Promise<void>
  cancelled(): Promise<void>
  /**
   * Steps and child jobs for the handler; undefined for jobs without a store.
   *
   * @param onPark Called when the attempt must end with {@link parked}: the handler does not continue
   */
  compose?(signal: AbortSignal, onPark: () => void): Composition
  parked?(): Promise<void>
  /**
   * Call when the job was cancelled and may write a partial result. Absent if no partial result is possible. A second call does
   * nothing.
   */
  wrapUp?(): void
  readonly isWrappingUp?: boolean
}

export interface ReportedEvents extends AttemptSink {
  /** Reports the start, with the boot id of this worker. Resolves when the broker has the event. */
  started(): Promise<void>
}
