import { createHash } from 'node:crypto'
import type { DurableJob, DurableState, Priority } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'
import type { ConversationItem } from '#schemas/responses/request.ts'
import type { UsageGroup } from '#schemas/usage.ts'
import { newId } from '#shared/lib/id.ts'
import { firstJobId, jobIdTime } from './jobs.ts'
import type { RequestRow } from './requests.ts'

/**
 * Purpose of the input file of a batch. Such a file counts towards the quota and is never listed. The id of the file begins with the id of the batch
 * job (`newAttachmentKey`).
 */
export const BATCH_INPUT = 'batch_input'
/**
 * Purpose of a file that stores part of a conversation, which several responses share (shared/jobs/durable/history.ts). Only jobs refer to such
 * files.
 */
export const HISTORY = 'history'
const RANDOM_LENGTH = 22

/** Metadata of a project's file. The content is a blob under the same id. */
export interface StoredFile {
  readonly id: string
  readonly tenant: string
  readonly purpose: string
  readonly filename: string
  readonly bytes: number
  readonly created_at_ms: number
  readonly expires_at_ms: number
}

export interface NewFile extends Omit<StoredFile, 'created_at_ms' | 'expires_at_ms'> {
  readonly keepMs: number
}

export interface FileBounds {
  readonly filesMax: number
}

export interface FileQuery {
  readonly limit: number
  readonly after?: string | undefined
  readonly order: 'asc' | 'desc'
  readonly purpose?: string | undefined
}

/**
 * Metadata of files. A caller writes the blob before the metadata, and deletes the metadata before the blob. A crash can therefore leave an orphaned
 * blob, which the blob sweep deletes, but never a file without content.
 */
export interface FileStore {
  /** Creates a file, unless the project already has `filesMax` files. Returns true if the file was created or its id already exists. */
  create(file: NewFile, bounds: FileBounds): Promise<boolean>
  find(tenant: string, id: string): Promise<StoredFile | undefined>
  /** Lists a page of files, except batch inputs. If further pages exist, then the result has one file more than the limit. */
  list(tenant: string, query: FileQuery): Promise<StoredFile[]>
  delete(tenant: string, id: string): Promise<boolean>
  /** Adds one reference by a job to each file, and extends the files' retention to at least `keepMs`. Returns the number of files found. */
  refer(tenant: string, ids: readonly string[], keepMs: number): Promise<number>
  /** Removes one reference by a job from each file. Deletes files without remaining references, and returns their ids. */
  release(tenant: string, ids: readonly string[]): Promise<string[]>
  has(id: string): Promise<boolean>
  purge(limit: number): Promise<string[]>
}

export interface HasFiles {
  readonly files: FileStore
}

export function newFileId(atMs: number = Date.now()): string {
  return newId(firstFileId(atMs), RANDOM_LENGTH)
}

/** Returns the id of a file that a job creates, derived from job and name, so that repeated attempts create the same file. */
export function fileIdOf(jobId: string, name: string): string {
  const hash = createHash('sha256').update(`${jobId}\n${name}`).digest('hex').slice(0, RANDOM_LENGTH)
  return firstFileId(jobIdTime(jobId) ?? 0) + hash
}

export function isFileId(text: string): boolean {
  return /^file-[0-9A-Za-z]{8,64}$/.test(text)
}

function firstFileId(atMs: number): string {
  return firstJobId(atMs).replace('job_', 'file-')
}

export interface StoredConversation {
  readonly id: string
  readonly tenant: string
  readonly metadata: Readonly<Record<string, string>>
  readonly items: readonly ConversationItem[]
  readonly job_id: string | null
  /** Input items of the response that is now in progress. When the response ends, its input and output are added to the conversation together. */
  readonly pending: readonly ConversationItem[]
  readonly version: number
  readonly created_at_ms: number
}

export type ConversationChange = Partial<Pick<StoredConversation, 'metadata' | 'items' | 'job_id' | 'pending'>>

/** Conversations of the Responses API. Each conversation is one row, so every change is atomic. */
export interface ConversationStore {
  create(
    conversation: Pick<StoredConversation, 'id' | 'tenant' | 'metadata' | 'items'>,
    bounds: { readonly keepMs: number; readonly most: number },
  ): Promise<boolean>
  find(tenant: string, id: string): Promise<StoredConversation | undefined>
  /**
   * Changes a conversation if its version is unchanged, and extends its retention to `keepMs` from now.
   *
   * @returns False if another call has changed the conversation
   */
  change(read: StoredConversation, change: ConversationChange, keepMs: number): Promise<boolean>
  delete(tenant: string, id: string): Promise<boolean>
  purge(limit: number): Promise<number>
}

export interface HasConversations {
  readonly conversations: ConversationStore
}

export function newConversationId(): string {
  return newId('conv_', 32)
}

export function isConversationId(text: string): boolean {
  return /^conv_[0-9A-Za-z]{8,64}$/.test(text)
}

