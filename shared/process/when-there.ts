import { setTimeout as delay } from 'node:timers/promises'
import { type Backoff, backoffMs } from '#shared/backoff.ts'
import { ServiceError } from '#shared/error.ts'
import type { Log } from '#shared/log/log.ts'

/** How long a start waits for a Kafka or a Postgres that is away: longer than either takes to start. */
const START_WAIT_MS = 120_000
/** How long it waits for what no waiting changes, such as a wrong password: a database that was just made may still get its users. */
const REFUSED_WAIT_MS = 5_000
const START_RETRY: Backoff = { baseMs: 250, maxMs: 2_000 }
/** What to do about it, unless the cause of the failure has a remedy of its own. */
const START_POSTGRES = 'Start Postgres, or correct the host and port in DATABASE_URL.'
const FIX = {
  Kafka: 'Start Kafka (to try one out: deploy/kafka-local.sh start), or correct KAFKA_BROKERS.',
  Postgres: START_POSTGRES,
  'the key store': START_POSTGRES,
} as const

/** What an adapter may say about a failure, as the cause of its ServiceError. */
interface Reason {
  readonly message?: string
  readonly fix?: string
  /** Waiting does not help. */
  readonly isPermanent?: boolean
}

/**
 * Opens something, again and again while it is away, and says so once.
 *
 * @throws what the last try threw, or at once what waiting cannot mend
 */
export async function openWhenThere<T>(what: keyof typeof FIX, open: () => Promise<T>, log: Log): Promise<T> {
  const startedAt = performance.now()
  const giveUpAt = startedAt + START_WAIT_MS
  for (let tries = 1; ; tries++) {
    try {
      return await open()
    } catch (error) {
      const isAway = error instanceof ServiceError && error.code === 'overloaded'
      if (!isAway) throw error
      const { fix = FIX[what], isPermanent = false, message } = (error.cause ?? {}) as Reason
      const now = performance.now()
      const isOver = now > giveUpAt || (isPermanent && now > startedAt + REFUSED_WAIT_MS)
      if (isOver) throw new Error(`${endedBy('.', message ?? error.message)} ${fix}`, { cause: error })
      const wait_ms = isPermanent ? REFUSED_WAIT_MS : START_WAIT_MS
      if (tries === 1) log.warn({ what, problem: message, err: error, wait_ms, fix }, 'cannot start yet; waiting')
      await delay(backoffMs(Math.min(tries, 10), START_RETRY, Math.random()))
    }
  }
}

function endedBy(end: string, sentence: string): string {
  return sentence.endsWith(end) ? sentence : `${sentence}${end}`
}
