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
  /** Silence after which a worker is suspected, in ms: its calls without output may run elsewhere. */
  readonly workerSuspectedMs: number
  /** Silence after which a worker is declared dead, in ms: its running streams fail. */
  readonly workerLostMs: number
  /** Maximum estimated wait, in ms, with which a job is admitted. */
  readonly startTimeoutMs: number
  readonly jobsMax: number
  readonly pauses?: Pauses | undefined
}
