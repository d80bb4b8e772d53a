import type { DeliveryTry, DurableEvent, DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import { ERRORS, type ErrorBody } from '#schemas/error.ts'
import type { PoolName } from '#schemas/job.ts'
import { jsonTextSoon } from '#shared/json/write.ts'
import type {
  CancelHow,
  CompletedEnd,
  DeliveryOutcome,
  DoneStep,
  FailedEnd,
  NewChild,
  NewStep,
  OwnedJob,
  PendingWebhooks,
  ProcessLease,
  RecordedStep,
  Used,
} from '#shared/store/jobs.ts'
import { type LogBounds, UNBOUNDED } from '#shared/store/requests.ts'
import {
  ALL_TENANTS,
  type ChildrenOfState,
  type Created,
  type Depth,
  type Dispatch,
  type HeldAttempt,
  type IdempotencyKey,
  type ListQuery,
  type NewJob,
  type Output,
  type Purged,
  type QueuedOf,
  type ReapPolicy,
  type Scope,
  type Store,
  type TransitionResult,
} from '#shared/store/store.ts'
import { SqlConversations } from './conversations.ts'
import * as family from './family.ts'
import { SqlFiles } from './files.ts'
import {
  claimFair,
  createJob,
  dispatchOf,
  findByKey,
  JOBS_MAX,
  listJobs,
  resultOf,
  sweep,
  transitionOne,
  writeAsOwner,
} from './jobs.ts'
import { SqlOperator } from './operator.ts'
import { eraseJob, forgetSome, purgeSome } from './purge.ts'
import { SqlRequests } from './requests.ts'
import {
  childrenOfStateOf,
  deliveryOf,
  depthOf,
  eventsOf,
  jobOf,
  jsonOf,
  jsonSoon,
  jsonText,
  ownedOf,
  queuedModelOf,
} from './rows.ts'
import type { Row, SqlDatabase } from './sql.ts'
import * as statements from './statements.ts'
import { OWNED, REDRIVE, RENEW, SUBTRACT_CRASHES } from './statements.ts'
import { SqlStoredBytes, tenantReads } from './tenants.ts'
import * as moves from './transitions.ts'
import { SqlHistory, SqlUsage } from './usage.ts'

/** Maximum due webhook messages that one statement reads, and maximum statements per call for postponing blocked messages. */
const SCANNED_MESSAGES = 100
const POSTPONE_STATEMENTS_MAX = 30

/** Errors of jobs that the reaper ends: `timeout` after the deadline, `worker_lost` after too many crashes. */
const TIMED_OUT: ErrorBody = {
  code: 'timeout',
  message: 'The job took longer than its deadline allows.',
  param: null,
}
const LOST: ErrorBody = { code: 'worker_lost', message: 'The workers that ran this job were lost.', param: null }

/** Maximum characters of the error message in the event of a retry. */
const RETRY_MESSAGE_CHARS_MAX = 500

/** The store on any database that supports the SQL of `transitions.ts` and `statements.ts`. */
export class SqlStore implements Store {
  readonly tenants: ReturnType<typeof tenantReads>
  readonly usage: SqlUsage
  readonly history: SqlHistory
  readonly operator: SqlOperator
  readonly files: SqlFiles
  readonly conversations: SqlConversations
  readonly storedBytes: SqlStoredBytes
  readonly requests: SqlRequests
  readonly #db: SqlDatabase
  #isPurging = false

  constructor(db: SqlDatabase) {
    this.#db = db
    this.tenants = tenantReads(db)
    this.usage = new SqlUsage(db)
    this.history = new SqlHistory(db)
    this.operator = new SqlOperator(db)
    this.files = new SqlFiles(db)
    this.conversations = new SqlConversations(db)
    this.storedBytes = new SqlStoredBytes(db)
    this.requests = new SqlRequests(db)
  }

  get name(): string {
    return this.#db.name
  }

  get isReachable(): boolean {
    return this.#db.isReachable
  }

  get isFull(): boolean {
    return this.#db.isFull
  }

  get isIdle(): boolean {
    return this.#db.isIdle
  }

  async untilWork(signal: AbortSignal): Promise<void> {
    await this.#db.untilWork?.(signal)
  }

  async create(job: NewJob, key?: IdempotencyKey): Promise<Created> {
    return await createJob(this.#db, job, key)
  }

  async claim(id: string, boot: string): Promise<TransitionResult | undefined> {
    return await transitionOne(this.#db, moves.CLAIM, { id, owner: boot })
  }

  async claimNext(of: QueuedOf, boot: string, limit: number, after = ''): Promise<Dispatch[]> {
    return await claimFair(this.#db, of, boot, limit, after)
  }

  async append(run: HeldAttempt, output: Output): Promise<TransitionResult | undefined> {
    return await writeAsOwner(this.#db, moves.APPEND, run, {}, output)
  }

  async complete(run: HeldAttempt, end: CompletedEnd & { output?: Output }) {
    const text = jsonTextSoon(end.result ?? null)
    const written = typeof text === 'string' ? text : await text
    const result = written === 'null' ? null : written
    const params = { result, ...usedParams(end) }
    return await writeAsOwner(this.#db, moves.COMPLETE, run, params, end.output, Buffer.byteLength(result ?? ''))
  }

  async fail(run: HeldAttempt, end: FailedEnd & { output?: Output }) {
    const params = { error: jsonText(end.error), ...usedParams(end) }
    return await writeAsOwner(this.#db, moves.FAIL, run, params, end.output)
  }

  async retry(run: HeldAttempt, end: FailedEnd & { delayMs: number; isTry?: boolean; output?: Output }) {
    const tried = { delay_ms: Math.ceil(end.delayMs), used: (end.isTry ?? true) ? 1 : 0 }
    const params = { failure: openedFailure(end), ...tried, ...usedParams(end) }
    return await writeAsOwner(this.#db, moves.RETRY, run, params, end.output)
  }

  async handBack(run: HeldAttempt, output?: Output, used: Used = {}) {
    return await writeAsOwner(this.#db, moves.HAND_BACK, run, usedParams(used), output)
  }

  async honourCancel(run: HeldAttempt, output?: Output, used: Used = {}) {
    return await writeAsOwner(this.#db, moves.HONOUR_CANCEL, run, usedParams(used), output)
  }

  async cancel(scope: Scope, id: string, how: CancelHow = 'again'): Promise<Dispatch | undefined> {
    const [row] = await this.#db.transition(moves.CANCEL, { id, tenant: tenantOf(scope), how }, [])
    return row && dispatchOf(row)
  }

  async erase(scope: Scope, id: string): Promise<boolean> {
    return await eraseJob(this.#db, { id, tenant: tenantOf(scope) }, (await this.find(scope, id))?.last_seq ?? 0)
  }

  async forgetChildren(id: string): Promise<void> {
    while ((await forgetSome(this.#db, id)) > 0);
  }

  async setMetadata(tenant: string, id: string, metadata: Readonly<Record<string, string>>): Promise<boolean> {
    return (await this.#db.run(statements.SET_METADATA, { tenant, id, metadata: JSON.stringify(metadata) })).length > 0
  }

  async redrive(scope: Scope, id: string, newId: string): Promise<Dispatch | undefined> {
    const [row] = await this.#db.insert(REDRIVE, { id, tenant: tenantOf(scope), new_id: newId }, false)
    return row && dispatchOf(row)
  }

  async startDue(limit: number): Promise<Dispatch[]> {
    return (await sweep(this.#db, moves.START_DUE, {}, limit)).map(dispatchOf)
  }

  async takeUnpublished(pool: PoolName, olderThanMs: number, limit: number): Promise<Dispatch[]> {
    return (await sweep(this.#db, moves.TAKE_UNPUBLISHED, { pool, older_ms: olderThanMs }, limit)).map(dispatchOf)
  }

  async expire(limit: number): Promise<TransitionResult[]> {
    return (await sweep(this.#db, moves.EXPIRE, {}, limit)).map((row) => resultOf(row))
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
    return (await sweep(this.#db, moves.REAP, params, limit)).map(dispatchOf)
  }

  async addStep(run: HeldAttempt, step: NewStep, output: Output): Promise<TransitionResult | undefined> {
    return await family.addStep(this.#db, run, step, output)
  }

  async submitChild(run: HeldAttempt, child: NewChild): Promise<TransitionResult | undefined> {
    return await family.submitChild(this.#db, run, child)
  }

  async park(run: HeldAttempt, on: { ids: readonly string[]; wrapUpMs: number; output?: Output }) {
    const params = { awaits: on.ids.join(' '), wrap_up_ms: Math.ceil(on.wrapUpMs) }
    return await writeAsOwner(this.#db, family.PARK, run, params, on.output)
  }

  async wake(id: string): Promise<Dispatch | undefined> {
    const [row] = await this.#db.transition(family.WAKE, { id }, [])
    return row && dispatchOf(row)
  }

  async cancelChildren(id: string, limit: number): Promise<TransitionResult[]> {
    return (await sweep(this.#db, family.CANCEL_CHILDREN, { id, how: 'final' }, limit)).map(dispatchOf)
  }

  async settle(id: string): Promise<void> {
    await this.#db.run(family.SETTLE, { id })
  }

  async wakeDue(limit: number): Promise<Dispatch[]> {
    return (await sweep(this.#db, family.WAKE_DUE, {}, limit)).map(dispatchOf)
  }

  async timeOutWaiting(limit: number): Promise<TransitionResult[]> {
    return (await sweep(this.#db, family.TIME_OUT, { timeout_error: jsonText(TIMED_OUT) }, limit)).map(dispatchOf)
  }

  async findMade(tenant: string, key: IdempotencyKey): Promise<Created | undefined> {
    return await findByKey(this.#db, tenant, key)
  }

  async findStep(id: string, key: string) {
    const [row] = await this.#db.run(statements.FIND_STEP, { id, key })
    return row && family.keptStepOf(row)
  }

  async listSteps(scope: Scope, id: string): Promise<DoneStep[]> {
    return (await this.#db.run(statements.LIST_STEPS, { id, tenant: tenantOf(scope) })).map(family.stepOf)
  }

  async listRecordedSteps(scope: Scope, id: string, after: number, limit: number): Promise<RecordedStep[]> {
    const params = { id, tenant: tenantOf(scope), after, limit }
    return (await this.#db.run(statements.LIST_RECORDED_STEPS, params)).map(family.recordedStepOf)
  }

  async listChildren(scope: Scope, id: string): Promise<DurableJob[]> {
    return (await this.#db.run(statements.LIST_CHILDREN, { id, tenant: tenantOf(scope) })).map(jobOf)
  }

  async countChildren(scope: Scope, parents: readonly string[], sinceMs: number): Promise<ChildrenOfState[]> {
    const params = { parents: JSON.stringify(parents), tenant: tenantOf(scope), since: sinceMs }
    return (await this.#db.run(statements.countChildren(this.#db.isShared), params)).map(childrenOfStateOf)
  }

  async listUnsettled(limit: number): Promise<DurableJob[]> {
    return (await this.#db.run(statements.LIST_UNSETTLED, { limit })).map(jobOf)
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
    return row && { request: await jsonSoon(row.request), result: await jsonSoon(row.result) }
  }

  async findRequests(scope: Scope, ids: readonly string[], bytesMax: number): Promise<Map<string, unknown>> {
    if (ids.length === 0) return new Map()
    const params = { ids: JSON.stringify(ids), tenant: tenantOf(scope), bytes_max: bytesMax }
    const rows = await this.#db.run(statements.findRequests(this.#db.isShared), params)
    return new Map(rows.map(({ id, request }) => [String(id), jsonOf(request)]))
  }

  async findInput(scope: Scope, id: string): Promise<{ request: unknown; input: unknown } | undefined> {
    const [row] = await this.#db.run(statements.FIND_INPUT, { id, tenant: tenantOf(scope) })
    return row && { request: await jsonSoon(row.request), input: await jsonSoon(row.input) }
  }

  async findResultText(scope: Scope, id: string): Promise<string | null> {
    const [row] = await this.#db.run(statements.FIND_RESULT, { id, tenant: tenantOf(scope) })
    return typeof row?.result === 'string' ? row.result : null
  }

  async list(scope: Scope, query: ListQuery): Promise<{ jobs: DurableJob[]; hasMore: boolean }> {
    const { statement, params } = listJobs(tenantOf(scope), query)
    const rows = await this.#db.run(statement, params)
    return { jobs: rows.slice(0, query.limit).map(jobOf), hasMore: rows.length > query.limit }
  }

  async listEvents(scope: Scope, id: string, after: number, limit: number): Promise<DurableEvent[]> {
    return await eventsOf(await this.#db.run(statements.LIST_EVENTS, { id, tenant: tenantOf(scope), after, limit }))
  }

  async depth(): Promise<Depth[]> {
    return (await this.#db.run(statements.DEPTH, {})).map(depthOf)
  }

  async queuedModels(): Promise<(QueuedOf & { readonly count: number })[]> {
    return (await this.#db.run(statements.QUEUED_MODELS, {})).map(queuedModelOf)
  }

  async renew(process: ProcessLease): Promise<OwnedJob[]> {
    return await renew(this.#db, process)
  }

  async deregister(boot: string): Promise<void> {
    await this.#db.run(statements.DEREGISTER, { boot })
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

  async recordDelivery(...recorded: Parameters<Store['recordDelivery']>): Promise<boolean> {
    return await recordDelivery(this.#db, ...recorded)
  }

  async listDeliveries(jobId: string): Promise<WebhookDelivery[]> {
    return (await this.#db.run(statements.LIST_DELIVERIES, { id: jobId })).map(deliveryOf)
  }

  async pendingDeliveries(): Promise<PendingWebhooks> {
    const [row] = await this.#db.run(statements.PENDING_DELIVERIES, {})
    return { count: Number(row?.count ?? 0), oldest_at_ms: row?.oldest_at_ms == null ? null : Number(row.oldest_at_ms) }
  }

  async purge(bounds: LogBounds = UNBOUNDED): Promise<Purged> {
    if (!this.#isPurging) await this.#db.keepDays(bounds.keepMs)
    const purged = await purgeSome(this.#db, JOBS_MAX)
    const hasMore = (await this.requests.purge(bounds)) || purged.hasMore
    this.#isPurging = hasMore
    return { ...purged, hasMore }
  }

  async close(): Promise<void> {
    await this.#db.close()
  }
}

function tenantOf(scope: Scope): string | null {
  return scope === ALL_TENANTS ? null : scope
}

async function renew(db: SqlDatabase, process: ProcessLease): Promise<OwnedJob[]> {
  const { boot, role, slots, version, draining, leaseMs } = process
  await db.run(RENEW, { boot, role, slots, version, draining, lease_ms: leaseMs })
  await db.run(SUBTRACT_CRASHES, { boot })
  return (await db.run(OWNED, { boot })).map(ownedOf)
}

async function takeDeliveries(db: SqlDatabase, limit: number, leaseMs: number): Promise<WebhookDelivery[]> {
  const taken: Row[] = []
  const look = Math.max(SCANNED_MESSAGES, limit)
  for (let tries = 0; tries < POSTPONE_STATEMENTS_MAX; tries++) {
    const params = { limit: limit - taken.length, lease_ms: leaseMs, look }
    taken.push(...(await db.pick(statements.takeDeliveries, params)))
    if (taken.length === limit) break
    // The statement postpones at most `look` blocked messages. If it postponed fewer, then every other due message is locked by another process, so
    // the search ends.
    if ((await db.pick(statements.putOffDeliveries, { look })).length < look) break
  }
  return taken.map(deliveryOf)
}

async function recordDelivery(
  db: SqlDatabase,
  taken: Pick<WebhookDelivery, 'id' | 'next_at_ms'>,
  outcome: DeliveryOutcome,
  history?: readonly DeliveryTry[],
): Promise<boolean> {
  const isPending = outcome.state === 'pending'
  const [row] = await db.run(statements.RECORD_DELIVERY, {
    id: taken.id,
    taken_until_ms: taken.next_at_ms,
    state: outcome.state,
    status: outcome.status ?? null,
    error: outcome.state === 'delivered' ? null : (outcome.error ?? null),
    history: jsonText(history),
    retry_in_ms: isPending ? Math.ceil(outcome.retryInMs) : 0,
  })
  if (row && !isPending) await db.run(statements.RELEASE_DELIVERY, { job_id: String(row.job_id) })
  return row !== undefined
}

function usedParams({ usage, metered }: Used) {
  return { usage: jsonText(usage), metered: jsonText(metered) }
}

/** JSON of a failed attempt without the closing brace, because the statement adds more fields. */
function openedFailure({ error, metered }: FailedEnd): string {
  const { code: reason, message, upstream_message } = error
  const textOf = (text: string | undefined) => text?.slice(0, RETRY_MESSAGE_CHARS_MAX).toWellFormed()
  const { status } = ERRORS[reason]
  const failure = { reason, message: textOf(message), status, server: metered?.server }
  return JSON.stringify({ ...failure, upstream_message: textOf(upstream_message) }).slice(0, -1)
}
