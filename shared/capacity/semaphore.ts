import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'

export interface SemaphoreOptions {
  readonly permits: number
  readonly permitsPerKey?: number
  /** Maximum waiting callers per key. Default: no maximum, for code that limits its number of callers in another way. */
  readonly waitingPerKeyMax?: number
  readonly refusal?: () => ServiceError
}

interface Waiting {
  readonly amount: number
  readonly enter: () => void
}

interface Key {
  taken: number
  readonly waiting: Set<Waiting>
}

/**
 * Semaphore with a fair queue: permits go to keys in round robin, and within a key in order of arrival.
 *
 * A key is, for example, a project. A project with a thousand callers then gets as many permits as a project with one. A maximum
 * per key (a bulkhead) prevents a key with long tasks from holding all permits. Without keys, the queue is first in, first out.
 *
 * A caller may take several permits at once, such as one per byte. Smaller requests do not overtake a large one. A request for more
 * permits than exist is admitted when nothing else is in use.
 *
 * Example with 2 permits, 1 per key: `a` asks 200 times and gets 1 permit. `b` asks once and gets the other one at once.
 */
export class Semaphore {
  readonly #options: SemaphoreOptions
  readonly #keys = new Map<string, Key>()
  #taken = 0

  constructor(options: SemaphoreOptions) {
    this.#options = options
  }

  get taken(): number {
    return this.#taken
  }

  /**
   * Takes permits, and waits if necessary. The caller returns them once with {@link release}.
   *
   * @throws ServiceError the error given to the constructor if too many callers wait under `name`; the signal's reason if aborted
   */
  async take(signal: AbortSignal, amount = 1, name = ''): Promise<void> {
    signal.throwIfAborted()
    const key = this.#keys.get(name) ?? { taken: 0, waiting: new Set<Waiting>() }
    this.#keys.set(name, key)
    if (key.waiting.size === 0 && this.#mayTake(key, amount) && this.#hasFree(amount) && !this.#next())
      return this.#grant(name, key, amount)
    const { waitingPerKeyMax = Number.POSITIVE_INFINITY, refusal } = this.#options
    if (refusal && key.waiting.size >= waitingPerKeyMax) throw refusal()
    const { promise, resolve } = Promise.withResolvers<void>()
    const waiting = { amount, enter: resolve }
    key.waiting.add(waiting)
    try {
      await abortable(promise, signal)
    } catch (error) {
      // If the permits were granted at the moment of the abort, then they are given back. Otherwise smaller requests may have
      // waited behind this one. In both cases the next requests may now be granted.
      if (key.waiting.delete(waiting)) this.#forgetIdle(name, key)
      else this.#giveBack(name, key, amount)
      this.#grantNext()
      throw error
    }
  }

  release(amount = 1, name = ''): void {
    const key = this.#keys.get(name)
    if (!key) return
    this.#giveBack(name, key, amount)
    this.#grantNext()
  }

  #mayTake({ taken }: Key, amount: number): boolean {
    return taken === 0 || taken + amount <= (this.#options.permitsPerKey ?? Number.POSITIVE_INFINITY)
  }

  #hasFree(amount: number): boolean {
    return this.#taken === 0 || this.#taken + amount <= this.#options.permits
  }

  #next(): [string, Key, Waiting] | undefined {
    for (const [name, key] of this.#keys) {
      const [first] = key.waiting
      if (first && this.#mayTake(key, first.amount)) return [name, key, first]
    }
    return undefined
  }

  #grantNext(): void {
    for (let next = this.#next(); next && this.#hasFree(next[2].amount); next = this.#next()) {
      const [name, key, waiting] = next
      key.waiting.delete(waiting)
      this.#grant(name, key, waiting.amount)
      waiting.enter()
    }
  }

  #grant(name: string, key: Key, amount: number): void {
    this.#taken += amount
    key.taken += amount
    this.#keys.delete(name)
    this.#keys.set(name, key)
  }

  #giveBack(name: string, key: Key, amount: number): void {
    this.#taken -= amount
    key.taken -= amount
    this.#forgetIdle(name, key)
  }

  #forgetIdle(name: string, key: Key): void {
    if (key.taken === 0 && key.waiting.size === 0) this.#keys.delete(name)
  }
}

