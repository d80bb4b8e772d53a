import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import type { Store } from '#shared/store/store.ts'
import type { Told } from './clients.ts'
import type { Outage } from './faults/faults.ts'
import type { History } from './history.ts'
import type { Wish } from './wish.ts'
import type { Execution, Witness } from './work.ts'

/** How long after the faults a job may still wait because its record was lost. */
export const RECOVERY_MS = 60_000
/** How long after its deadline a job may end: the reaper's grace, and its turns. */
export const GRACE_MS = 10_000
export const TURNS_MS = 5_000

/** What the final check goes by. */
export interface Outcome {
  readonly store: Store
  readonly history: History
  readonly witness: Witness
  readonly told: Told
  readonly leaseMs: number
  readonly outages: readonly Outage[]
  /** When the faults stopped, by the database's clock. */
  readonly calmAtMs: number
}

/** One job with all that is known of it at the end. */
export interface Ended {
  readonly job: DurableJob
  readonly events: DurableEvent[]
  readonly result: unknown
  readonly executions: Execution[]
  /** Undefined: the answer to its submission was lost. */
  readonly wish: Wish | undefined
  /** It never ends by itself. */
  readonly isEndless: boolean
}
