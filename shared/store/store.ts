import type { DurableEvent, DurableJob, DurableState, Priority } from '#schemas/durable-job.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { PoolName } from '#schemas/job.ts'
import type { HasConversations } from './conversations.ts'
import type { CancelHow, CompletedEnd, FailedEnd } from './ends.ts'
import type { DoneStep, NewChild, NewStep, RecordedStep, StepOutput } from './family.ts'
import type { HasFiles } from './files.ts'
import type { Leases } from './leases.ts'
import type { HasMetadata } from './metadata.ts'
import type { OperatorStore } from './operator.ts'
import type { HasStoredBytes } from './stored-bytes.ts'
import type { TenantReads } from './tenants.ts'
import type { HasUsage } from './usage.ts'
import type { Webhooks } from './webhooks.ts'

/**
 * The store port: the arbiter of durable jobs (docs/design.md, Moves and guards). Postgres in production, SQLite by
 * default.
 *
 * Promises every adapter keeps (test/shared/store/store.test.ts):
 * - Each move is one guarded statement on database time. It resolves once it is on disk; `undefined` says that its guard
 *   refused and nothing changed. A terminal row never moves again.
 * - The event of a move, and the webhook message about it, are written with it. Events of a job are numbered from 1
 *   without gaps. Publish only what a move gave back: commit before you speak.
 * - `overloaded` while the store cannot be reached, at once when `isReachable` is false; it comes back by itself. Also for
 *   one call that waited too long for its turn or a lock, which is no outage. After such an error the outcome of a write is
 *   unknown unless it says `isUndone`, and the same write may be made again: {@link HeldAttempt.chunk} and the job's own id make the
 *   second one give what the first one did.
 *
 * Only `shared/jobs/` moves jobs: everybody else holds a {@link StoreView}.
 */
export interface Store extends StoreView, JobMoves, FamilyMoves, Sweeps, Leases {
  /**
   * Deletes some of what is kept no longer, and prepares the days to come. Run it every minute, and again at once while it
   * says that there is more: one call is bounded, so that it holds up nothing else.
   */
  purge(): Promise<Purged>
}

/** The store as those hold it who move no job. */
export interface StoreView
  extends JobReads,
    Webhooks,
    HasUsage,
    HasFiles,
    HasConversations,
    HasMetadata,
    HasStoredBytes {
  /** For logs and `/readyz`, such as `postgres` or `sqlite`. */
  readonly name: string
  /** False from the moment the store is known to be gone until it answers again. */
  readonly isReachable: boolean
  /** A write of the last minute found no room on the disk of the database. Never on a disk of this machine, which the doctor looks at. */
  readonly isFull: boolean
  /** For sure nothing waits, runs or is to be told: until something is written there is nothing to sweep. */
  readonly isIdle: boolean
  /** Resolves once it is not idle: at once where it is not, else when something was written, or at the signal. */
  untilWork(signal: AbortSignal): Promise<void>
  readonly tenants: TenantReads
  readonly operator: OperatorStore
  /** Waits for what runs, then lets go of everything. Tolerates a second call. */
  close(): Promise<void>
}