/** Counted usage. All amounts are whole numbers, so that sums are exact. */
export interface UsageAmounts {
  readonly calls: number
  readonly failed: number
  readonly inputTokens: number
  readonly cachedInputTokens: number
  readonly outputTokens: number
  readonly audioMs: number
  readonly costNanos: number
}

export function addUsage(a: UsageAmounts, b: UsageAmounts): UsageAmounts {
  return {
    calls: a.calls + b.calls,
    failed: a.failed + b.failed,
    inputTokens: a.inputTokens + b.inputTokens,
    cachedInputTokens: a.cachedInputTokens + b.cachedInputTokens,
    outputTokens: a.outputTokens + b.outputTokens,
    audioMs: a.audioMs + b.audioMs,
    costNanos: a.costNanos + b.costNanos,
  }
}

export interface UsageEntry extends UsageAmounts {
  readonly project: string
  readonly keyId: string
  readonly model: string
  /** Path of the endpoint, such as `/v1/chat/completions`. Empty for usage of version 0.3 and older. */
  readonly endpoint: string
  /** Hour in UTC, such as `2030-01-31T08`. */
  readonly hour: string
}

export interface EndedJob {
  readonly jobId: string
  readonly project: string
  readonly keyId: string
  readonly pool: PoolName
  readonly model: string
  readonly endpoint: string
  readonly state: string
  /** Usage that the worker reported for the job. Null if the worker reported none. */
  readonly metered: unknown
  readonly endedAtMs: number
  /** The job. Null if its row was already deleted. */
  readonly job: DurableJob | null
  /** Id of the batch, if the job is a line of a batch. */
  readonly batchId: string | null
}

/** The ledger entry of an ended job. If `request` is undefined, then the job is not recorded in the request log. */
export interface EnteredJob extends UsageEntry {
  readonly jobId: string
  readonly request?: RequestRow | undefined
}

/** Separates the values in the name of a group. A tab, because ids, models and paths contain no control characters. */
export const GROUP_SEPARATOR = '\t'

export interface UsageQuery {
  readonly project?: string | undefined
  readonly keyId?: string | undefined
  readonly model?: string | undefined
  readonly endpoint?: string | undefined
  /** First and last day of the report, both included, in UTC, such as `2030-01-31`. */
  readonly from: string
  readonly to: string
  /** One dimension or several. The values of a group of several dimensions are separated by {@link GROUP_SEPARATOR}. */
  readonly groupBy: UsageGroup | readonly UsageGroup[]
  /** Order of the groups. `cost` sorts by cost, highest first. Default: `group`, by name. */
  readonly orderBy?: 'group' | 'cost'
  readonly limit: number
}

export interface Activity {
  readonly lastDay: string | null
  readonly calls: number
  readonly costNanos: number
}

export interface Spender {
  readonly owner: 'project' | 'key'
  readonly id: string
}

/** Spent amount, and amount reserved by durable jobs that have not ended, in billionths of a US dollar. */
interface Spent extends Spender {
  readonly costNanos: number
  readonly reservedNanos: number
}

/** A webhook message about a budget. */
export interface NewAlert {
  readonly id: string
  /** Project whose secret signs the message. */
  readonly tenant: string
  readonly url: string
  readonly type: string
  readonly data: unknown
  readonly purgeAtMs: number
}

/**
 * The usage ledger, by project, key, model, endpoint and hour (docs/operate/usage.md). The usage of a durable job is
 * recorded exactly once: the transition that ends the job stores the usage in the same commit.
 */
export interface UsageLedger {
  /**
   * Adds a batch of counted usage.
   *
   * @param batch Number of the batch of the process `boot`, from 1. A repeated number adds nothing, so a batch may be sent again after a lost
   * response.
   */
  add(boot: string, batch: number, entries: readonly UsageEntry[]): Promise<void>
  listEnded(limit: number): Promise<EndedJob[]>
  /** Adds the usage of ended jobs to the ledger and their rows to the request log, each job exactly once, even with concurrent callers. */
  enter(jobs: readonly EnteredJob[]): Promise<void>
  /**
   * Adds a webhook message that belongs to no job.
   *
   * @returns False if a message with this id exists
   */
  addAlert(alert: NewAlert): Promise<boolean>
  sum(query: UsageQuery): Promise<(UsageAmounts & { readonly group: string })[]>
  /**
   * Merges hourly rows of the ledger before `before` into one row per day, whose hour is 00. Each call merges at most `limit` rows.
   *
   * @returns True if there may be more rows to merge
   */
  mergeHours(before: string, limit: number): Promise<boolean>
  /**
   * Returns for each project or key in `of`, in the same order, its last active day and its usage. Days before `since` are not searched for activity,
   * and the usage begins with the day `from`. `of` has at most 500 elements.
   */
  activity(of: readonly Spender[], since: string, from: string): Promise<Activity[]>
  /**
   * Returns the spending from the day `from` to the day `to`, and the reservations of jobs whose cost is not yet in the ledger. `of` has at most 500
   * projects or keys. A project or key without spending may be missing in the result.
   */
  spent(of: readonly Spender[], from: string, to: string): Promise<Spent[]>
}

