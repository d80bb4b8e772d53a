import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { FairSemaphore } from './semaphore.ts'

/*
 * Fair queue of durable submissions, by project. The queue is active only while other projects make calls with attached
 * jobs.
 *
 * Problem: a submission costs the event loop and the store several times as much as an attached call, and no connection
 * waits for the result. Thousands of submissions at once delayed each attached call of other projects by a hundred
 * submissions.
 *
 * Each submission therefore needs one of {@link PERMITS} permits, which rotate among the projects. After a submission,
 * its permit pauses for {@link RESTS} times the duration beyond {@link FREE_RUN_MS}. Example: after a submission of 12
 * ms, its permit pauses for 20 ms.
 */

const ACTIVE_MS = 10_000
/** Maximum concurrent submissions of all projects while the queue is active. */
const PERMITS = 2
/** Maximum duration of a submission that is not followed by a pause, in milliseconds. */
const FREE_RUN_MS = 2
/** Pause after a submission, as a multiple of its duration beyond {@link FREE_RUN_MS}. */
const PAUSE_FACTOR = 2
const PAUSE_MS_MAX = 200
/** Maximum waiting submissions per project, and their maximum wait. */
const WAITING_MAX = 1_000
const WAIT_MS_MAX = 30_000
const RETRY_MS = 2_000

export class SubmitQueue {
  readonly #permits = new FairSemaphore({ permits: PERMITS, waitingPerKeyMax: WAITING_MAX, refusal: tooMany })
  #last = { project: '', atMs: Number.NEGATIVE_INFINITY }
  /** Last call of a project other than the project of {@link #last}. */
  #before = { project: '', atMs: Number.NEGATIVE_INFINITY }

  recordCall(project: string): void {
    if (this.#last.project !== project) this.#before = this.#last
    this.#last = { project, atMs: performance.now() }
  }

  /**
   * Runs `submit` when the project has a permit.
   *
   * @throws the errors of `submit`; ServiceError `rate_limit_exceeded` if too many submissions wait, or one waits too
   * long; the reason of the signal
   */
  async run<T>(project: string, submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    if (!this.#othersAreActive(project)) return await submit()
    await this.#permit(project, signal)
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      const restMs = PAUSE_FACTOR * Math.max(0, performance.now() - startedAt - FREE_RUN_MS)
      setTimeout(() => this.#permits.release(project), Math.min(restMs, PAUSE_MS_MAX))
    }
  }

  #othersAreActive(project: string): boolean {
    const { atMs } = this.#last.project === project ? this.#before : this.#last
    return performance.now() - atMs < ACTIVE_MS
  }

  async #permit(project: string, signal: AbortSignal): Promise<void> {
    const late = AbortSignal.timeout(WAIT_MS_MAX)
    try {
      await this.#permits.take(project, AbortSignal.any([signal, late]))
    } catch (error) {
      throw late.aborted && !signal.aborted ? tooMany() : error
    }
  }
}

function tooMany(): ServiceError {
  const message =
    'This project submits more jobs at once than the service accepts while other projects make calls. Try again in 2 s.'
  return new ServiceError('rate_limit_exceeded', message, { retryAfterMs: RETRY_MS, isUndone: true })
}

const CALLS_MS = 10_000
const LINE_PAUSE_MS_MAX = 500

/**
 * Slows down batch lines while interactive calls are answered (docs/internals/design.md, Composed jobs).
 *
 * The rate at which lines become jobs determines all costs of a batch, in every process. The duration of a submission
 * shows the load of the store and of this process, and so the delay of interactive calls. Example: after a submission
 * of 42 ms follows a pause of 80 ms; after one of 2 ms, none.
 */
export class BatchThrottle {
  #calledAtMs = Number.NEGATIVE_INFINITY
  #nextAtMs = 0

  recordCall(): void {
    this.#calledAtMs = performance.now()
  }

  /**
   * Creates a job from a line, after the current pause.
   *
   * @throws the errors of `submit`; the reason of the signal
   */
  async line<T>(submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (let waitMs = this.#delayMs; waitMs > 0; waitMs = this.#delayMs) {
      await abortable(new Promise((resolve) => setTimeout(resolve, waitMs)), signal)
    }
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      this.#pause(performance.now() - startedAt)
    }
  }

  get #delayMs(): number {
    const now = performance.now()
    return now - this.#calledAtMs > CALLS_MS ? 0 : Math.ceil(this.#nextAtMs - now)
  }

  #pause(tookMs: number): void {
    const now = performance.now()
    const restMs = PAUSE_FACTOR * Math.max(0, tookMs - FREE_RUN_MS)
    this.#nextAtMs = Math.min(now + LINE_PAUSE_MS_MAX, Math.max(now, this.#nextAtMs) + restMs)
  }
}