/** What the API and the owner of a job may do to it. */
export interface JobMoves {
  /** Accepts a job: to be published as soon as it is queued. An id that exists already gives that job. */
  create(job: NewJob, key?: IdempotencyKey): Promise<Created>
  /** queued → in_progress, by a live process, before the job expires. The attempt is that of the job it gives. */
  claim(id: string, boot: string): Promise<Moved | undefined>
  /**
   * The same for jobs of one model, at most `limit`, in turn of their tenants (docs/design.md, Turns): one each, the oldest, of
   * those that come after the tenant `after`, round and round, until there are enough or no more. Gives what it takes to run
   * them, by their ids. Those that others are claiming meanwhile are passed over.
   */
  claimNext(of: QueuedOf, boot: string, limit: number, after?: string): Promise<Dispatch[]>
  /** Records output and progress of a run, numbered. */
  append(run: HeldAttempt, output: Output): Promise<Moved | undefined>
  /** in_progress → completed. Work that finished first wins over a cancel that was only asked for. */
  complete(run: HeldAttempt, end: CompletedEnd & { output?: Output }): Promise<Moved | undefined>
  /** in_progress → failed. */
  fail(run: HeldAttempt, end: FailedEnd & { output?: Output }): Promise<Moved | undefined>
  /**
   * in_progress → scheduled, `delayMs` from now, a try used up unless `isTry` is false; → cancelled when a cancel was asked
   * for that leaves no time to write what there is.
   */
  retry(
    run: HeldAttempt,
    end: { error: ErrorBody; delayMs: number; isTry?: boolean; output?: Output },
  ): Promise<Moved | undefined>
  /** in_progress → queued on drain, to be published; no try used up; → cancelled as for {@link retry}. */
  handBack(run: HeldAttempt, output?: Output): Promise<Moved | undefined>
  /** in_progress → cancelled, where a cancel was asked for. */
  honourCancel(run: HeldAttempt, output?: Output, metered?: CompletedEnd['metered']): Promise<Moved | undefined>
  /**
   * queued, scheduled, waiting → cancelled; in_progress: asks for it, once. `undefined`: finished, asked for before, or unknown.
   *
   * The first cancel of a job with {@link NewJob.partialMs} gives it that time instead: where it waits and has done a step it is
   * queued, to be published. The next one is as above, and so is the first that is `final`; one that is asked `once` is never the next.
   */
  cancel(scope: Scope, id: string, how?: CancelHow): Promise<Dispatch | undefined>
  /** Forgets request, result and events of a finished job; its skeleton stays until the purge. False: not finished. */
  erase(scope: Scope, id: string): Promise<boolean>
  /** Nobody sees the ended children of a job any more, and the next purges delete them with theirs, as if their time were over. */
  forgetChildren(id: string): Promise<void>
  /** A new job, to be published, that repeats a failed, cancelled or expired one, with as much time. */
  redrive(scope: Scope, id: string, newId: string): Promise<Dispatch | undefined>
}

/** What holds a composed job together with its steps and its children (docs/design.md, Families). */
export interface FamilyMoves {
  /** Records a step of a run, with output and progress that wait: one write, numbered like any. */
  addStep(run: HeldAttempt, step: NewStep, output: Output): Promise<Moved | undefined>
  /** Creates a child, to be published, in one write of its parent's owner. Gives the parent. */
  submitChild(run: HeldAttempt, child: NewChild): Promise<Moved | undefined>
  /**
   * in_progress → waiting, until the children `ids` have ended, or `wrapUpMs` before the deadline; → queued, to be published,
   * when they have, or a cancel lets it write what there is; → cancelled as for {@link JobMoves.retry}. No try is used up.
   */
  park(run: HeldAttempt, on: { ids: readonly string[]; wrapUpMs: number; output?: Output }): Promise<Moved | undefined>
  /** waiting → queued, to be published, when the children it waits for have ended. */
  wake(id: string): Promise<Dispatch | undefined>
  /** Cancels children of a job that have not ended, as {@link JobMoves.cancel} does, at most `limit`. */
  cancelChildren(id: string, limit: number): Promise<Moved[]>
  /** Says that the family of an ended job knows of its end. Not while it has children that nobody has cancelled. */
  settle(id: string): Promise<void>
}

