import { createHash } from 'node:crypto'
import type { DeliveryTry, DurableJob, DurableState, WebhookDelivery } from '#schemas/durable-job.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Metered } from '#schemas/usage.ts'
import { newId, TIME_LENGTH, timeOfText, timeTextOf } from '#shared/lib/id.ts'

/**
 * Ids of durable jobs: `job_`, ten characters of time, 22 random characters (125 bits).
 *
 * Ids sort by age, so an id serves as the cursor of lists and determines the daily partition of the job and its events. The time comes from the clock
 * of the process, so it is never used for deadlines or leases.
 */
const PREFIX = 'job_'
const RANDOM_LENGTH = 22
const ATTACHMENT_LENGTH = 8

export function newJobId(atMs: number = Date.now()): string {
  return newId(firstJobId(atMs), RANDOM_LENGTH)
}

/**
 * Returns the id of a child job, as a hash of the parent's id and the step. If a crashed step runs again, then it finds the child that it created
 * before. The id contains the time of the parent, so both are in the same daily partition.
 */
export function childJobId(parentId: string, step: string): string {
  const hash = createHash('sha256').update(`${parentId}\n${step}`).digest('hex').slice(0, RANDOM_LENGTH)
  return parentId.slice(0, PREFIX.length + TIME_LENGTH) + hash
}

/**
 * Creates the key of an additional blob of a job, such as the output of a step. The key begins with the job id. The sweep that deletes orphaned blobs
 * can therefore check whether the job still exists, even if the blob is written before the job.
 */
export function newAttachmentKey(jobId: string): string {
  return newId(`${jobId}-`, ATTACHMENT_LENGTH)
}

/** Returns the id of the durable job that owns a blob. Undefined for any other blob, such as the body of an attached job. */
export function ownerOfBlob(key: string): string | undefined {
  return /^(job_[0-9A-HJKMNP-TV-Z]{10}\w{22})(-\w+)?$/.exec(key)?.[1]
}

/** Returns a lower bound of the ids that are created at `atMs` or later, for range queries. */
export function firstJobId(atMs: number): string {
  return PREFIX + timeTextOf(atMs)
}

export function jobIdTime(id: string): number | undefined {
  if (!/^job_[0-9A-HJKMNP-TV-Z]{10}/.test(id)) return undefined
  return timeOfText(id.slice(PREFIX.length, PREFIX.length + TIME_LENGTH))
}

/** Usage of a job at the end of an attempt. */
export interface Used {
  /** Usage in the form that the caller receives. */
  readonly usage?: unknown
  /** Usage of all attempts together, in the form of the usage ledger. */
  readonly metered?: Metered
}

export interface CompletedEnd extends Used {
  readonly result: unknown
}

export interface FailedEnd extends Used {
  readonly error: ErrorBody
}

/**
 * Effect of a cancel on a job that may write a partial result.
 *
 * 1. `again`: the first cancel requests the partial result, and a second cancel ends the job.
 * 2. `once`: the first cancel requests the partial result, and a second cancel has no effect.
 * 3. `final`: the job ends without a partial result.
 */
export type CancelHow = 'again' | 'once' | 'final'

export interface NewStep {
  readonly key: string
  readonly kind: string
  /** JSON text of a {@link StepInput}. Undefined if the input is not recorded. */
  readonly input?: string | undefined
  readonly output: StepOutput
  /** Bytes of the blob with the output. Undefined if the output is not in a blob. */
  readonly blobBytes?: number | undefined
  readonly cost: Readonly<Record<string, number>>
}

export type StepOutput = { readonly value: unknown } | { readonly blob: string }

/** Input of a step as canonical JSON. A long input is truncated, and `length` is its original length in characters. */
export type StepInput = { readonly value: unknown } | { readonly cut: string; readonly length: number }

export interface DoneStep extends Omit<NewStep, 'input' | 'output' | 'blobBytes'> {
  readonly attempt: number
  readonly at_ms: number
  readonly blob: string | null
}

export interface RecordedStep extends DoneStep {
  readonly input: StepInput | null
  readonly output: StepOutput
}

/** A child job to submit. The child inherits tenant and priority of its parent. */
export interface NewChild {
  readonly id: string
  readonly pool: PoolName
  readonly kind: string
  readonly endpoint: string
  readonly model: string
  /** Trace context. Default: that of the parent. */
  readonly traceparent?: string | undefined
  /** Body of the child job, or the key of the blob that contains the body. */
  readonly request: unknown
  /** JSON text of the input as a caller sent it. Undefined if the parent made the request. */
  readonly input?: string | undefined
  readonly metadata?: Readonly<Record<string, string>> | undefined
  /** Time from now until the child's deadline, in ms. Default and maximum: the remaining time of the parent. */
  readonly deadlineInMs?: number | undefined
  /** Estimated maximum cost, in billionths of a US dollar, which is reserved in budgets. */
  readonly reservedNanos?: number | undefined
  readonly blobBytes?: number | undefined
}

/** Name of the lease for the purge. Only one process purges at a time, because two concurrent purges would wait for each other's row locks. */
export const PURGE_LEASE = 'purge'

/**
 * Name of the lease that `Sweeps.reap` requires. The lease must be shorter than the leases of workers (`services/scheduler`). After an outage of the
 * store, the reaper's lease then expires first, and the reaper waits until workers have renewed their leases.
 */
export const REAPER_LEASE = 'reaper'

