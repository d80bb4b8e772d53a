/**
 * Virtual time for one simulation.
 *
 * While installed, the clock replaces the timers and clocks of the whole program. A timer belongs to the simulated process that set it (found
 * by the asynchronous context). Timers of a dead process never fire; timers of a paused one fire when it resumes. Time passes only when no
 * promise is pending, so a simulated minute costs only the work done in it.
 */
import { AsyncLocalStorage } from 'node:async_hooks'

/** Properties of a simulated process that the clock needs. */
export interface Owner {
  readonly isDead: boolean
  /** Time at which the pause of the process ends. If this time is in the past, then the process is running. */
  readonly pausedUntilMs: number
  /** Difference in ms between the clock of the process and the true time. */
  readonly skewMs: number
}

const owners = new AsyncLocalStorage<Owner | undefined>()

/** Start of virtual time, in unix milliseconds. */
const EPOCH_MS = 1_800_000_000_000

class Timer {
  isCancelled = false
  atMs: number
  order: number
  readonly owner: Owner | undefined
  readonly run: () => void
  readonly everyMs: number | undefined

  constructor(atMs: number, order: number, run: () => void, everyMs?: number) {
    this.atMs = atMs
    this.order = order
    this.owner = owners.getStore()
    this.run = run
    this.everyMs = everyMs
  }

  ref(): this {
    return this
  }

  unref(): this {
    return this
  }
}

export class VirtualClock {
  readonly #timers = new TimerHeap()
  #nowMs = 0
  #order = 0

  get nowMs(): number {
    return this.#nowMs
  }

  /** The clock of the database, in unix milliseconds. */
  readonly databaseMs = (): number => EPOCH_MS + this.#nowMs

  /** Replaces the timers and clocks of the program, and its random numbers by `random`. Returns a function that restores them. */
  install(random: () => number): () => void {
    const { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate, clearImmediate } = globalThis
    const real = { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate, clearImmediate }
    const [dateNow, performanceNow, mathRandom] = [Date.now, performance.now, Math.random]
    const cancel = (timer?: unknown) => {
      if (timer instanceof Timer) timer.isCancelled = true
    }
    type Callback = (...args: unknown[]) => void
    Object.assign(globalThis, {
      setTimeout: (run: Callback, ms = 0, ...args: unknown[]) => this.#add(() => run(...args), ms),
      setInterval: (run: Callback, ms = 0, ...args: unknown[]) => this.#add(() => run(...args), ms, Math.max(1, ms)),
      setImmediate: (run: Callback, ...args: unknown[]) => this.#add(() => run(...args), 0),
      clearTimeout: cancel,
      clearInterval: cancel,
      clearImmediate: cancel,
    })
    Date.now = () => EPOCH_MS + Math.floor(this.#nowMs) + (owners.getStore()?.skewMs ?? 0)
    performance.now = () => this.#nowMs
    Math.random = random
    return () => {
      Object.assign(globalThis, real)
      Date.now = dateNow
      performance.now = performanceNow
      Math.random = mathRandom
    }
  }

  /**
   * Runs a function as part of a simulated process, so that its timers stop when the process dies. If `owner` is undefined, then the function
   * belongs to no process.
   */
  as<T>(owner: Owner | undefined, run: () => T): T {
    return owners.run(owner, run)
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => void this.#add(resolve, ms))
  }

  /** Runs a function at a virtual time. The function belongs to no process, so it runs even if processes have died. */
  at(ms: number, run: () => void): void {
    owners.run(undefined, () => this.#add(run, ms - this.#nowMs))
  }

  /** Advances virtual time from timer to timer until `isDone` returns true, or until `untilMs`. */
  async run(untilMs: number, isDone: () => boolean = () => false): Promise<void> {
    await settled()
    while (!isDone()) {
      const timer = this.#timers.take(untilMs)
      if (!timer) {
        this.#nowMs = Math.max(this.#nowMs, untilMs)
        break
      }
      if (timer.isCancelled || timer.owner?.isDead) continue
      if ((timer.owner?.pausedUntilMs ?? 0) > timer.atMs) {
        this.#put(timer, timer.owner?.pausedUntilMs ?? 0)
        continue
      }
      this.#nowMs = timer.atMs
      owners.run(timer.owner, timer.run)
      if (timer.everyMs !== undefined) this.#put(timer, timer.atMs + timer.everyMs)
      await settled()
    }
  }

  #add(run: () => void, ms: number, everyMs?: number): Timer {
    const timer = new Timer(this.#nowMs + Math.max(0, ms), this.#order++, run, everyMs)
    this.#timers.put(timer)
    return timer
  }

  #put(timer: Timer, atMs: number): void {
    timer.atMs = atMs
    timer.order = this.#order++
    this.#timers.put(timer)
  }
}

/**
 * Resolves when all pending promise callbacks have run. A nextTick callback that is added by a promise callback runs only after all promise
 * callbacks.
 */
function settled(): Promise<void> {
  return new Promise((resolve) => process.nextTick(resolve))
}

/** Heap of timers, ordered by time. Timers of the same time keep their order of creation. */
class TimerHeap {
  readonly #timers: Timer[] = []

  put(timer: Timer): void {
    const timers = this.#timers
    let at = timers.length
    while (at > 0) {
      const up = (at - 1) >> 1
      const parent = timers[up] as Timer
      if (isBefore(parent, timer)) break
      timers[at] = parent
      at = up
    }
    timers[at] = timer
  }

  /** Removes the first timer, if it is due by `untilMs`. */
  take(untilMs: number): Timer | undefined {
    const first = this.#timers[0]
    if (!first || first.atMs > untilMs) return undefined
    const last = this.#timers.pop() as Timer
    if (last !== first) this.#sink(last)
    return first
  }

  #sink(timer: Timer): void {
    const timers = this.#timers
    let at = 0
    for (;;) {
      const left = 2 * at + 1
      if (left >= timers.length) break
      const right = left + 1
      const isRight = right < timers.length && isBefore(timers[right] as Timer, timers[left] as Timer)
      const child = isRight ? right : left
      if (isBefore(timer, timers[child] as Timer)) break
      timers[at] = timers[child] as Timer
      at = child
    }
    timers[at] = timer
  }
}

function isBefore(a: Timer, b: Timer): boolean {
  return a.atMs === b.atMs ? a.order < b.order : a.atMs < b.atMs
}