/** What the scheduler does. Any number may run at once; each gives the jobs it moved, at most `limit`. */
export interface Sweeps {
  /** scheduled → queued, to be published, when their time has come. */
  startDue(limit: number): Promise<Dispatch[]>
  /** Queued jobs of a pool last published `olderThanMs` ago: to be published again, and marked so. Oldest first. */
  takeUnpublished(pool: PoolName, olderThanMs: number, limit: number): Promise<Dispatch[]>
  /** queued, scheduled → expired, whose time to wait is over; → cancelled, whose time to write what there is. */
  expire(limit: number): Promise<Moved[]>
  /** waiting → queued, to be published, whose time to wait for children is over. */
  wakeDue(limit: number): Promise<Dispatch[]>
  /** waiting → failed, `timeout`, past the deadline. */
  timeOutWaiting(limit: number): Promise<Moved[]>
  /**
   * Ends or requeues jobs in progress: owner's lease expired → queued, or failed at `crashesMax`; cancel asked for
   * `cancelGraceMs` ago → cancelled; `deadlineGraceMs` past the deadline → failed, `timeout`. Publish what it queued.
   *
   * Does nothing until `boot` has held the lease `reaper` for one whole lease of the job's owner: after an outage of
   * the store every lease looks expired.
   */
  reap(boot: string, policy: ReapPolicy, limit: number): Promise<Dispatch[]>
}

/** Reads. They see committed moves only, and no job past its `purge_at_ms`. */
export interface JobReads {
  find(scope: Scope, id: string): Promise<DurableJob | undefined>
  /** What an equal call has made with this key; undefined: nobody holds it. Never `created`. */
  findMade(tenant: string, key: IdempotencyKey): Promise<Created | undefined>
  /** Whether a job is past its `purge_at_ms`, as long as that is known: it is purged sooner or later. */
  isPast(scope: Scope, id: string): Promise<boolean>
  findContent(scope: Scope, id: string): Promise<{ request: unknown; result: unknown } | undefined>
  /** The JSON text of the result of a job; null: it has none. */
  findResultText(scope: Scope, id: string): Promise<string | null>
  /**
   * A page of jobs, newest first unless `order` is asc; erased ones are left out. Of one tenant it reads little more than the
   * page, whatever is asked for; of every tenant all that do not fit.
   */
  list(scope: Scope, query: ListQuery): Promise<{ jobs: DurableJob[]; hasMore: boolean }>
  /** Events after `after`, in order, at most `limit`. */
  listEvents(scope: Scope, id: string, after: number, limit: number): Promise<DurableEvent[]>
  /** How many jobs wait and run, and since when the oldest. Reads those only, however many are kept. */
  depth(): Promise<Depth[]>
  /** What a step of a job gave, by its key. */
  findStep(id: string, key: string): Promise<(DoneStep & { readonly output: StepOutput }) | undefined>
  /** The steps of a job, in the order they were done. */
  listSteps(scope: Scope, id: string): Promise<DoneStep[]>
  /** The same with what each was asked for and gave, without the first `after`, at most `limit`. */
  listRecordedSteps(scope: Scope, id: string, after: number, limit: number): Promise<RecordedStep[]>
  /** The children of a job, in the order of their ids; erased ones are left out. */
  listChildren(scope: Scope, id: string): Promise<DurableJob[]>
  /** How many children of a job are in each state; states that none is in are left out. */
  countChildren(scope: Scope, id: string): Promise<Partial<Record<DurableState, number>>>
  /** Jobs that have ended and whose family may not know it, those first that ended first. */
  listUnsettled(limit: number): Promise<DurableJob[]>
  /** How many jobs are queued, by what runs them. */
  queuedModels(): Promise<(QueuedOf & { readonly count: number })[]>
}

/** Operators and the service itself see every tenant's jobs. */
export const EVERY_TENANT = Symbol('every tenant')

/** Whose jobs a call may see: those of one tenant, or deliberately all. Others do not exist for it. */
export type Scope = string | typeof EVERY_TENANT

/** One attempt in the hands of its owner. */
export interface HeldAttempt {
  readonly id: string
  readonly attempt: number
  /** Boot id of the process that runs it. */
  readonly boot: string
  /** Writes made in this attempt so far, from 0. The same number again is the same write again. */
  readonly chunk: number
}