export interface Leases {
  /**
   * Renews the lease of a process for `leaseMs` and returns the jobs that the process holds. If a job runs in the process but is not returned, then
   * the process has lost the job, for example to another worker. Crashes that the reaper counted because the process seemed dead are subtracted
   * again.
   */
  renew(process: ProcessLease): Promise<OwnedJob[]>
  /** Ends the lease of a process, so that the reaper may requeue the process's jobs at once. */
  deregister(boot: string): Promise<void>
  /** Takes or renews a named lease. Returns false if another process holds the lease. */
  holdLease(name: string, boot: string, leaseMs: number): Promise<boolean>
  releaseLease(name: string, boot: string): Promise<void>
}

export interface ProcessLease {
  readonly boot: string
  readonly role: string
  readonly slots: number
  readonly version: string
  readonly draining: boolean
  /** Lease duration in ms. A process counts as dead if it does not renew its lease within this time. */
  readonly leaseMs: number
}

export interface OwnedJob {
  readonly id: string
  readonly attempt: number
  /** True if a cancel was requested and the job must stop without writing a partial result. */
  readonly isCancelRequested: boolean
  /** True if a cancel was requested and the job should write its partial result before it stops. */
  readonly isToWrapUp: boolean
}

/** Maximum result of {@link OperatorStore.countAhead}. Counting stops here to bound the cost of the query. */
export const AHEAD_MAX = 10_000

/**
 * Operators' reads and actions across all projects: jobs, webhook messages and pauses. Only for the admin API, because no method checks the project.
 */
export interface OperatorStore {
  /**
   * Lists jobs, newest first, without erased jobs. The number of rows read is bounded, so a page may be short or empty although further pages follow.
   */
  listJobs(query: OperatorJobs): Promise<{ readonly jobs: DurableJob[]; readonly next: Cursor }>
  /** Counts the older queued jobs of the same model and priority, up to {@link AHEAD_MAX}. */
  countAhead(job: Pick<DurableJob, 'id' | 'pool' | 'kind' | 'model' | 'priority'>): Promise<number>
  /** Lists webhook messages, newest first. As for {@link listJobs}, a page may be short or empty. */
  listDeliveries(
    query: OperatorDeliveries,
  ): Promise<{ readonly deliveries: readonly WebhookDelivery[]; readonly next: Cursor }>
  /**
   * Makes a webhook message due at once. If all tries of the message have failed, then its tries are counted from 0 again. Returns undefined if the
   * message is unknown or delivered, or if its address was erased.
   */
  retryDelivery(id: string): Promise<WebhookDelivery | undefined>
  listPauses(): Promise<Pause[]>
  pause(target: PauseTarget, by: string): Promise<void>
  resume(target: PauseTarget): Promise<void>
}

/** Cursor of the next page: the id of the last row read. Null if there is no further page. */
export type Cursor = string | null

export interface OperatorJobs {
  readonly limit: number
  readonly after?: string | undefined
  readonly tenant?: string | undefined
  readonly pool?: PoolName | undefined
  readonly model?: string | undefined
  readonly states?: readonly DurableState[] | undefined
  /** True to exclude child jobs. */
  readonly isOwn?: boolean | undefined
  /** Only jobs whose ids were created at or after this time, in Unix milliseconds. */
  readonly sinceMs?: number | undefined
}

export interface OperatorDeliveries {
  readonly limit: number
  readonly after?: string | undefined
  readonly tenant?: string | undefined
  /** State of the listed messages. `failed` means that all tries failed. Default: messages that are failed or pending. */
  readonly state?: WebhookDelivery['state'] | 'all' | undefined
}

export interface PauseTarget {
  readonly target: 'model' | 'pool'
  readonly id: string
}

export interface Pause extends PauseTarget {
  /** Id of the API key that set the pause. */
  readonly by: string
  readonly since_ms: number
}

/** Webhook messages. The state transition that ends a job creates its message in the state `pending`. */
export interface Webhooks {
  /**
   * Leases due messages to the caller, which delivers them. The lease of a message ends at the message's new `next_at_ms`. For each job, only the
   * first pending message is taken, so that messages arrive in order.
   */
  takeDeliveries(limit: number, leaseMs: number): Promise<WebhookDelivery[]>
  /**
   * Records the outcome of a delivery.
   *
   * @param history Recent tries including this one, at most `DELIVERY_TRIES_MAX`. If undefined, then nothing was sent, and tries, status and history
   * stay unchanged.
   * @returns False if the message belongs to another process now
   */
  recordDelivery(
    taken: Pick<WebhookDelivery, 'id' | 'next_at_ms'>,
    outcome: DeliveryOutcome,
    history?: readonly DeliveryTry[],
  ): Promise<boolean>
  listDeliveries(jobId: string): Promise<WebhookDelivery[]>
  /** Returns the count and age of pending messages. At most 4,000 messages are counted, so the cost does not grow with the backlog. */
  pendingDeliveries(): Promise<PendingWebhooks>
}

/** Webhook messages that are neither delivered nor failed. The age of a message begins with the event that it reports. */
export interface PendingWebhooks {
  readonly count: number
  readonly oldest_at_ms: number | null
}

export type DeliveryOutcome =
  | { readonly state: 'delivered'; readonly status: number }
  | { readonly state: 'pending'; readonly retryInMs: number; readonly status?: number; readonly error?: string }
  | { readonly state: 'failed'; readonly status?: number; readonly error: string }
