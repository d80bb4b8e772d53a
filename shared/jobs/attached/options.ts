import type { ErrorBody } from '#schemas/error.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { RetryPolicy } from '#shared/jobs/decide.ts'
import type { Pauses } from '#shared/jobs/pauses.ts'
import type { Log } from '#shared/log/log.ts'
import type { AttachedJob } from './attached-job.ts'

/** Retries of attached jobs: few and quick, since somebody waits. */
export const POLICY: RetryPolicy = {
  triesMax: 3,
  crashesMax: 3,
  backoff: { baseMs: 250, maxMs: 4_000 },
  // About a minute.
  handBacksMax: 40,
  delayMsMax: 5_000,
}

/** What happened, for metrics. */
export interface AttachedObserver {
  onRetry(job: AttachedJob, reason: string): void
  onEnd(job: AttachedJob, end: 'completed' | 'failed' | 'cancelled', error?: ErrorBody): void
}

/** What {@link AttachedJobs.open} needs. */
export interface AttachedOptions {
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly observer: AttachedObserver
  readonly version: string
  /** Silence of a worker after which its calls without output are run by another. */
  readonly workerSilentMs: number
  /** Silence of a worker after which streams it has begun are failed. */
  readonly workerLostMs: number
  /** Longest wait that may be expected of a job when it is accepted. */
  readonly startTimeoutMs: number
  /** Most jobs held at once. */
  readonly jobsMax: number
  /** Work that is not started for now; default: none. */
  readonly pauses?: Pauses | undefined
}
