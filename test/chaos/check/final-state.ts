import { Client } from 'pg'
import { textOfChunk } from '../load/follower.ts'
import type { Entry } from './history.ts'

const PAGE = 2_000
const CONNECT_MS = 5_000

/** A way into the store past the service. Every read is one connection, for the database may have been killed since. */
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

/** How many jobs have not come to their end; undefined while the database does not answer. */
export async function countUnfinished(url: string): Promise<number | undefined> {
  const sql = `SELECT count(*)::int AS count FROM jobs WHERE state IN ('queued', 'scheduled', 'in_progress')`
  try {
    const [row] = await query<{ count: number }>(url, sql)
    return row?.count
  } catch {
    return undefined
  }
}

/** All rows and events of the store, as the checker wants them. */
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

const ROWS = `SELECT id, state, attempt, tries, crashes, last_seq, metadata, error, result,
    cancel_requested_at_ms IS NOT NULL AS is_cancel_requested, started_at_ms::float8 AS started_at_ms, created_at_ms::float8 AS created_at_ms, finished_at_ms::float8 AS finished_at_ms
  FROM jobs WHERE id > $1 ORDER BY id LIMIT $2`
const EVENTS = `SELECT job_id, seq, attempt, type, data, at_ms::float8 AS at_ms FROM job_events
  WHERE (job_id, seq) > ($1, $2) ORDER BY job_id, seq LIMIT $3`

interface JobRow {
  readonly id: string
  readonly state: string
  readonly attempt: number
  readonly tries: number
  readonly crashes: number
  readonly last_seq: number
  readonly metadata: string
  readonly error: string | null
  readonly result: string | null
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
  const { id, state, attempt, tries, crashes, last_seq, is_cancel_requested } = row
  return {
    type: 'row',
    job_id: id,
    key: (JSON.parse(row.metadata) as { key?: string }).key ?? id,
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
    text: row.result === null ? null : textOfAnswer(JSON.parse(row.result)),
  }
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
