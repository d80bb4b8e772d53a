import type { DurableJob, DurableState, WebhookDelivery } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'

/** Maximum result of {@link OperatorStore.countAhead}, because an exact higher count is of no use. */
export const AHEAD_MAX = 10_000

/**
 * Reads and actions of operators over all projects: jobs, webhook messages, and pauses. For the admin API only, because nothing here checks the
 * project.
 */
export interface OperatorStore {
  /** A page of jobs, newest first, without erased ones. The number of rows read is bounded, so a page may be short or empty. */
  listJobs(query: OperatorJobs): Promise<{ readonly jobs: DurableJob[]; readonly next: Cursor }>
  /** Number of older queued jobs for the same work at the same priority; at most {@link AHEAD_MAX}. */
  countAhead(job: Pick<DurableJob, 'id' | 'pool' | 'kind' | 'model' | 'priority'>): Promise<number>
  /** A page of undelivered or delivered messages, newest first. As for {@link listJobs}, the page may be short or empty. */
  listDeliveries(
    query: OperatorDeliveries,
  ): Promise<{ readonly deliveries: readonly WebhookDelivery[]; readonly next: Cursor }>
  /**
   * Makes a message due at once; a given-up message gets all of its tries again. Returns undefined if the message is unknown or
   * delivered, or if its address was erased.
   */
  retryDelivery(id: string): Promise<WebhookDelivery | undefined>
  listPauses(): Promise<Pause[]>
  pause(target: PauseTarget, by: string): Promise<void>
  resume(target: PauseTarget): Promise<void>
}

/** Cursor of the next page: the id of the last row read; null if there is no further page. */
export type Cursor = string | null

export interface OperatorJobs {
  readonly limit: number
  readonly after?: string | undefined
  readonly tenant?: string | undefined
  readonly pool?: PoolName | undefined
  readonly model?: string | undefined
  readonly states?: readonly DurableState[] | undefined
  /** Only jobs whose ids were created at or after this time, in Unix milliseconds. */
  readonly sinceMs?: number | undefined
}

export interface OperatorDeliveries {
  readonly limit: number
  readonly after?: string | undefined
  readonly tenant?: string | undefined
  /** `failed` means that all attempts failed. Default: failed and pending. */
  readonly state?: WebhookDelivery['state'] | undefined
}

export interface PauseTarget {
  readonly target: 'model' | 'pool'
  readonly id: string
}

export interface Pause extends PauseTarget {
  /** Id of the key that set the pause. */
  readonly by: string
  readonly since_ms: number
}
