import { setTimeout as sleep } from 'node:timers/promises'
import type { HistoryRecord, Topic } from '#shared/broker/broker.ts'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'

/** Reports a problem from which the adapter recovers, as a constant event name and fields in snake_case. The caller logs both. */
export type OnProblem = (message: string, fields: Record<string, unknown>) => void

export interface KafkaOptions {
  readonly brokers: readonly string[]
  /**
   * Kind of group that reads queues. `share`: share groups, Kafka 4.2 or later. `classic`: consumer groups, by kafkajs. `auto`: share groups if the
   * cluster supports them, otherwise classic groups.
   */
  readonly client: 'auto' | 'share' | 'classic'
  /** Prefix of every topic and group name, such as `sluice.`. May be empty. */
  readonly prefix: string
  readonly topics: readonly Topic[]
  readonly clientId: string
  /** Number of partitions of each queue with classic groups, which is also the maximum number of workers that share the queue. Default: 16. */
  readonly queuePartitions?: number
  /** Number of replicas of new topics. Default: 3, or the number of brokers if there are fewer. */
  readonly replicationFactor?: number
  /** PEM texts. An empty object means TLS with the certificate authorities of Node. */
  readonly tls?: KafkaTls
  readonly sasl?: KafkaSasl
  /** Maximum time of `submit`, in ms. Default 30 s, because Kafka with default settings needs 9 to 12 s to replace a dead broker. */
  readonly sendTimeoutMs?: number
  /** Maximum bytes that wait to be sent in this process. Default 32 MiB. */
  readonly sendBufferBytesMax?: number
  /** Maximum time of `close`, in ms. Default 5 s. */
  readonly closeTimeoutMs?: number
  readonly onProblem: OnProblem
  /** Called after five consecutive permanent failures of a consumer. The process should then exit. */
  readonly onFatal?: (error: unknown) => void
}

export interface KafkaTls {
  readonly ca?: string
  readonly cert?: string
  readonly key?: string
  readonly passphrase?: string
}

export type KafkaSasl =
  | {
      readonly mechanism: 'PLAIN' | 'SCRAM-SHA-256' | 'SCRAM-SHA-512'
      readonly username: string
      readonly password: string
    }
  | { readonly mechanism: 'OAUTHBEARER'; readonly token: () => Promise<string> }

/**
 * Returns the name of a queue's classic group. The suffix is needed because the topic's own name belongs to its share group, and the broker permits
 * only one kind of group per name.
 */
export function classicGroup(topic: string): string {
  return `${topic}.classic`
}

export function partitionsNeeded({ topics, prefix }: KafkaOptions, topic: string): number {
  const found = topics.find(({ name }) => prefix + name === topic)
  return found?.partitionsMin ?? found?.partitions ?? 0
}

export function fetchGapMs({ topics, prefix }: KafkaOptions, topic: string): number {
  return topics.find(({ name }) => prefix + name === topic)?.fetchGapMs ?? 0
}

export const KAFKA_DEFAULTS = {
  sendTimeoutMs: 30_000,
  sendBufferBytesMax: 32 * 1024 * 1024,
  closeTimeoutMs: 5_000,
} as const

const EXPECTED = 'Kafka consumer retrying; expected while a process, its group or a broker starts'
const FAILURES_MAX = 5
/** Duration of an outage in ms after which the failure is reported again. A broker that restarts or moves its partitions recovers earlier. */
const PERSISTENT_MS = 60_000
const RESTART: Backoff = { baseMs: 50, maxMs: 1_000 }

/**
 * Restart policy of one consumer: computes the delay after a failure and decides when to give up.
 *
 * Temporary errors, such as an unreachable broker or a moved leader, are retried forever. Other errors are counted. The fifth consecutive error
 * without progress calls `onFatal`.
 */
export class Supervisor {
  readonly #what: string
  readonly #options: Pick<KafkaOptions, 'onProblem' | 'onFatal'>
  readonly #isTransient: (error: unknown) => boolean
  #tries = 0
  #failures = 0
  #failingSinceMs: number | undefined
  #isPersistenceReported = false
  #reportedAtMs = Number.NEGATIVE_INFINITY

  constructor(
    what: string,
    options: Pick<KafkaOptions, 'onProblem' | 'onFatal'>,
    isTransient: (error: unknown) => boolean,
  ) {
    this.#what = what
    this.#options = options
    this.#isTransient = isTransient
  }

  progress(): void {
    this.#tries = 0
    this.#failures = 0
    this.#failingSinceMs = undefined
    this.#isPersistenceReported = false
  }

  /**
   * Reports and counts a failure.
   *
   * @param more Further fields of the report.
   * @returns The delay in ms until the next attempt
   */
  failed(error: unknown, more: Readonly<Record<string, unknown>> = {}): number {
    const isTransient = this.#isTransient(error)
    const fields = { what: this.#what, error: String(error), ...more }
    if (isTransient) this.#reportTransient(fields)
    else this.#options.onProblem('Kafka consumer failed; restarting', fields)
    if (!isTransient && ++this.#failures === FAILURES_MAX) this.#options.onFatal?.(error)
    return backoffMs(++this.#tries, RESTART, Math.random())
  }

  /**
   * Reports only the first of several consecutive temporary failures, and at most one failure per minute. Without this limit, each start of a group
   * would be reported several times. If the failures last for a minute, then a separate problem is reported, once.
   */
  #reportTransient(fields: { readonly what: string; readonly error: string }): void {
    const nowMs = performance.now()
    this.#failingSinceMs ??= nowMs
    const failingMs = nowMs - this.#failingSinceMs
    if (failingMs >= PERSISTENT_MS && !this.#isPersistenceReported) {
      this.#isPersistenceReported = true
      const lasting = { ...fields, failing_ms: Math.round(failingMs) }
      this.#options.onProblem('Kafka consumer has reached no broker for a minute; retrying', lasting)
    } else if (this.#tries === 0 && nowMs - this.#reportedAtMs >= PERSISTENT_MS) {
      this.#reportedAtMs = nowMs
      this.#options.onProblem(EXPECTED, { ...fields, is_transient: true })
    }
  }

  /**
   * Repeats a step until it returns true or `signal` aborts.
   *
   * @param onFailure Called after each failure, before the delay.
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

/**
 * Passes a record to a receiver. An error that the receiver throws ends the process, as the port requires. Otherwise the error would look like a
 * failed fetch and be retried.
 */
export function deliver(onRecord: (record: HistoryRecord) => void, record: HistoryRecord): void {
  try {
    onRecord(record)
  } catch (error) {
    setImmediate(() => {
      throw error
    })
  }
}

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

export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => {
    // The sleep rejects only if the signal aborts. The loop checks the signal, so the rejection is ignored.
  })
}

/** Resolves with true if the promise resolves within `ms`, otherwise with false. */
export async function within(ms: number, promise: Promise<unknown>): Promise<boolean> {
  const timeout = new AbortController()
  const late = sleep(ms, false, { signal: timeout.signal }).catch(() => false)
  try {
    return await Promise.race([promise.then(() => true), late])
  } finally {
    timeout.abort()
  }
}