const ACTIVE_MS = 10_000
/** Maximum concurrent submissions of all projects while calls of other projects run. */
const PERMITS = 2
/** A submission of at most this duration, in milliseconds, is not followed by a pause. */
const FREE_RUN_MS = 2
const PAUSE_FACTOR = 2
const PAUSE_MS_MAX = { submission: 200, batchLine: 500 }
const WAITING_MAX = 1_000
const WAIT_MS_MAX = 30_000
const RETRY_AFTER_MS = 2_000

/**
 * Slows down the submission of durable jobs and batch lines while clients wait for calls.
 *
 * The problem: a submission costs the event loop and the store several times as much as an attached call.
 * No client waits for its result. Thousands of submissions at once delayed each attached call of other projects by a hundred submissions.
 *
 * How it works: the duration of a submission shows the load of the store and of this process. Each submission is followed by a
 * pause of {@link PAUSE_FACTOR} times its duration beyond {@link FREE_RUN_MS}. Example: a submission of 12 ms is followed by 20 ms.
 * 1. While *other* projects make calls, a submission needs one of {@link PERMITS} permits, which rotate among the projects.
 *    The permit is free again after the pause.
 * 2. While *any* project makes calls, the lines of all batches wait for the pauses of earlier lines (docs/internals/design.md,
 *    Composed jobs). Fewer lines per second then become jobs, which reduces all load that the batch causes.
 */
export class SubmitQueue {
  readonly #permits = new Semaphore({ permits: PERMITS, waitingPerKeyMax: WAITING_MAX, refusal: tooManySubmissions })
  #last = { project: '', atMs: Number.NEGATIVE_INFINITY }
  #before = { project: '', atMs: Number.NEGATIVE_INFINITY }
  #nextLineAtMs = 0

  recordCall(project: string): void {
    if (this.#last.project !== project) this.#before = this.#last
    this.#last = { project, atMs: performance.now() }
  }

  /**
   * Runs `submit` as soon as the project has a permit.
   *
   * @throws the errors of `submit`; ServiceError `rate_limit_exceeded` if too many submissions wait or this one waits too long; the
   * reason of the signal
   */
  async run<T>(project: string, submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    const others = this.#last.project === project ? this.#before : this.#last
    if (performance.now() - others.atMs >= ACTIVE_MS) return await submit()
    const late = AbortSignal.timeout(WAIT_MS_MAX)
    await this.#permits.take(AbortSignal.any([signal, late]), 1, project).catch((error: unknown) => {
      throw late.aborted && !signal.aborted ? tooManySubmissions() : error
    })
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      const pauseMs = Math.min(pauseAfter(startedAt), PAUSE_MS_MAX.submission)
      setTimeout(() => this.#permits.release(1, project), pauseMs)
    }
  }

  /**
   * Runs `submit`, which creates a job from a line of a batch, after the current pause.
   *
   * @throws the errors of `submit`; the reason of the signal
   */
  async runLine<T>(submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (let waitMs = this.#lineDelayMs; waitMs > 0; waitMs = this.#lineDelayMs) {
      await abortable(new Promise((resolve) => setTimeout(resolve, waitMs)), signal)
    }
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      const now = performance.now()
      const nextAtMs = Math.max(now, this.#nextLineAtMs) + pauseAfter(startedAt)
      this.#nextLineAtMs = Math.min(now + PAUSE_MS_MAX.batchLine, nextAtMs)
    }
  }

  get #lineDelayMs(): number {
    const now = performance.now()
    return now - this.#last.atMs > ACTIVE_MS ? 0 : Math.ceil(this.#nextLineAtMs - now)
  }
}

function pauseAfter(startedAtMs: number): number {
  return PAUSE_FACTOR * Math.max(0, performance.now() - startedAtMs - FREE_RUN_MS)
}

function tooManySubmissions(): ServiceError {
  const message =
    'This project submits more jobs at once than the service accepts while other projects make calls. Try again in 2 s.'
  return new ServiceError('rate_limit_exceeded', message, { retryAfterMs: RETRY_AFTER_MS, isUndone: true })
}
