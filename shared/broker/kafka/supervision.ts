import { setTimeout as sleep } from 'node:timers/promises'
import { type Backoff, backoffMs } from '#shared/backoff.ts'
import type { KeptRecord } from '#shared/broker/broker.ts'
import type { KafkaOptions } from './options.ts'

const EXPECTED =
  'a Kafka consumer tries again, which is expected while a process, its group or a broker starts, and needs no action'
/** Failures in a row, without progress between them, after which the process should end. */
const FAILURES_MAX = 5
/** A broker that starts, restarts or hands over its partitions is back within seconds; what lasts longer is told as a problem. */
const PERSISTS_MS = 60_000
const RESTART: Backoff = { baseMs: 50, maxMs: 1_000 }

/**
 * Keeps one consumer going: tells how long to wait after a failure, and when to give up.
 *
 * A broker that cannot be reached, or a leader that moves, is the world's fault: retried for ever. Anything else counts,
 * and the fifth in a row without progress goes to `onFatal`.
 */
export class Supervisor {
  readonly #what: string
  readonly #options: Pick<KafkaOptions, 'onProblem' | 'onFatal'>
  readonly #isTransient: (error: unknown) => boolean
  #tries = 0
  #failures = 0
  /** Of the first of the failures in a row. */
  #failingSinceMs: number | undefined
  #isPersistenceTold = false
  /** When a failure was last told that passes by itself. */
  #toldAtMs = Number.NEGATIVE_INFINITY

  constructor(
    what: string,
    options: Pick<KafkaOptions, 'onProblem' | 'onFatal'>,
    isTransient: (error: unknown) => boolean,
  ) {
    this.#what = what
    this.#options = options
    this.#isTransient = isTransient
  }

  /** It works again. */
  progress(): void {
    this.#tries = 0
    this.#failures = 0
    this.#failingSinceMs = undefined
    this.#isPersistenceTold = false
  }

  /** Notes a failure and gives the wait before the next try, up to 1 s. */
  failed(error: unknown): number {
    const isTransient = this.#isTransient(error)
    const fields = { what: this.#what, error: String(error) }
    if (isTransient) this.#tellTransient(fields)
    else this.#options.onProblem('a Kafka consumer failed and is started again', fields)
    if (!isTransient && ++this.#failures === FAILURES_MAX) this.#options.onFatal?.(error)
    return backoffMs(++this.#tries, RESTART, Math.random())
  }

  /** Once a minute at most, because groups and partitions that start may fail several times; and once when it does not pass. */
  #tellTransient(fields: { readonly what: string; readonly error: string }): void {
    const nowMs = performance.now()
    this.#failingSinceMs ??= nowMs
    const failingMs = nowMs - this.#failingSinceMs
    if (failingMs >= PERSISTS_MS && !this.#isPersistenceTold) {
      this.#isPersistenceTold = true
      const lasting = { ...fields, failing_ms: Math.round(failingMs) }
      this.#options.onProblem('a Kafka consumer has found no working broker for a minute, and goes on trying', lasting)
    } else if (this.#tries === 0 && nowMs - this.#toldAtMs >= PERSISTS_MS) {
      this.#toldAtMs = nowMs
      this.#options.onProblem(EXPECTED, { ...fields, is_transient: true })
    }
  }

  /**
   * Repeats a step until it says that it is done, or `signal` aborts.
   *
   * @param onFailure Hears of each failure, before the wait.
   */
  async until(step: () => Promise<boolean>, signal: AbortSignal, onFailure = () => {}): Promise<void> {
    while (!signal.aborted) {
      try {
        if (await step()) return
        this.progress()
      } catch (error) {
        if (signal.aborted) return
        const delayMs = this.failed(error)
        onFailure()
        await pause(delayMs, signal)
      }
    }
  }
}

/** Gives a receiver its record. What it throws ends the process (the port's word): it must not look like a failed fetch. */
export function handOver(onRecord: (record: KeptRecord) => void, record: KeptRecord): void {
  try {
    onRecord(record)
  } catch (error) {
    setImmediate(() => {
      throw error
    })
  }
}

/** Waits until the `wake` that `begin` is given is called, `ms` have passed, or `signal` aborts. */
export async function untilWoken(ms: number, signal: AbortSignal, begin: (wake: () => void) => void): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  const wake = () => resolve()
  const timer = setTimeout(wake, ms)
  signal.addEventListener('abort', wake, { once: true })
  begin(wake)
  await promise
  clearTimeout(timer)
  signal.removeEventListener('abort', wake)
}

/** Waits, or returns early when `signal` aborts. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => {
    // Only the abort can reject, and the caller looks at the signal.
  })
}

/** Resolves with the promise, or after `ms`, whichever comes first; tells whether the promise won. */
export async function within(ms: number, promise: Promise<unknown>): Promise<boolean> {
  const timeout = new AbortController()
  const late = sleep(ms, false, { signal: timeout.signal }).catch(() => false)
  try {
    return await Promise.race([promise.then(() => true), late])
  } finally {
    timeout.abort()
  }
}
