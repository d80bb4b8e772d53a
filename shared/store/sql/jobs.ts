import { DurableState } from '#schemas/durable-job.ts'
import { jsonTextSoon } from '#shared/json/write.ts'
import type {
  Created,
  Dispatch,
  HeldAttempt,
  IdempotencyKey,
  ListQuery,
  NewJob,
  Output,
  QueuedOf,
  TransitionResult,
} from '#shared/store/store.ts'
import { eventOf, eventRows, eventsOf, jobOf, jsonOf, jsonText } from './rows.ts'
import {
  lastScanned,
  type Params,
  type Row,
  SCANNED_MAX,
  type SqlDatabase,
  TENANTS_AHEAD,
  type TransitionRow,
  type WrittenOutput,
} from './sql.ts'
import { CREATE, FIND, FIND_CHUNK, FIND_KEY, JOB_COLUMNS, type Statement } from './statements.ts'
import { CLAIM_NEXT, type Transition } from './transitions.ts'

/** Accepts a job, or finds the job that an earlier copy of the request created (see `JobTransitions.create`). */
export async function createJob(db: SqlDatabase, job: NewJob, key: IdempotencyKey | undefined): Promise<Created> {
  const params = { ...newJobParams(job), ...keyParams(key) }
  const [row] = await db.insert(CREATE, params, key !== undefined)
  if (row) return { outcome: 'created', ...resultOf(row) }
  return await findCreated(db, job, params, key)
}

const FIND_HELD: Statement = {
  name: 'find_held_key',
  sql: `${FIND_KEY.sql} AND expires_at_ms > now_ms()`,
}

export async function findByKey(db: SqlDatabase, tenant: string, key: IdempotencyKey): Promise<Created | undefined> {
  const [held] = await db.run(FIND_HELD, { tenant, key_scope: key.scope, key: key.key })
  return held && (await heldJob(db, tenant, held, key))
}

async function findCreated(
  db: SqlDatabase,
  job: NewJob,
  params: Params,
  key: IdempotencyKey | undefined,
): Promise<Created> {
  const [held] = key ? await db.run(FIND_KEY, params) : []
  return await heldJob(db, job.tenant, held ?? { job_id: job.id, fingerprint: key?.fingerprint }, key)
}

async function heldJob(db: SqlDatabase, tenant: string, held: Row, key: IdempotencyKey | undefined): Promise<Created> {
  const jobId = String(held.job_id)
  if (held.fingerprint !== key?.fingerprint) return { outcome: 'conflict', jobId }
  const [found] = await db.run(FIND, { id: jobId, tenant })
  // If the job is missing, then it was purged before its key expired. This happens only if the job's retention is shorter than the key's.
  return found ? { outcome: 'exists', job: jobOf(found) } : { outcome: 'conflict', jobId }
}

function newJobParams(job: NewJob): Params {
  const request = JSON.stringify(job.request ?? null)
  return {
    id: job.id,
    tenant: job.tenant,
    parent_id: job.parentId ?? null,
    pool: job.pool,
    kind: job.kind,
    endpoint: job.endpoint,
    model: job.model,
    priority: job.priority ?? 'normal',
    stream: job.stream ?? false,
    run_at_ms: job.runAtMs ?? null,
    start_in_ms: Math.min(job.startInMs ?? job.deadlineInMs, job.deadlineInMs),
    deadline_in_ms: job.deadlineInMs,
    retention_ms: job.retentionMs,
    metadata: JSON.stringify(job.metadata ?? {}),
    webhook_url: job.webhook?.url ?? null,
    webhook_events: JSON.stringify(job.webhook?.events ?? []),
    request_id: job.requestId ?? null,
    traceparent: job.traceparent ?? null,
    request,
    input: job.input ?? null,
    request_bytes: Buffer.byteLength(request + (job.input ?? '')) + (job.blobBytes ?? 0),
    key_id: job.keyId ?? null,
    partial_ms: job.partialMs === undefined ? null : Math.ceil(job.partialMs),
    reserved_nanos: job.reservedNanos ? Math.ceil(job.reservedNanos) : null,
  }
}

function keyParams(key: IdempotencyKey | undefined): Params {
  if (!key) return {}
  return {
    key_scope: key.scope,
    key: key.key,
    fingerprint: key.fingerprint,
    key_keep_ms: key.keepMs,
    replaces: key.replaces ?? null,
  }
}

/** Maximum jobs per statement. In SQLite a statement blocks the event loop, and each changed job updates ten indexes. */
export const JOBS_MAX = 50

export async function transitionOne(
  db: SqlDatabase,
  move: Transition,
  params: Params,
): Promise<TransitionResult | undefined> {
  const [row] = await db.transition(move, params, [])
  return row && resultOf(row)
}

/**
 * Changes up to `limit` jobs, a few per statement. If a statement fails, then the jobs that earlier statements changed
 * are returned.
 */
