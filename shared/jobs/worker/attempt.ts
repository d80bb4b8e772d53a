import { setTimeout as delay } from 'node:timers/promises'
import type { ErrorBody } from '#schemas/error.ts'
import type { JobEnvelope } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { answerTooLarge, ServiceError } from '#shared/error.ts'
import { EventBuffer } from '#shared/jobs/event-buffer.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import type { Log } from '#shared/log/log.ts'
import type { BodyBudget, FetchedBody } from './body-budget.ts'
import { ANSWER_BYTES_MAX, type AttemptSink } from './sink.ts'

/** Attempts whose body may be handed back unread: in a fleet half upgraded, enough to meet a worker that can read it. */
const UNREAD_ATTEMPTS_MAX = 10
/** How long such a body is kept, or a fleet without such a worker would run in circles. */
const UNREAD_MS = 100

/** How an attempt ended, for metrics. `lost`: the job was given to somebody else. `parked`: it waits for children. */
export type AttemptEnd = 'completed' | 'failed' | 'cancelled' | 'handed_back' | 'lost' | 'parked'

/** Why an attempt was aborted. */
type AbortReason = 'cancelled' | 'timed_out' | 'handed_back' | 'lost'

/**
 * One execution of one job on this worker, from `started` to its last event.
 *
 * Abort is an outcome here, not an error: cancel ends the attempt as cancelled, the deadline as `timeout`, drain by handing
 * the job back.
 */
export class Attempt {
  readonly job: JobEnvelope
  readonly #kind: Handler
  readonly #sink: AttemptSink
  readonly #log: Log
  readonly #abort = new AbortController()
  readonly #parked = Promise.withResolvers<'parked'>()
  #pause: PromiseWithResolvers<void> | undefined
  /** The body is as its ingress made it, in this process. */
  readonly #isAsMade: boolean
  #hasOutput = false

  constructor(job: JobEnvelope, kind: Handler, sink: AttemptSink, log: Log, isHanded = false) {
    this.#isAsMade = isHanded && kind.takesAsMade === true
    this.job = job
    this.#kind = kind
    this.#sink = sink
    this.#log = log
  }

  /**
   * Runs to the end; never throws. Resolves when the last event is with the broker.
   *
   * @param turn Waits until it may begin; undefined: at once. Rejects with the reason of its signal.
   */
  async run(blobs: Blobs, room: BodyBudget, turn?: (signal: AbortSignal) => Promise<void>): Promise<AttemptEnd> {
    const remainingMs = this.job.deadline_ms - Date.now()
    if (remainingMs <= 0) this.#stop('timed_out')
    const deadline = setTimeout(() => this.#stop('timed_out'), Math.max(0, remainingMs))
    let fetched: FetchedBody | undefined
    try {
      if (turn) await turn(this.#abort.signal)
      fetched = await room.fetch(this.job, blobs, this.#abort.signal)
      const body = this.#isAsMade ? fetched.body : await this.#read(fetched.body)
      const work = this.job.stream ? this.#stream(body) : this.#whole(body)
      // A handler that waits for children goes no further: it runs again when they have ended.
      if ((await Promise.race([work, this.#parked.promise])) === 'parked') return await this.#park()
      await this.#sink.completed()
      return 'completed'
    } catch (error) {
      return await this.#onError(error).catch((cause: unknown) => this.#onUntold(cause))
    } finally {
      clearTimeout(deadline)
      fetched?.release()
    }
  }

  /** Its arbiter does not want it any more. @param isPartial It may write what there is first */
  cancel(isPartial = false): void {
    if (isPartial && this.#sink.wrapUp) this.#sink.wrapUp()
    else this.#stop('cancelled')
  }

  /** Somebody else has the job: stop, and say nothing. */
  lose(): void {
    this.#stop('lost')
  }

  /** This worker must end now: let another one run it, if nothing was sent yet. */
  handBack(): void {
    this.#stop('handed_back')
  }

  /** Holds the output back until {@link resume}: the reader is slow. */
  pause(): void {
    // Nobody would end a pause of an attempt that is to stop.
    if (!this.#abort.signal.aborted) this.#pause ??= Promise.withResolvers<void>()
  }

  /** Lets the output flow again. */
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
      const room = this.#sink.event(event)
      if (room) await room
      if (this.#pause) await this.#pause.promise
    }
    // An engine that ends quietly when aborted has not completed.
    signal.throwIfAborted()
  }

  /** Nothing is sent before the end, so that the job can run again elsewhere until then. */
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

  /** A body in a form that this version does not know is for another worker, as long as the job has not met many of us. */
  async #read(body: unknown): Promise<unknown> {
    try {
      return await this.#kind.parse(body)
    } catch (cause) {
      if (cause instanceof ServiceError || this.job.attempt > UNREAD_ATTEMPTS_MAX) throw cause
      this.#log.warn({ job_id: this.job.id, attempt: this.job.attempt, err: cause }, 'body not understood; handed back')
      await delay(UNREAD_MS, undefined, { signal: this.#abort.signal }).catch(() => {
        // Only the abort can reject, and it is looked at next.
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
      // Most kinds compose nothing.
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
    // There was nothing to write: it ends as any other that is cancelled.
    if (failure.code === 'job_cancelled' && this.#sink.isWrappingUp) return await this.#onAbort('cancelled')
    this.#log.warn(
      { job_id: this.job.id, attempt: this.job.attempt, model: this.job.model, code: failure.code, err: failure },
      'attempt failed',
    )
    await this.#sink.failed(failure.toBody(), failure.isInfrastructure)
    return 'failed'
  }

  /** Its end could not be told: whoever watches over the job finds out by our silence. */
  #onUntold(cause: unknown): AttemptEnd {
    this.#log.error({ err: cause, job_id: this.job.id, attempt: this.job.attempt }, 'end of an attempt not told')
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
