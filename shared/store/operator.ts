import type { DurableJob, DurableState, WebhookDelivery } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'

/** Jobs counted at most by {@link OperatorStore.countAhead}: who waits behind so many need not know how many more. */
export const AHEAD_MAX = 10_000

/**
 * What operators see and do beside the moves of jobs: the jobs and the webhook messages of every project, and work that is
 * paused. It is for the operator's door alone, since nothing in it asks whose a job is.
 */
export interface OperatorStore {
  /** A page of jobs, newest first; erased ones are left out. It looks at a bounded number, so it may be short or empty. */
  listJobs(query: OperatorJobs): Promise<{ readonly jobs: DurableJob[]; readonly next: Cursor }>
  /** Jobs that are queued for the same work in the same lane and are older; at most {@link AHEAD_MAX}. */
  countAhead(job: Pick<DurableJob, 'id' | 'pool' | 'kind' | 'model' | 'priority'>): Promise<number>
  /** A page of webhook messages, those that nobody has received or those that were, newest first, as {@link listJobs}. */
  listDeliveries(
    query: OperatorDeliveries,
  ): Promise<{ readonly deliveries: readonly WebhookDelivery[]; readonly next: Cursor }>
  /**
   * Makes a message due at once; one that was given up has all of its tries again. Undefined: there is none, it was received,
   * or its address was erased.
   */
  retryDelivery(id: string): Promise<WebhookDelivery | undefined>
  /** What is paused, a model or a pool, oldest first. */
  listPauses(): Promise<Pause[]>
  /** Pauses; what is paused already stays as it is. */
  pause(target: PauseTarget, by: string): Promise<void>
  /** Ends a pause, if there is one. */
  resume(target: PauseTarget): Promise<void>
}

/** Where the next page begins: the id of the last row that was looked at; null: there is none. */
export type Cursor = string | null

/** Which jobs {@link OperatorStore.listJobs} gives; what is not named is not asked for. */
export interface OperatorJobs {
  /** Jobs of a page. */
  readonly limit: number
  readonly after?: string | undefined
  readonly tenant?: string | undefined
  readonly pool?: PoolName | undefined
  readonly model?: string | undefined
  readonly states?: readonly DurableState[] | undefined
  /** Only jobs made since then, by their ids; unix milliseconds. */
  readonly sinceMs?: number | undefined
}

/** Which messages {@link OperatorStore.listDeliveries} gives. */
export interface OperatorDeliveries {
  readonly limit: number
  readonly after?: string | undefined
  readonly tenant?: string | undefined
  /** `failed`: given up. Default: these and those that are pending. */
  readonly state?: WebhookDelivery['state'] | undefined
}

/** A model, by its id, or a pool. */
export interface PauseTarget {
  readonly what: 'model' | 'pool'
  readonly id: string
}

/** Work that nobody starts for now. */
export interface Pause extends PauseTarget {
  /** Id of the key that paused it. */
  readonly by: string
  readonly since_ms: number
}