/** A job to accept. Times are given as durations, because only the database's clock counts. */
export interface NewJob {
  /** See `job-id.ts`. */
  readonly id: string
  readonly tenant: string
  /** The key it is submitted with, for the ledger; default: the tenant. */
  readonly keyId?: string
  readonly pool: PoolName
  readonly kind: string
  readonly endpoint: string
  readonly model: string
  /** What a worker needs to run it: the body or where it lies. */
  readonly request: unknown
  /** From acceptance, or from `runAtMs`. */
  readonly deadlineInMs: number
  /** How long it may wait for its first start; default: until its deadline. */
  readonly startInMs?: number
  /** Unix milliseconds before which it is not started. */
  readonly runAtMs?: number
  /** How long it is kept after its end. At least 24 h, or its idempotency key outlives it. */
  readonly retentionMs: number
  readonly priority?: Priority
  readonly stream?: boolean
  readonly parentId?: string
  readonly metadata?: Record<string, string>
  readonly webhook?: { readonly url: string; readonly events: readonly string[] }
  readonly requestId?: string
  readonly traceparent?: string
  /** A cancel lets it write what there is, for as long; default: a cancel ends it at once. */
  readonly partialMs?: number | undefined
  /** What it may cost, in billionths of a US dollar: held against budgets until its cost is entered; default: nothing. */
  readonly reservedNanos?: number | undefined
  /** Of the blobs that its request names; default: 0. */
  readonly blobBytes?: number | undefined
}

/** A caller's promise that equal keys are equal requests. */
export interface IdempotencyKey {
  /** Method and path; the tenant is that of the job. */
  readonly scope: string
  readonly key: string
  /** Hash of the request. */
  readonly fingerprint: string
  readonly keepMs: number
  /** Id of a job whose failure freed the key: then this one takes it over. */
  readonly replaces?: string
}

/** `exists`: the same id, or the same key and fingerprint; its state says whether it is in flight. */
export type Created =
  | { readonly outcome: 'created'; readonly job: DurableJob; readonly events: DurableEvent[] }
  | { readonly outcome: 'exists'; readonly job: DurableJob }
  | { readonly outcome: 'conflict'; readonly jobId: string }

/** A job after a move, and the events it wrote, in order. */
export interface Moved {
  readonly job: DurableJob
  readonly events: DurableEvent[]
}

/** A moved job with what it takes to publish it. */
export interface Dispatch extends Moved {
  readonly request: unknown
}

/** A piece of the output of a run. A `job.progress` also becomes the progress of the job. */
export interface NewEvent {
  readonly type: 'job.output.delta' | 'job.progress'
  readonly data: unknown
}

/** What a run puts out in one write, in order. */
export type Output = readonly NewEvent[]

/** When {@link Sweeps.reap} takes a job from its owner, and when it gives the job up. */
export interface ReapPolicy {
  /** Workers that may die over one job: the last of them fails it with `worker_lost`. */
  readonly crashesMax: number
  /** Milliseconds that an owner has to honour a cancel. */
  readonly cancelGraceMs: number
  /** Milliseconds past its deadline that an owner has to say how a job ended. */
  readonly deadlineGraceMs: number
}

/** What a purge did. */
export interface Purged {
  /** Of the jobs it deleted, those requests that may name blobs. */
  readonly requests: readonly unknown[]
  readonly hasMore: boolean
}

/** Which jobs {@link JobReads.list} gives; what is not named is not asked for. */
export interface ListQuery {
  readonly limit: number
  /** Cursor: the id of the last job of the page before. */
  readonly after?: string
  readonly order?: 'asc' | 'desc'
  readonly states?: readonly DurableState[]
  readonly endpoint?: string
  readonly parentId?: string
  /** Only those that have ended and that no other job has made, however many others lie between them. With `endpoint`. */
  readonly isOwn?: boolean
}

/** How many jobs of one pool, model and priority are in one state, and when the oldest of them was accepted. */
export interface Depth {
  readonly pool: PoolName
  readonly model: string
  readonly priority: Priority
  readonly state: 'queued' | 'scheduled' | 'in_progress' | 'waiting'
  readonly count: number
  readonly oldest_at_ms: number
}

/** Jobs that the same worker slots run: one kind of job for one model, in one lane. */
export interface QueuedOf {
  readonly pool: PoolName
  readonly kind: string
  readonly model: string
  readonly priority: Priority
}
