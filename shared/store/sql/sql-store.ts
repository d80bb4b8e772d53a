import type { DurableEvent, DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { PoolName } from '#schemas/job.ts'
import {
  type Created,
  type DeliveryOutcome,
  type Depth,
  type Dispatch,
  EVERY_TENANT,
  type HeldAttempt,
  type IdempotencyKey,
  type ListQuery,
  type Moved,
  type NewJob,
  type Output,
  type OwnedJob,
  type ProcessLease,
  type Purged,
  type QueuedOf,
  type ReapPolicy,
  type Scope,
  type Store,
} from '#shared/store/store.ts'
import { recordDelivery, takeDeliveries } from './deliveries.ts'
import { CREATE, REDRIVE } from './inserts.ts'
import { listJobs } from './list-jobs.ts'
import * as moves from './moves.ts'
import { keyParams, newJobParams } from './new-job-params.ts'
import { deliveryOf, depthOf, eventOf, jobOf, jsonOf, jsonText, queuedModelOf } from './rows.ts'
import { eventRows, type MovedRow, type Params, type SqlDatabase } from './sql.ts'
import * as statements from './statements.ts'

const TIMED_OUT: ErrorBody = { code: 'timeout', message: 'The job took longer than its deadline allows.', param: null }
const LOST: ErrorBody = { code: 'worker_lost', message: 'The workers that ran this job were lost.', param: null }

/**
 * Rows that one statement writes at most: SQLite holds the event loop meanwhile. A job has an entry in ten indexes; events
 * have one, and lie side by side.
 */
const JOBS_MAX = 50
const ROWS_MAX = 250
const EVENTS_MAX = 2_000
/** The store over any database that speaks the SQL of `moves.ts`, `inserts.ts` and `statements.ts`. */
export class SqlStore implements Store {
  readonly #db: SqlDatabase
  /** The purge before this one left something. */
  #isPurging = false

  constructor(db: SqlDatabase) {
    this.#db = db
  }

  get name(): string {
    return this.#db.name
  }

  get isReachable(): boolean {
    return this.#db.isReachable
  }

  async create(job: NewJob, key?: IdempotencyKey): Promise<Created> {
    const params = { ...newJobParams(job), ...keyParams(key) }
    const [row] = await this.#db.insert(CREATE, params, key !== undefined)
    if (row) return { outcome: 'created', ...movedOf(row, [], false) }
    return await this.#findCreated(job, params, key)
  }

  /** Why a job was not inserted: its id or its key is taken. */
  async #findCreated(job: NewJob, params: Params, key: IdempotencyKey | undefined): Promise<Created> {
    const [held] = key ? await this.#db.run(statements.FIND_KEY, params) : []
    const jobId = held ? String(held.job_id) : job.id
    if (held && held.fingerprint !== key?.fingerprint) return { outcome: 'conflict', jobId }
    const found = await this.find(job.tenant, jobId)
    // Purged before its key: only where a job is kept for less time than its key.
    return found ? { outcome: 'exists', job: found } : { outcome: 'conflict', jobId }
  }

  async claim(id: string, boot: string): Promise<Moved | undefined> {
    return await this.#moveOne(moves.CLAIM, { id, owner: boot })
  }

  async claimNext(of: QueuedOf, boot: string, limit: number): Promise<Dispatch[]> {
    const { pool, kind, model, priority } = of
    const rows = await this.#db.move(moves.CLAIM_NEXT, { pool, kind, model, priority, owner: boot, limit }, [])
    // The order in which rows were changed is the database's.
    return rows.map(dispatchOf).toSorted((a, b) => (a.job.id < b.job.id ? -1 : 1))
  }

  async append(run: HeldAttempt, output: Output): Promise<Moved | undefined> {
    const progress = output.findLast(({ type }) => type === 'job.progress')?.data
    return await this.#write(moves.APPEND, run, { progress: jsonText(progress) }, output)
  }

  async complete(run: HeldAttempt, end: { result: unknown; usage?: unknown; output?: Output }) {
    const params = { result: jsonText(end.result), usage: jsonText(end.usage) }
    return await this.#write(moves.COMPLETE, run, params, end.output)
  }

  async fail(run: HeldAttempt, end: { error: ErrorBody; output?: Output }) {
    return await this.#write(moves.FAIL, run, { error: jsonText(end.error) }, end.output)
  }

  async retry(run: HeldAttempt, end: { error: ErrorBody; delayMs: number; isTry?: boolean; output?: Output }) {
    const params = { reason: end.error.code, delay_ms: Math.ceil(end.delayMs), used: (end.isTry ?? true) ? 1 : 0 }
    return await this.#write(moves.RETRY, run, params, end.output)
  }

  async handBack(run: HeldAttempt, output?: Output) {
    return await this.#write(moves.HAND_BACK, run, {}, output)
  }

  async honourCancel(run: HeldAttempt, output?: Output) {
    return await this.#write(moves.HONOUR_CANCEL, run, {}, output)
  }

  async cancel(scope: Scope, id: string): Promise<Moved | undefined> {
    return await this.#moveOne(moves.CANCEL, { id, tenant: tenantOf(scope) })
  }

  async erase(scope: Scope, id: string): Promise<boolean> {
    const params = { id, tenant: tenantOf(scope) }
    const job = await this.find(scope, id)
    // The last statement is the one that counts: cut short before it, all of this is done again.
    for (let upTo = EVENTS_MAX; upTo < (job?.last_seq ?? 0); upTo += EVENTS_MAX)
      await this.#db.run(statements.ERASE_FIRST_EVENTS, { ...params, up_to: upTo })
    return await this.#db.erase(params)
  }

  async redrive(scope: Scope, id: string, newId: string): Promise<Dispatch | undefined> {
    const [row] = await this.#db.insert(REDRIVE, { id, tenant: tenantOf(scope), new_id: newId }, false)
    return row && dispatchOf(row)
  }

  async startDue(limit: number): Promise<Dispatch[]> {
    return (await this.#sweep(moves.START_DUE, {}, limit)).map(dispatchOf)
  }

  async takeUnpublished(pool: PoolName, olderThanMs: number, limit: number): Promise<Dispatch[]> {
    return (await this.#sweep(moves.TAKE_UNPUBLISHED, { pool, older_ms: olderThanMs }, limit)).map(dispatchOf)
  }

  async expire(limit: number): Promise<Moved[]> {
    return (await this.#sweep(moves.EXPIRE, {}, limit)).map((row) => movedOf(row, [], false))
  }

  async reap(boot: string, policy: ReapPolicy, limit: number): Promise<Dispatch[]> {
    const params = {
      holder: boot,
      crashes_max: policy.crashesMax,
      cancel_grace_ms: policy.cancelGraceMs,
      deadline_grace_ms: policy.deadlineGraceMs,
      timeout_error: jsonText(TIMED_OUT),
      lost_error: jsonText(LOST),
    }
    return (await this.#sweep(moves.REAP, params, limit)).map(dispatchOf)
  }

  async find(scope: Scope, id: string): Promise<DurableJob | undefined> {
    const [row] = await this.#db.run(statements.FIND, { id, tenant: tenantOf(scope) })
    return row && jobOf(row)
  }

  async isPast(scope: Scope, id: string): Promise<boolean> {
    return (await this.#db.run(statements.FIND_PAST, { id, tenant: tenantOf(scope) })).length > 0
  }

  async findContent(scope: Scope, id: string): Promise<{ request: unknown; result: unknown } | undefined> {
    const [row] = await this.#db.run(statements.FIND_CONTENT, { id, tenant: tenantOf(scope) })
    return row && { request: jsonOf(row.request), result: jsonOf(row.result) }
  }

  async list(scope: Scope, query: ListQuery): Promise<{ jobs: DurableJob[]; hasMore: boolean }> {
    const { statement, params } = listJobs(tenantOf(scope), query)
    const rows = await this.#db.run(statement, params)
    return { jobs: rows.slice(0, query.limit).map(jobOf), hasMore: rows.length > query.limit }
  }

  async listEvents(scope: Scope, id: string, after: number, limit: number): Promise<DurableEvent[]> {
    return (await this.#db.run(statements.LIST_EVENTS, { id, tenant: tenantOf(scope), after, limit })).map(eventOf)
  }

  async depth(): Promise<Depth[]> {
    return (await this.#db.run(statements.DEPTH, {})).map(depthOf)
  }

  async queuedModels(): Promise<(QueuedOf & { readonly count: number })[]> {
    return (await this.#db.run(statements.QUEUED_MODELS, {})).map(queuedModelOf)
  }

  async renew(process: ProcessLease): Promise<OwnedJob[]> {
    const { boot, role, slots, version, draining, leaseMs } = process
    await this.#db.run(statements.RENEW, { boot, role, slots, version, draining, lease_ms: leaseMs })
    await this.#db.run(statements.SPARE, { boot })
    const rows = await this.#db.run(statements.OWNED, { boot })
    return rows.map((row) => ({
      id: String(row.id),
      attempt: Number(row.attempt),
      isCancelRequested: row.cancel_requested_at_ms !== null,
    }))
  }

  async goodbye(boot: string): Promise<void> {
    await this.#db.run(statements.GOODBYE, { boot })
  }

  async holdLease(name: string, boot: string, leaseMs: number): Promise<boolean> {
    return (await this.#db.run(statements.HOLD_LEASE, { name, holder: boot, lease_ms: leaseMs })).length > 0
  }

  async releaseLease(name: string, boot: string): Promise<void> {
    await this.#db.run(statements.RELEASE_LEASE, { name, holder: boot })
  }

  async takeDeliveries(limit: number, leaseMs: number): Promise<WebhookDelivery[]> {
    return await takeDeliveries(this.#db, limit, leaseMs)
  }

  async recordDelivery(id: string, tries: number, outcome: DeliveryOutcome): Promise<boolean> {
    return await recordDelivery(this.#db, id, tries, outcome)
  }

  async listDeliveries(jobId: string): Promise<WebhookDelivery[]> {
    return (await this.#db.run(statements.LIST_DELIVERIES, { id: jobId })).map(deliveryOf)
  }

  async purge(): Promise<Purged> {
    if (!this.#isPurging) await this.#db.keepDays()
    const events = await this.#db.run(statements.PURGE_EVENTS, { jobs: JOBS_MAX, limit: EVENTS_MAX })
    const hasMoreEvents = events.length === EVENTS_MAX
    const jobs = hasMoreEvents ? [] : await this.#db.run(statements.PURGE_JOBS, { jobs: JOBS_MAX })
    let hasMore = hasMoreEvents || jobs.length === JOBS_MAX
    for (const statement of statements.PURGES) {
      const rows = await this.#db.run(statement, { limit: ROWS_MAX })
      hasMore ||= rows.length === ROWS_MAX
    }
    this.#isPurging = hasMore
    return { requests: jobs.flatMap(({ request }) => jsonOf(request) ?? []), hasMore }
  }

  async close(): Promise<void> {
    await this.#db.close()
  }

  /** Moves up to `limit` jobs, a few at a time. What a failure cuts short gives those that were moved before it. */
  async #sweep(move: moves.Move, params: Params, limit: number): Promise<MovedRow[]> {
    const rows: MovedRow[] = []
    for (let isMore = true; isMore && rows.length < limit; ) {
      const most = Math.min(JOBS_MAX, limit - rows.length)
      const moved = await this.#db.move(move, { ...params, limit: most }, []).catch((error: unknown) => {
        if (rows.length === 0) throw error
        return []
      })
      rows.push(...moved)
      isMore = moved.length === most
    }
    return rows
  }

  async #moveOne(move: moves.Move, params: Params): Promise<Moved | undefined> {
    const [row] = await this.#db.move(move, params, [])
    return row && movedOf(row, [], false)
  }

  /** A write of the owner, that may be made again when its answer was lost. */
  async #write(move: moves.Move, run: HeldAttempt, more: Params, output: Output = []): Promise<Moved | undefined> {
    const { id, attempt, boot: owner, chunk } = run
    const has_output = output.some(({ type }) => type === 'job.output.delta')
    const params = { id, attempt, owner, chunk, has_output, count: output.length, ...more }
    const [row] = await this.#db.move(move, params, output)
    if (row) return movedOf(row, output, true)
    return await this.#findWritten(move, run, output)
  }

  async #findWritten(move: moves.Move, run: HeldAttempt, output: Output): Promise<Moved | undefined> {
    const { id, attempt, boot: owner, chunk } = run
    const events = (await this.#db.run(statements.FIND_CHUNK, { id, attempt, owner, chunk })).map(eventOf)
    const own = events.slice(output.length)
    const isSame =
      output.every(({ type }, i) => events[i]?.type === type) &&
      own.length === (move.event ? 1 : 0) &&
      own.every(({ type }) => type !== 'job.output.delta' && type !== 'job.progress')
    if (events.length === 0 || !isSame) return undefined
    const job = await this.find(EVERY_TENANT, id)
    return job && { job, events }
  }
}

function tenantOf(scope: Scope): string | null {
  return scope === EVERY_TENANT ? null : scope
}

function movedOf(row: MovedRow, output: Output, isOwners: boolean): Moved {
  return { job: jobOf(row), events: eventRows(row, output, isOwners).map(eventOf) }
}

function dispatchOf(row: MovedRow): Dispatch {
  return { ...movedOf(row, [], false), request: jsonOf(row.request) }
}
