import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import type { Store } from '#shared/store/store.ts'
import type { Received } from './clients.ts'
import type { Outage } from './faults/faults.ts'
import type { History } from './history.ts'
import type { JobRequest } from './job-request.ts'
import type { Execution, Witness } from './work.ts'

/** After the end of the faults, a job whose queue record was lost may wait for at most this time. */
export const RECOVERY_MS = 60_000
/**
 * Parts of the maximum time between the deadline of a job and its end. GRACE_MS is the grace period, after which a sweep ends an overdue job.
 * TURNS_MS is the time for several iterations of the sweeps, which run about once per second.
 */
export const GRACE_MS = 10_000
export const TURNS_MS = 5_000

/** State at the end of a simulation, which the checks read. */
export interface Outcome {
  readonly store: Store
  readonly history: History
  readonly witness: Witness
  readonly received: Received
  readonly leaseMs: number
  readonly outages: readonly Outage[]
  /** Time at which the faults ended, by the clock of the database. */
  readonly calmAtMs: number
}

/** One job at the end of the simulation, with its events, result and executions. */
export interface Ended {
  readonly job: DurableJob
  readonly events: DurableEvent[]
  readonly result: unknown
  readonly executions: Execution[]
  /** The client's request; undefined if the client never received the job's id, because all responses were lost. */
  readonly request: JobRequest | undefined
  /** True if the script of the job runs until it is cancelled or times out. */
  readonly isEndless: boolean
}