export async function sweep(
  db: SqlDatabase,
  move: Transition,
  params: Params,
  limit: number,
): Promise<TransitionRow[]> {
  const rows: TransitionRow[] = []
  for (let isMore = true; isMore && rows.length < limit; ) {
    const most = Math.min(JOBS_MAX, limit - rows.length)
    const moved = await db.transition(move, { ...params, limit: most }, []).catch((error: unknown) => {
      if (rows.length === 0) throw error
      return []
    })
    rows.push(...moved)
    isMore = moved.length === most
  }
  return rows
}

/**
 * Executes a numbered write by the holder of a job. If the holder repeats the write after a lost response, then the first result is returned.
 *
 * @param moreBytes Stored bytes in addition to the output
 */
export async function writeAsOwner(
  db: SqlDatabase,
  move: Transition,
  run: HeldAttempt,
  more: Params,
  output: Output = [],
  moreBytes = 0,
): Promise<TransitionResult | undefined> {
  const { id, attempt, boot: owner, chunk } = run
  const has_output = output.some(({ type }) => type === 'job.output.delta')
  const progress = jsonText(output.findLast(({ type }) => type === 'job.progress')?.data)
  const written: WrittenOutput[number][] = []
  for (const { type, data } of output) {
    const text = jsonTextSoon(data)
    written.push({ type, data: typeof text === 'string' ? text : await text })
  }
  const bytes = written.reduce((sum, { data }) => sum + Buffer.byteLength(data), moreBytes)
  const params = { id, attempt, owner, chunk, has_output, progress, count: output.length, bytes, ...more }
  const [row] = await db.transition(move, params, written)
  return row ? writtenOf(row, output, written) : await findWritten(db, move, run, output)
}

async function findWritten(
  db: SqlDatabase,
  move: Transition,
  { id, attempt, boot: owner, chunk }: HeldAttempt,
  output: Output,
): Promise<TransitionResult | undefined> {
  const events = await eventsOf(await db.run(FIND_CHUNK, { id, attempt, owner, chunk }))
  const own = events.slice(output.length)
  const isSame =
    output.every(({ type }, i) => events[i]?.type === type) &&
    own.length === (move.event ? 1 : 0) &&
    own.every(({ type }) => type !== 'job.output.delta' && type !== 'job.progress')
  if (events.length === 0 || !isSame) return undefined
  const [row] = await db.run(FIND, { id, tenant: null })
  return row && { job: jobOf(row), events }
}

export function resultOf(row: TransitionRow): TransitionResult {
  return { job: jobOf(row), events: eventRows(row, [], false).map(eventOf) }
}

function writtenOf(row: TransitionRow, output: Output, written: WrittenOutput): TransitionResult {
  const rows = eventRows(row, written, true)
  const events = output.map(({ data }, index) => ({ ...eventOf({ ...rows[index], data: null } as Row), data }))
  return { job: jobOf(row), events: [...events, ...rows.slice(output.length).map(eventOf)] }
}

export function dispatchOf(row: TransitionRow): Dispatch {
  return { ...resultOf(row), request: jsonOf(row.request) }
}

/**
 * Maximum statements that one claim may use to search for a tenant below its limit. Each of them reads at most 1,000 tenants, so a claim reads at
 * most 20,000.
 */
const CLAIM_STATEMENTS_MAX = 20

export async function claimFair(
  db: SqlDatabase,
  of: QueuedOf,
  boot: string,
  limit: number,
  after: string,
): Promise<Dispatch[]> {
  const { pool, kind, model, priority } = of
  const lane = { pool, kind, model, priority }
  const claimed: Dispatch[] = []
  const position = new ClaimPosition(after)
  for (let each = 1, rest = limit; rest > 0; rest = limit - claimed.length) {
    const turns = { after: position.from, tenants: rest + TENANTS_AHEAD }
    const rows = await db.transition(CLAIM_NEXT, { ...lane, ...turns, owner: boot, each, limit: rest }, [])
    if (rows.length === 0) {
      if (claimed.length > 0 || !(await position.advance(db, { ...lane, ...turns }))) break
      continue
    }
    claimed.push(...rows.map(dispatchOf))
    const counts = Map.groupBy(rows, ({ tenant }) => tenant)
    if (!mayHaveMore(rows, counts)) break
    // Fewer tenants than free slots have jobs, so in the next statement each tenant contributes several jobs.
    each = Math.ceil((limit - claimed.length) / counts.size)
  }
  // A database may return changed rows in any order, so the rows are sorted by id.
  return claimed.toSorted((a, b) => (a.job.id < b.job.id ? -1 : 1))
}

/**
 * Whether more jobs may be queued, so that another statement is worthwhile. True if some tenant contributed as many jobs as one statement takes per
 * tenant (`each` in the rows, otherwise 1).
 */