/** Metrics of one interval, for a project or for the whole service. For the whole service, `project` is empty. */
export interface HistorySample {
  readonly project: string
  /** Start of the interval, in Unix seconds. */
  readonly atSeconds: number
  readonly calls: number
  readonly failed: number
  readonly inputTokens: number
  readonly outputTokens: number
  readonly costNanos: number
  /** Calls with a known time in the queue, the sum of these times, and the maximum. */
  readonly queueCalls: number
  readonly queueMs: number
  readonly queueMsMax: number
  /** Calls with output, the sum of the times to the first output, and the maximum. */
  readonly firstCalls: number
  readonly firstMs: number
  readonly firstMsMax: number
  /** Attached calls that run, and attached calls that wait in a queue. */
  readonly running: number
  readonly waiting: number
  /** Durable jobs that run, and durable jobs that wait. */
  readonly jobsRunning: number
  readonly jobsWaiting: number
}

/** Query for the samples from `from` to before `to`, in Unix seconds. Samples are merged into one per `step` seconds. */
export interface HistoryQuery {
  readonly project: string
  readonly from: number
  readonly to: number
  readonly step: number
}

/** Metrics of the service over time (docs/operate/usage.md, History). */
export interface HistoryStore {
  /** Adds samples of one process, which are combined with those of other processes. */
  add(samples: readonly HistorySample[]): Promise<void>
  read(query: HistoryQuery): Promise<HistorySample[]>
  /**
   * Merges samples before `fineAfter` into one per 5 minutes, and deletes samples before `purgeBefore`. Each call merges and deletes at
   * most `limit` samples.
   *
   * @returns Whether there may be more samples to merge or delete
   */
  tidy(fineAfter: number, purgeBefore: number, limit: number): Promise<boolean>
}

export interface HasUsage {
  readonly usage: UsageLedger
  readonly history: HistoryStore
}

/** Reads of unended jobs by tenant, for limits per tenant and fair queues. */
export interface TenantReads {
  /** Counts the queued and running jobs of each tenant. The cost depends only on the number of these jobs. */
  depth(): Promise<TenantDepth[]>
  queued(of: Lane): Promise<{ readonly tenant: string; readonly count: number }[]>
  /**
   * Returns positions of a tenant's jobs in the tenant's own queue. The result has the {@link EXACT_POSITIONS} oldest jobs, and after them every
   * {@link POSITIONS_STEP}th job.
   */
  positions(of: Lane, tenant: string): Promise<QueuedPosition[]>
  running(tenant: string): Promise<number>
  waitingOfKey(keyId: string): Promise<Record<'queued' | 'scheduled', number>>
  /** Whether any job of this pool, kind, model and priority is queued, including jobs of tenants at their limits. */
  isWaiting(of: Lane): Promise<boolean>
  /**
   * Sets the limits that every later claim enforces. Has no effect in Postgres. In Postgres, claims read the limits and the running calls
   * from tables that all ingresses write (shared/keys/postgres.ts, shared/capacity/fleet-counts.ts).
   */
  limitRunning(limits: RunningLimits): void
}

/** For each tenant: the maximum of concurrent calls and durable jobs, and the number of running calls. The store reads both during each claim. */
export interface RunningLimits {
  mostOf(tenant: string): number | undefined
  callsOf(tenant: string): number
}

interface Lane {
  readonly pool: PoolName
  readonly kind: string
  readonly model: string
  readonly priority: Priority
}

export interface TenantDepth {
  readonly tenant: string
  readonly state: Extract<DurableState, 'queued' | 'scheduled' | 'in_progress' | 'waiting'>
  readonly count: number
}

export interface QueuedPosition {
  readonly id: string
  readonly nth: number
}

export const EXACT_POSITIONS = 1_000
/** Queue positions are returned for the oldest {@link EXACT_POSITIONS} jobs of a tenant, and then for one in this many jobs. */
export const POSITIONS_STEP = 100
/** Maximum queued jobs of a tenant that are read to determine queue positions. */
export const POSITIONS_MAX = 10_000

export interface HeldBytes {
  readonly isGranted: boolean
  /** Bytes that the project stores, including reservations of other processes. */
  readonly used: number
}

/**
 * Stored bytes per project: files, bodies, results and blobs of jobs, and conversations. Each write or delete updates the count in the same commit.
 */
export interface StoredBytes {
  /** Lifetime of a reservation in ms. A process must renew its reservations within this time. */
  readonly keepMs: number
  /**
   * Sets the number of bytes that the process `boot` reserves for a project. An increase is granted only if the bytes that the project stores and
   * reserves afterwards are at most `most`.
   */
  hold(tenant: string, boot: string, bytes: number, most: number): Promise<HeldBytes>
  tidy(): Promise<void>
}

export interface HasStoredBytes {
  readonly storedBytes: StoredBytes
}
