import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import type { Store } from '#shared/store/store.ts'
import type { Received } from './clients.ts'
import type { Outage } from './faults/faults.ts'
import type { History } from './history.ts'
import type { JobRequest } from './job-request.ts'
import type { Execution, Witness } from './work.ts'

/** Maximum time after the faults for which a job may wait because its record was lost. */
export const RECOVERY_MS = 60_000
/** Maximum delay of an end after the deadline: grace period and interval of the sweep. */
export const GRACE_MS = 10_000
export const TURNS_MS = 5_000

/** Inputs of the final check. */
export interface Outcome {
  readonly store: Store
  readonly history: History
  readonly witness: Witness
  readonly received: Received
  readonly leaseMs: number
  readonly outages: readonly Outage[]
  /** End of the faults, by the clock of the database. */
  readonly calmAtMs: number
}

/** One job with all records about it at the end. */
export interface Ended {
  readonly job: DurableJob
  readonly events: DurableEvent[]
  readonly result: unknown
  readonly executions: Execution[]
  /** Undefined: the response to its submission was lost. */
  readonly request: JobRequest | undefined
  /** The job never ends by itself. */
  readonly isEndless: boolean
}
