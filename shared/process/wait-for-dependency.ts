import { setTimeout as delay } from 'node:timers/promises'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'

/** Time in ms for which a starting process tries to reach Kafka, Postgres or S3. Each of these needs less time to start. */
const START_WAIT_MS = 120_000
/**
 * Time in ms for which a starting process retries after an error that looks permanent, such as a wrong password. In a new deployment, the database
 * user may be created a moment later.
 */
const REFUSED_WAIT_MS = 5_000
const START_RETRY: Backoff = { baseMs: 250, maxMs: 2_000 }
const START_POSTGRES = 'Start Postgres, or correct the host and port in DATABASE_URL.'
const FIX = {
  Kafka: 'Start Kafka (to try one out: deploy/kafka-local.sh start), or correct KAFKA_BROKERS.',
  Postgres: START_POSTGRES,
  S3: 'Check BLOB_URL and BLOB_S3_ENDPOINT.',
  'the key store': START_POSTGRES,
} as const

interface Reason {
  readonly message?: string
  readonly remediation?: string
  readonly isPermanent?: boolean
}

/**
 * Opens a dependency such as Postgres, and retries while it is unreachable. The wait is logged once.
 *
 * @throws Error of the last try when the time is over. Any error other than `overloaded` is thrown at once
 */
export async function openWhenAvailable<T>(what: keyof typeof FIX, open: () => Promise<T>, log: Log): Promise<T> {
  const startedAt = performance.now()
  const giveUpAt = startedAt + START_WAIT_MS
  for (let tries = 1; ; tries++) {
    try {
      return await open()
    } catch (error) {
      const isAway = error instanceof ServiceError && error.code === 'overloaded'
      if (!isAway) throw error
      const { remediation = FIX[what], isPermanent = false, message } = (error.cause ?? {}) as Reason
      const now = performance.now()
      const isOver = now > giveUpAt || (isPermanent && now > startedAt + REFUSED_WAIT_MS)
      if (isOver) throw new Error(`${endedBy('.', message ?? error.message)} ${remediation}`, { cause: error })
      const wait_ms = isPermanent ? REFUSED_WAIT_MS : START_WAIT_MS
      if (tries === 1)
        log.warn(
          { what, problem: message, err: error, wait_ms, remediation },
          'dependency unavailable; waiting to start',
        )
      await delay(backoffMs(Math.min(tries, 10), START_RETRY, Math.random()))
    }
  }
}

function endedBy(end: string, sentence: string): string {
  return sentence.endsWith(end) ? sentence : `${sentence}${end}`
}
