import type { DurableEvent, DurableJob, DurableState, Priority } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'
import type {
  CancelHow,
  CompletedEnd,
  DoneStep,
  FailedEnd,
  Leases,
  NewChild,
  NewStep,
  OperatorStore,
  RecordedStep,
  StepOutput,
  Used,
  Webhooks,
} from './jobs.ts'
import type { HasConversations, HasFiles, HasStoredBytes, HasUsage, TenantReads } from './records.ts'
import type { HasRequests, LogBounds } from './requests.ts'

/**
 * The store port, which alone decides the state of durable jobs (docs/internals/protocol.md, State transitions). Adapters: SQLite by default, and
 * Postgres for several processes.
 *
 * Guarantees of every adapter (test/shared/store/store.test.ts):
 * 1. Each state transition is one guarded statement that uses the database clock. The call resolves when the transition is durable. The result
 *    `undefined` means that the guard refused and nothing changed. A job in a terminal state never changes again.
 * 2. The event of a transition and its webhook message are committed with it. Events of a job are numbered from 1 without gaps. Only events that a
 *    committed transition returned may be published.
 * 3. While the store is unreachable, every read and write rejects with `overloaded`, at once if `isReachable` is false. Calls succeed again when the
 *    store is back.
 * 4. A single call that waited too long for a connection or a lock also rejects with `overloaded`.
 * 5. After the error `overloaded`, the outcome of a write is unknown unless the error has `isUndone`. The caller may repeat the write with the same job
 *    id, or with the same write number of the attempt ({@link HeldAttempt.chunk}). If the first write was committed, then the repeated write changes
 *    nothing and returns its result.
 *
 * Only `shared/jobs/` changes the state of jobs: all other code holds a {@link StoreView}.
 */
export interface Store extends StoreView, JobTransitions, FamilyTransitions, Sweeps, Leases {
  /**
   * Deletes some expired rows and creates the partitions of the next days. Must be called every minute, and again at once while `hasMore` is true.
   * Each call deletes a bounded number of rows, so that other calls are not delayed.
   *
   * @param requests Bounds of the request log. Default: none
   */
  purge(requests?: LogBounds): Promise<Purged>
}

export interface StoreView
  extends JobReads,
    Webhooks,
    HasUsage,
    HasRequests,
    HasFiles,
    HasConversations,
    HasMetadata,
    HasStoredBytes {
  /** Name of the adapter for logs and `/readyz`, such as `postgres` or `sqlite`. */
  readonly name: string
  /** False from the detection of an outage until the database answers again. */
  readonly isReachable: boolean
  /** True if a write within the last minute found the disk of the database full. */
  readonly isFull: boolean
  /**
   * True only if no job is queued or running, and no webhook message or usage record is pending. Until the next write, a sweep would find no work.
   */
  readonly isIdle: boolean
  /** Resolves when {@link isIdle} is false, or when `signal` aborts. */
  untilWork(signal: AbortSignal): Promise<void>
  readonly tenants: TenantReads
  readonly operator: OperatorStore
  /** Waits for running calls, then closes all connections. May be called several times. */
  close(): Promise<void>
}