function mayHaveMore([row]: readonly TransitionRow[], counts: ReadonlyMap<unknown, readonly TransitionRow[]>): boolean {
  const each = Number(row?.each ?? 1)
  return counts.values().some(({ length }) => length >= each)
}

/**
 * Tenant after which the next statement of a claim begins to search. Statements that find only tenants at their limits move this position forward.
 */
class ClaimPosition {
  from: string
  readonly #after: string
  #nth = 0
  #isRound = false

  constructor(after: string) {
    this.from = after
    this.#after = after
  }

  async advance(db: SqlDatabase, params: Params): Promise<boolean> {
    const [last] = await db.run({ name: 'last_looked', sql: lastScanned(db.isShared) }, params)
    if (!last || Number(last.step) < SCANNED_MAX || ++this.#nth === CLAIM_STATEMENTS_MAX) return false
    const to = String(last.tenant)
    this.#isRound ||= to <= this.from
    this.from = to
    return !this.#isRound || to < this.#after
  }
}

const UNENDED: ReadonlySet<DurableState> = new Set(['queued', 'scheduled', 'in_progress', 'waiting'])

interface Filter {
  readonly name: string
  readonly condition: string
  readonly value: string
}

/**
 * Returns the statement for a page of jobs, plus one job that shows whether further pages exist.
 *
 * The statement reads one page per requested state and merges these pages. Each of them is a range of an index that ends with the id, so the cost
 * depends only on the page size. The conditions repeat the expressions of those indexes (migrations/postgres/001-tables.sql). Otherwise the planner
 * may choose another index or the primary key.
 */
export function listJobs(tenant: string | null, query: ListQuery): { statement: Statement; params: Params } {
  const { order = 'desc', limit } = query
  const filters = filtersOf(tenant, query)
  const asked = [...new Set(query.states?.length ? query.states : DurableState.options)]
  // Unended states come first, in a fixed order. Queries for the same set of states then have the same statement name.
  const states = [...asked.filter((state) => UNENDED.has(state)), ...asked.filter((state) => !UNENDED.has(state))]
  const unended = asked.filter((state) => UNENDED.has(state)).length
  const pages = states.map((_, i) => pageOf(i, i < unended, filters, query))
  return {
    statement: {
      name: ['list', order, unended, states.length - unended, ...filters.map(({ name }) => name)]
        .concat(query.isOwn ? 'own' : [])
        .join('_'),
      sql: `${pages.join(' UNION ALL ')} ORDER BY id ${order} LIMIT :limit`,
    },
    params: {
      limit: limit + 1,
      ...Object.fromEntries(filters.map(({ name, value }) => [name, value])),
      ...Object.fromEntries(states.map((state, i) => [`state${i}`, state])),
    },
  }
}

function filtersOf(tenant: string | null, { order = 'desc', after, endpoint, parentId }: ListQuery): Filter[] {
  const beyond = order === 'desc' ? '<' : '>'
  const filters: [name: string, value: string | null | undefined, condition: string][] = [
    // With a given parent, the condition on the tenant is written so that it matches no index. The planner then uses the index of parents.
    ['tenant', tenant, parentId === undefined ? 'tenant = :tenant' : 'tenant = coalesce(:tenant, tenant)'],
    // The condition on `id` selects the daily partitions. The condition on `id || ''` matches the index of an expression, and limits the range that
    // is read.
    ['after', after, `id ${beyond} :after AND id || '' ${beyond} :after`],
    ['endpoint', endpoint, 'endpoint = :endpoint'],
    ['parent_id', parentId, 'parent_id = :parent_id'],
  ]
  return filters.flatMap(([name, value, condition]) => (typeof value === 'string' ? { name, condition, value } : []))
}

function pageOf(nth: number, isUnended: boolean, filters: readonly Filter[], query: ListQuery): string {
  const conditions = [
    ...filters.map(({ condition }) => condition),
    ...(query.isOwn ? ['depth = 0'] : []),
    ...(isUnended && query.isOwn ? [] : [notErased(query)]),
    isUnended ? (query.isOwn ? 'coalesce(purge_at_ms, 0) < 1' : 'purge_at_ms IS NULL') : 'purge_at_ms > now_ms()',
    `state = :state${nth}`,
  ]
  return `SELECT * FROM (SELECT ${JOB_COLUMNS} FROM jobs WHERE ${conditions.join(' AND ')}
    ORDER BY id || '' ${query.order ?? 'desc'} LIMIT :limit) AS page${nth}`
}

/** Each condition repeats the expression of an index literally, because the planner uses an index only for an equal expression. */
function notErased({ endpoint, isOwn }: ListQuery): string {
  if (isOwn) return endpoint === undefined ? 'coalesce(erased_at_ms, -1) < 0' : 'coalesce(erased_at_ms, 0) < 1'
  return endpoint === undefined ? 'erased_at_ms IS NULL' : 'coalesce(erased_at_ms, 0) = 0'
}
