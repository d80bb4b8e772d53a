import { ServiceError } from '#shared/error.ts'
import { FairSemaphore } from '#shared/fair-semaphore.ts'

/*
 * Durable jobs are submitted in fair turns of projects while other projects have calls answered.
 *
 * A submit costs the event loop and the store several times what a plain call costs, and no connection waits for its result. Thousands of them
 * at once made each plain call of another project wait for a hundred of them. So a submit takes one of few permits, projects in turn, and
 * a permit rests after each submit for as long as that held up others: the slower the process, the longer. While no other project calls,
 * submits take no turn.
 */

/** Time for which a project that has called may call again. */
const CALLS_MS = 10_000
/** Submits at once, of all projects that take turns. */
const PERMITS = 2
/** A submit within this time holds up nobody, in milliseconds. */
const FREE_RUN_MS = 2
/** Rest after a submit, in parts of the time beyond that. */
const RESTS = 2
const REST_MS_MAX = 200
/** Submits of one project that wait, and for how long. */
const WAITING_MAX = 1_000
const WAIT_MS_MAX = 30_000
const RETRY_MS = 2_000

/** Orders submits of durable jobs (see above). */
export class SubmitTurns {
  readonly #permits = new FairSemaphore({ permits: PERMITS, waitingPerKeyMax: WAITING_MAX, refusal: tooMany })
  #last = { project: '', atMs: Number.NEGATIVE_INFINITY }
  /** Next submit, of another project than the last one. */
  #before = { project: '', atMs: Number.NEGATIVE_INFINITY }

  /** A call that somebody waits for is answered. */
  noteCall(project: string): void {
    if (this.#last.project !== project) this.#before = this.#last
    this.#last = { project, atMs: performance.now() }
  }

  /**
   * Makes a job in turn.
   *
   * @throws What `submit` throws; ServiceError `rate_limit_exceeded` when too many wait, or for too long; the signal's reason
   */
  async take<T>(project: string, submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    if (!this.#othersCall(project)) return await submit()
    await this.#permit(project, signal)
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      const restMs = RESTS * Math.max(0, performance.now() - startedAt - FREE_RUN_MS)
      setTimeout(() => this.#permits.release(project), Math.min(restMs, REST_MS_MAX))
    }
  }

  #othersCall(project: string): boolean {
    const { atMs } = this.#last.project === project ? this.#before : this.#last
    return performance.now() - atMs < CALLS_MS
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
    'This project submits more jobs at once than the service accepts beside the calls of others. Try again in 2 s.'
  return new ServiceError('rate_limit_exceeded', message, { retryAfterMs: RETRY_MS, isUndone: true })
}