export interface JobTransitions {
  /** Accepts a job. If a job with this id exists, then that job is returned. The caller publishes the job if its state is queued. */
  create(job: NewJob, key?: IdempotencyKey): Promise<Created>
  /**
   * queued → in_progress. Requires that the lease of the process `boot` is valid and that the job has not expired. The returned job has the new
   * attempt number.
   */
  claim(id: string, boot: string): Promise<TransitionResult | undefined>
  /**
   * Claims at most `limit` queued jobs of one model, round robin over tenants (docs/internals/design.md, Fairness). The round starts after the tenant
   * `after`, and takes the oldest job of each visited tenant. Returns the claimed jobs with their requests, ordered by id. Jobs that other processes
   * are claiming are skipped.
   */
  claimNext(of: QueuedOf, boot: string, limit: number, after?: string): Promise<Dispatch[]>
  append(run: HeldAttempt, output: Output): Promise<TransitionResult | undefined>
  /** in_progress → completed. A job can also complete after a cancel request, if its worker was faster. */
  complete(run: HeldAttempt, end: CompletedEnd & { output?: Output }): Promise<TransitionResult | undefined>
  fail(run: HeldAttempt, end: FailedEnd & { output?: Output }): Promise<TransitionResult | undefined>
  /**
   * in_progress → scheduled in `delayMs`. The retry counts as a try of the job unless `isTry` is false. If a cancel was requested, then the
   * job is cancelled instead, unless it still has time to write a partial result.
   */
  retry(
    run: HeldAttempt,
    end: FailedEnd & { delayMs: number; isTry?: boolean; output?: Output },
  ): Promise<TransitionResult | undefined>
  /**
   * in_progress → queued, without counting a try. The caller publishes the job. If a cancel was requested, then the job is cancelled
   * instead, unless it still has time to write a partial result.
   */
  handBack(run: HeldAttempt, output?: Output, used?: Used): Promise<TransitionResult | undefined>
  honourCancel(run: HeldAttempt, output?: Output, used?: Used): Promise<TransitionResult | undefined>
  /**
   * queued, scheduled, waiting → cancelled. A job in progress gets a cancel request, so that its worker stops it. Returns undefined if nothing
   * changed, because the job has ended, does not exist, or already has a cancel request.
   *
   * A job with {@link NewJob.partialMs} may write a partial result. The first cancel gives the job `partialMs` of time to do so. If no worker runs
   * the job and the job has recorded steps, then the job is queued, and the caller publishes it. A second cancel, or a first cancel with `how` =
   * `final`, ends the job as described above. A second cancel with `how` = `once` has no effect.
   */
  cancel(scope: Scope, id: string, how?: CancelHow): Promise<Dispatch | undefined>
  /**
   * Deletes request, result and events of a job that has ended. The other columns of the row remain until the purge. Returns false if the
   * job has not ended.
   */
  erase(scope: Scope, id: string): Promise<boolean>
  /** Hides the ended children of a job. The next purges delete them. */
  forgetChildren(id: string): Promise<void>
  /**
   * Creates a copy of a failed, cancelled or expired job with the original time limit. The caller publishes the copy.
   */
  redrive(scope: Scope, id: string, newId: string): Promise<Dispatch | undefined>
}

/** State transitions that connect a composed job with its steps and children (docs/internals/design.md, Composed jobs). */
export interface FamilyTransitions {
  addStep(run: HeldAttempt, step: NewStep, output: Output): Promise<TransitionResult | undefined>
  /**
   * Creates a child of the job that the attempt `run` holds. The write has the number `run.chunk`, so that a repeated call creates no second child.
   * The caller publishes the child. Returns the parent.
   */
  submitChild(run: HeldAttempt, child: NewChild): Promise<TransitionResult | undefined>
  /**
   * in_progress → waiting, until the children `ids` have ended, or until `wrapUpMs` before the deadline. No attempt is counted.
   *
   * The job is queued instead if all children have already ended, or if it was cancelled and may write a partial result. The caller then
   * publishes the job.
   *
   * If a cancel was requested and no time for a partial result is left, then the job is cancelled, as for {@link JobTransitions.retry}.
   */
  park(
    run: HeldAttempt,
    on: { ids: readonly string[]; wrapUpMs: number; output?: Output },
  ): Promise<TransitionResult | undefined>
  /** waiting → queued, after the awaited children have ended. The caller publishes the job. */
  wake(id: string): Promise<Dispatch | undefined>
  cancelChildren(id: string, limit: number): Promise<TransitionResult[]>
  /**
   * Marks an ended job as settled, which means that its parent was woken and its children were cancelled. Has no effect while a child still runs
   * without a cancel request.
   */
  settle(id: string): Promise<void>
}

/**
 * Sweeps of the scheduler. Several schedulers may run concurrently. Each call returns at most `limit` changed jobs, and the caller publishes those
 * that are queued.
 */
export interface Sweeps {
  /** scheduled → queued, if `run_at` has passed. */
  startDue(limit: number): Promise<Dispatch[]>
  /** Returns queued jobs of a pool whose last publication is at least `olderThanMs` ago, oldest first, and records a new publication time. */
  takeUnpublished(pool: PoolName, olderThanMs: number, limit: number): Promise<Dispatch[]>
  /**
   * queued, scheduled → expired, after the maximum wait. A job with a cancel request is cancelled instead, when its time for a partial result is
   * over.
   */
  expire(limit: number): Promise<TransitionResult[]>
  /** waiting → queued, after the maximum wait for children. */
  wakeDue(limit: number): Promise<Dispatch[]>
  /** waiting → failed with `timeout`, after the deadline. */
  timeOutWaiting(limit: number): Promise<TransitionResult[]>
  /**
   * Ends or requeues jobs in progress that their holder (the worker that claimed the job) failed to end:
   *
   * 1. If the holder's lease has expired: → queued, or failed after `crashesMax` crashes.
   * 2. If a cancel was requested `cancelGraceMs` ago: → cancelled.
   * 3. If the deadline passed `deadlineGraceMs` ago: → failed with `timeout`.
   *
   * Has no effect on a job until the process `boot` has held the lease `reaper` for at least the lease duration of the job's holder. After an outage
   * of the store, all leases have expired although the holders are alive. This wait gives the holders time to renew their leases.
   */
  reap(boot: string, policy: ReapPolicy, limit: number): Promise<Dispatch[]>
}

