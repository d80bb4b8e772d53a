import { Client } from 'pg'
import { textOfChunk } from '../load/follower.ts'
import type { Entry, FamilyRow } from './history.ts'
import { hashOf, reportOf } from './report.ts'

const PAGE = 2_000
const CONNECT_MS = 5_000

/** Runs SQL on the database of the service. Each query opens a new connection, because the database may have been killed since the last one. */
export async function query<T extends object>(url: string, sql: string, values: unknown[] = []): Promise<T[]> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: CONNECT_MS, query_timeout: 60_000 })
  client.on('error', () => undefined)
  await client.connect()
  try {
    return (await client.query(sql, values)).rows as T[]
  } finally {
    await client.end()
  }
}

/**
 * Returns the number of jobs that have not ended, or whose parent and children were not notified of the end. Returns undefined while the database
 * does not answer.
 */
export async function countUnfinished(url: string): Promise<number | undefined> {
  try {
    const [row] = await query<{ count: number }>(url, UNFINISHED)
    return row?.count
  } catch {
    return undefined
  }
}

/** Returns all jobs and events of the store, as entries of the history that the checker reads. */
export async function* readFinalState(url: string): AsyncGenerator<Entry> {
  for (let after = ''; ; ) {
    const rows = await query<JobRow>(url, ROWS, [after, PAGE])
    if (rows.length === 0) break
    for (const row of rows) yield rowEntry(row)
    after = rows.at(-1)?.id ?? ''
  }
  for (let after = { job_id: '', seq: 0 }; ; ) {
    const rows = await query<EventRow>(url, EVENTS, [after.job_id, after.seq, PAGE])
    if (rows.length === 0) break
    for (const row of rows) yield eventEntry(row)
    after = rows.at(-1) ?? after
  }
}

const UNFINISHED = `SELECT count(*)::int AS count FROM jobs WHERE state IN ('queued', 'scheduled', 'in_progress', 'waiting')
    OR (is_settled = FALSE AND purge_at_ms IS NOT NULL AND (depth > 0 OR children > 0))`
const ROWS = `SELECT id, pool, state, attempt, tries, crashes, last_seq, metadata, error, result,
    CASE WHEN depth > 0 THEN parent_id END AS parent_id, children, steps, is_settled,
    CASE WHEN depth > 0 OR pool = 'research' THEN request END AS request,
    ARRAY(SELECT kind FROM job_steps WHERE job_steps.job_id = jobs.id ORDER BY kind COLLATE "C") AS kept_steps,
    cancel_requested_at_ms IS NOT NULL AS is_cancel_requested, started_at_ms::float8 AS started_at_ms, created_at_ms::float8 AS created_at_ms, finished_at_ms::float8 AS finished_at_ms
  FROM jobs WHERE id > $1 ORDER BY id LIMIT $2`
const EVENTS = `SELECT job_id, seq, attempt, type, data, at_ms::float8 AS at_ms FROM job_events
  WHERE (job_id, seq) > ($1, $2) ORDER BY job_id, seq LIMIT $3`

interface JobRow {
  readonly id: string
  readonly pool: string
  readonly state: string
  readonly attempt: number
  readonly tries: number
  readonly crashes: number
  readonly last_seq: number
  readonly metadata: string
  readonly error: string | null
  readonly result: string | null
  readonly parent_id: string | null
  readonly children: number
  readonly steps: number
  readonly is_settled: boolean
  /** Null except for composed jobs and their children. */
  readonly request: string | null
  readonly kept_steps: readonly string[]
  readonly is_cancel_requested: boolean
  readonly started_at_ms: number | null
  readonly created_at_ms: number
  readonly finished_at_ms: number | null
}

interface EventRow {
  readonly job_id: string
  readonly seq: number
  readonly attempt: number
  readonly type: string
  readonly data: string | null
  readonly at_ms: number
}

function rowEntry(row: JobRow): Entry {
  const { id, pool, state, attempt, tries, crashes, last_seq, is_cancel_requested } = row
  const { key = id, tag } = JSON.parse(row.metadata) as { key?: string; tag?: string }
  const result: unknown = row.result === null ? null : JSON.parse(row.result)
  return {
    type: 'row',
    job_id: id,
    key,
    pool,
    state,
    attempt,
    tries,
    crashes,
    last_seq,
    is_cancel_requested,
    started_at_wall_ms: row.started_at_ms,
    created_at_wall_ms: row.created_at_ms,
    finished_at_wall_ms: row.finished_at_ms,
    error: row.error,
    text: result === null ? null : textOfAnswer(result),
    ...(row.request !== null && { family: familyOf(row, row.request, result, tag) }),
  }
}

function familyOf(row: JobRow, request: string, result: unknown, tag = ''): FamilyRow {
  const { parent_id, children, steps, kept_steps, is_settled } = row
  const { body } = JSON.parse(request) as { body?: unknown }
  if (body === undefined) throw new Error(`the request of ${row.id} has no question`)
  const report = tag === '' ? null : (reportOf(result, tag)?.report ?? null)
  return { parent_id, children, steps, kept_steps, request: hashOf(JSON.stringify(body)), report, is_settled }
}

function eventEntry({ job_id, seq, attempt, type, data, at_ms }: EventRow): Entry {
  const { chunk, reason, output_reset } = (data === null ? {} : JSON.parse(data)) as {
    chunk?: unknown
    reason?: string
    output_reset?: boolean
  }
  return {
    type: 'event',
    job_id,
    seq,
    attempt,
    event: type,
    wall_ms: at_ms,
    ...(chunk !== undefined && { text: textOfChunk(chunk) }),
    ...(output_reset === true && { reset: true }),
    ...(reason !== undefined && { reason }),
  }
}

function textOfAnswer(answer: unknown): string | null {
  const { choices } = answer as { choices?: { message?: { content?: string | null } }[] }
  return choices?.[0]?.message?.content ?? null
}
