import type { ErrorBody } from '#schemas/error.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { Pauses } from '#shared/capacity/pauses.ts'
import type { RetryPolicy } from '#shared/jobs/decide.ts'
import type { Log } from '#shared/log/log.ts'
import type { AttachedJob } from './attached-job.ts'

/** Retries of attached jobs are few and quick, because a caller waits on an open connection. */
export const POLICY: RetryPolicy = {
  triesMax: 3,
  crashesMax: 3,
  backoff: { baseMs: 250, maxMs: 4_000 },
  // 40 hand-backs take about a minute.
  handBacksMax: 40,
  delayMsMax: 5_000,
}

export interface AttachedObserver {
  onRetry(job: AttachedJob, reason: string): void
  onEnd(job: AttachedJob, end: 'completed' | 'failed' | 'cancelled', error?: ErrorBody): void
}

export interface AttachedOptions {
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly observer: AttachedObserver
  readonly version: string
  /** Silence in ms after which a worker is suspected. Calls on this worker that have sent no output may then be retried on another one. */
  readonly workerSuspectedMs: number
  /** Silence in ms after which a worker is declared dead. Streams on this worker that have sent output then fail. */
  readonly workerLostMs: number
  /** Maximum estimated wait in ms. A job with a longer estimate is rejected. */
  readonly startTimeoutMs: number
  readonly jobsMax: number
  readonly pauses?: Pauses | undefined
}