/** Reads of jobs. Only committed transitions are visible. A job after its `purge_at_ms` is not visible. */
export interface JobReads {
  find(scope: Scope, id: string): Promise<DurableJob | undefined>
  /**
   * Finds the job that an earlier call with this idempotency key created. Returns undefined if no call has used the key. The outcome is `exists` or
   * `conflict`.
   */
  findMade(tenant: string, key: IdempotencyKey): Promise<Created | undefined>
  /** True if the job's retention has ended (`purge_at_ms`) but the purge has not deleted its row yet. */
  isPast(scope: Scope, id: string): Promise<boolean>
  findContent(scope: Scope, id: string): Promise<{ request: unknown; result: unknown } | undefined>
  /** Stored requests of these jobs by id. Null for a request of more than `bytesMax` bytes. */
  findRequests(scope: Scope, ids: readonly string[], bytesMax: number): Promise<Map<string, unknown>>
  findInput(scope: Scope, id: string): Promise<{ request: unknown; input: unknown } | undefined>
  findResultText(scope: Scope, id: string): Promise<string | null>
  /**
   * Lists jobs without erased jobs, newest first unless `order` is asc. For one tenant, the cost depends only on the size of the page. For
   * {@link ALL_TENANTS}, the call may also read many jobs that do not match.
   */
  list(scope: Scope, query: ListQuery): Promise<{ jobs: DurableJob[]; hasMore: boolean }>
  /**
   * Lists events after `after`, in order. A page ends after `limit` events, or after the event with which its data exceeds
   * {@link EVENTS_BYTES_MAX}.
   */
  listEvents(scope: Scope, id: string, after: number, limit: number): Promise<DurableEvent[]>
  /**
   * Counts queued and running jobs, with the age of the oldest. The cost does not depend on the number of ended jobs.
   */
  depth(): Promise<Depth[]>
  findStep(id: string, key: string): Promise<(DoneStep & { readonly output: StepOutput }) | undefined>
  listSteps(scope: Scope, id: string): Promise<DoneStep[]>
  listRecordedSteps(scope: Scope, id: string, after: number, limit: number): Promise<RecordedStep[]>
  listChildren(scope: Scope, id: string): Promise<DurableJob[]>
  /**
   * Counts child jobs by parent and state, and separately the recently ended ones.
   *
   * @param parents At most 100 ids. All their child jobs are read, so the caller must bound the number of these too
   * @param sinceMs Child jobs that ended at or after this time count as recent
   */
  countChildren(scope: Scope, parents: readonly string[], sinceMs: number): Promise<ChildrenOfState[]>
  listUnsettled(limit: number): Promise<DurableJob[]>
  queuedModels(): Promise<(QueuedOf & { readonly count: number })[]>
}

/** Scope of operators and of Sluice itself: the jobs of all tenants. */
export const ALL_TENANTS = Symbol('every tenant')

/** The jobs that a call can access: those of one tenant, or those of all tenants. Other jobs are treated as if they did not exist. */
export type Scope = string | typeof ALL_TENANTS

export interface HeldAttempt {
  readonly id: string
  readonly attempt: number
  readonly boot: string
  /** Number of the next write of this attempt, from 0. The store detects repeated and outdated writes by this number. */
  readonly chunk: number
}

