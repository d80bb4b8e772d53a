import { setTimeout as delay } from 'node:timers/promises'
import { type Backoff, backoffMs } from '#shared/backoff.ts'
import { ServiceError } from '#shared/error.ts'
import type { Log } from '#shared/log/log.ts'

/** How long a start waits for a Kafka or a Postgres that is away: longer than either takes to start. */
const START_WAIT_MS = 120_000
const START_RETRY: Backoff = { baseMs: 250, maxMs: 2_000 }
/** What to do about it. */
const START_POSTGRES = 'Start Postgres, or mend the host and port in DATABASE_URL.'
const FIX = {
  Kafka: 'Start Kafka (to try one out: deploy/kafka-local.sh start), or mend KAFKA_BROKERS.',
  Postgres: START_POSTGRES,
  'the key store': START_POSTGRES,
} as const

/**
 * Opens something, again and again while it is away, and says so once.
 *
 * @throws what the last try threw, or at once what waiting cannot mend
 */
export async function openWhenThere<T>(what: keyof typeof FIX, open: () => Promise<T>, log: Log): Promise<T> {
  const giveUpAt = performance.now() + START_WAIT_MS
  for (let tries = 1; ; tries++) {
    try {
      return await open()
    } catch (error) {
      const isAway = error instanceof ServiceError && error.code === 'overloaded'
      if (!isAway) throw error
      const fix = FIX[what]
      if (performance.now() > giveUpAt) throw new Error(`${error.message} ${fix}`, { cause: error.cause })
      if (tries === 1) log.warn({ what, err: error, wait_ms: START_WAIT_MS, fix }, 'cannot start yet; waiting')
      await delay(backoffMs(Math.min(tries, 10), START_RETRY, Math.random()))
    }
  }
}
