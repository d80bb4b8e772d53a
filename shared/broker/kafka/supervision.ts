import { setTimeout as sleep } from 'node:timers/promises'
import { type Backoff, backoffMs } from '#shared/backoff.ts'
import type { KafkaOptions } from './options.ts'

/** Failures in a row, without progress between them, after which the process should end. */
const FAILURES_MAX = 5
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
  }

  /** Notes a failure and gives the wait before the next try, up to 1 s. */
  failed(error: unknown): number {
    const isTransient = this.#isTransient(error)
    if (this.#tries === 0 || !isTransient) {
      const fields = { what: this.#what, error: String(error), is_transient: isTransient }
      this.#options.onProblem('a Kafka consumer failed and is started again', fields)
    }
    if (!isTransient && ++this.#failures === FAILURES_MAX) this.#options.onFatal?.(error)
    return backoffMs(++this.#tries, RESTART, Math.random())
  }
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