/** A job to accept. Times are durations from now, because only the clock of the database counts. */
export interface NewJob {
  readonly id: string
  readonly tenant: string
  /** Id of the API key that submits the job, for the usage ledger. Default: the tenant. */
  readonly keyId?: string
  readonly pool: PoolName
  readonly kind: string
  readonly endpoint: string
  readonly model: string
  /** Body of the job, or the key of the blob that contains the body. */
  readonly request: unknown
  /** JSON text of the input as its caller sent it (`inputText` in shared/jobs/body.ts). Undefined if another job submits the job. */
  readonly input?: string | undefined
  /** Time in ms from acceptance, or from `runAtMs`, until the deadline. */
  readonly deadlineInMs: number
  /** Maximum wait before the first start, in ms. Default: until the deadline. */
  readonly startInMs?: number
  readonly runAtMs?: number
  /** Time in ms after the job's end for which its row is stored. Must be at least 24 h, because idempotency keys live for 24 h and need the job. */
  readonly retentionMs: number
  readonly priority?: Priority
  readonly stream?: boolean
  readonly parentId?: string
  readonly metadata?: Record<string, string>
  readonly webhook?: { readonly url: string; readonly events: readonly string[] }
  readonly requestId?: string
  readonly traceparent?: string
  /** Time in ms after a cancel in which the job may write a partial result. Default: none, so that a cancel ends the job at once. */
  readonly partialMs?: number | undefined
  /** Estimated maximum cost in billionths of a US dollar, reserved in budgets until the real cost is in the ledger. Default: none. */
  readonly reservedNanos?: number | undefined
  readonly blobBytes?: number | undefined
}

/** Idempotency key of a caller, who guarantees that requests with equal keys are equal. */
export interface IdempotencyKey {
  /** Method and path of the request. The key is valid within this scope and the tenant of the job. */
  readonly scope: string
  readonly key: string
  readonly fingerprint: string
  readonly keepMs: number
  /** Id of an earlier job with this key that has failed. The key then refers to the new job. */
  readonly replaces?: string
}

/**
 * Outcome of a submission. `exists`: an earlier request with this job id, or with this idempotency key and fingerprint, created the job, which may
 * have ended since.
 */
export type Created =
  | { readonly outcome: 'created'; readonly job: DurableJob; readonly events: DurableEvent[] }
  | { readonly outcome: 'exists'; readonly job: DurableJob }
  | { readonly outcome: 'conflict'; readonly jobId: string }

export interface TransitionResult {
  readonly job: DurableJob
  readonly events: DurableEvent[]
}

export interface Dispatch extends TransitionResult {
  readonly request: unknown
}

/**
 * Bytes of event data at which a page ends, because reading and parsing them blocks the event loop. The event with which the data exceeds this number
 * is the last one of the page.
 */
export const EVENTS_BYTES_MAX = 256 * 1024

/** An output event of an attempt. A `job.progress` event also replaces the progress of the job. */
export interface NewEvent {
  readonly type: 'job.output.delta' | 'job.progress'
  readonly data: unknown
}

export type Output = readonly NewEvent[]

export interface ReapPolicy {
  /** Number of lost workers after which a job fails with `worker_lost`. */
  readonly crashesMax: number
  /** Maximum time in ms for the holder of a job to stop the job after a cancel request. */
  readonly cancelGraceMs: number
  /** Maximum time in ms after the deadline for the holder of a job to report its end. */
  readonly deadlineGraceMs: number
}

export interface Purged {
  /** Requests of the deleted jobs. A request can be stored as a blob, which the caller must delete too. */
  readonly requests: readonly unknown[]
  readonly hasMore: boolean
}

export interface ListQuery {
  readonly limit: number
  /** Id of the last job of the previous page, after which this page begins. */
  readonly after?: string
  readonly order?: 'asc' | 'desc'
  readonly states?: readonly DurableState[]
  readonly endpoint?: string
  readonly parentId?: string
  /** True to exclude child jobs. Cannot be combined with `parentId`. */
  readonly isOwn?: boolean
}

export interface ChildrenOfState {
  readonly parent: string
  readonly state: DurableState
  readonly count: number
  readonly recent: number
  /** Sum of the running times of the recently ended children in ms, each from first start to end. */
  readonly recentRunMs: number
  /** Earliest first start of a recently ended child, in Unix milliseconds. */
  readonly recentFromMs: number
}

export interface Depth {
  readonly pool: PoolName
  readonly model: string
  readonly priority: Priority
  readonly state: 'queued' | 'scheduled' | 'in_progress' | 'waiting'
  readonly count: number
  readonly oldest_at_ms: number
}

/** Jobs that compete for the same worker slots: one kind of job for one model, at one priority. */
export interface QueuedOf {
  readonly pool: PoolName
  readonly kind: string
  readonly model: string
  readonly priority: Priority
}

/** Port for changing the metadata of a job. The work of a job never depends on its metadata. */
interface HasMetadata {
  /**
   * Replaces the metadata of a job.
   *
   * @returns False if the job does not exist or its retention has ended
   */
  setMetadata(tenant: string, id: string, metadata: Readonly<Record<string, string>>): Promise<boolean>
}
