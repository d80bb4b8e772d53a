import { pickOf, replaceNames, updateOf } from '#shared/store/sql/sql.ts'
import {
  CREATE_KEY,
  ERASE_DELIVERIES,
  ERASE_EVENTS,
  ERASE_JOB,
  ERASE_STEPS,
  FIND,
  find,
  type Insert,
  JOB_COLUMNS,
  type Statement,
} from '#shared/store/sql/statements.ts'
import type { Transition } from '#shared/store/sql/transitions.ts'

/**
 * Transitions, inserts and look-ups of jobs as single statements of Postgres: one round trip and one commit each, for one job or many.
 *
 * A data-modifying `WITH` writes the row, its events and its webhook message atomically, because all its parts share one snapshot and one commit.
 *
 * Parameters of many jobs are passed as arrays, one per `:name`. The table expression `given` has one row per job, and its columns are the names with
 * the prefix `in_`.
 */

const RECORDED = `
recorded AS (
  INSERT INTO job_events (job_id, seq, attempt, chunk, type, data, at_ms)
  SELECT id, last_seq, attempt, written_chunk, event_type, event_data, event_at_ms FROM moved
  WHERE event_type IS NOT NULL
)`

const OUTPUT = `
output AS (
  INSERT INTO job_events (job_id, seq, attempt, chunk, type, data, at_ms)
  SELECT id, last_seq - own_events - output_count + nth, attempt, written_chunk, written.type, data, event_at_ms
  FROM moved JOIN unnest(CAST(:output_ids AS text[]), CAST(:output_nths AS int[]), CAST(:output_types AS text[]),
    CAST(:output_datas AS text[])) AS written(job_id, nth, type, data) ON written.job_id = moved.id
)`

const DELIVERED = `
delivered AS (
  INSERT INTO deliveries (id, job_id, seq, tenant, url, type, state, next_at_ms, created_at_ms, purge_at_ms)
  SELECT 'evt_' || substr(id, 5) || '_' || last_seq, id, last_seq, tenant, webhook_url, event_type, 'pending',
    event_at_ms, event_at_ms, event_at_ms + retention_ms
  FROM moved WHERE webhook_url IS NOT NULL AND webhook_events LIKE '%"' || event_type || '"%'
)`

const TYPES: Record<string, string> = {
  attempt: 'int',
  chunk: 'int',
  count: 'int',
  has_output: 'boolean',
  stream: 'boolean',
  delay_ms: 'bigint',
  run_at_ms: 'bigint',
  start_in_ms: 'bigint',
  deadline_in_ms: 'bigint',
  retention_ms: 'bigint',
  wrap_up_ms: 'bigint',
  child_deadline_in_ms: 'bigint',
  partial_ms: 'bigint',
  reserved_nanos: 'bigint',
  child_reserved_nanos: 'bigint',
  request_bytes: 'bigint',
  child_request_bytes: 'bigint',
  bytes: 'bigint',
}

export function sweepStatement(move: Transition): Statement {
  const picked = `picked AS MATERIALIZED (${pickOf(move, true)})`
  const moved = `moved AS (${updateOf(move, 'SELECT id FROM picked')} ${returning(move)})`
  // Rows that another sweep has locked are skipped. `picked` is materialized, because otherwise the planner might run the selection once
  // per row.
  const sql = join(picked, moved, ...eventsOf(move))
  if (move.pickFair === undefined) return { name: move.name, sql }
  return {
    name: move.name,
    sql: `${sql} JOIN (SELECT id AS picked_id, each FROM picked) AS turns ON picked_id = moved.id`,
  }
}

/**
 * Returns the statement of a transition for many jobs. Each parameter is an array with one value per job. Writes by a job's holder have further
 * parameters for the output, `:output_…`.
 */
export function transitionStatement(move: Transition): Statement {
  const { reads, also = [] } = move
  const parts = [
    ...(reads ? [`${reads.name} AS MATERIALIZED (${reads.sql('given, jobs')} FOR SHARE OF ${reads.lock})`] : []),
    `moved AS (${updateOf(move, '', 'given')} ${returning(move)})`,
    ...also.map((insert, nth) => `also_${nth} AS (${insert('moved JOIN given ON in_id = moved.id')})`),
  ]
  const output = move.isOwners ? [OUTPUT] : []
  return { name: move.name, sql: join(...forMany(parts.join(',')), ...output, ...eventsOf(move)) }
}

export function insertStatement(insert: Insert): Statement {
  const moved = `moved AS (${insert.sql('TRUE', 'given')} ${returning(insert)})`
  return { name: insert.name, sql: join(...forMany(moved), RECORDED, DELIVERED) }
}

export function findStatement(): Statement {
  const [given, sql] = forMany(find('given, jobs').sql)
  return { name: FIND.name, sql: `WITH ${given} ${sql}` }
}

/**
 * Returns the statement that inserts one job. With `hasKey`, the statement first reserves the idempotency key. If the key is taken, then nothing is
 * inserted.
 */
export function insertOneStatement(insert: Insert, hasKey: boolean): Statement {
  const condition = hasKey ? 'EXISTS (SELECT 1 FROM key)' : 'TRUE'
  const moved = `moved AS (${insert.sql(condition)} ${returning(insert)})`
  const key = hasKey ? [`key AS (${CREATE_KEY})`] : []
  return { name: `${insert.name}_one${hasKey ? '_with_key' : ''}`, sql: join(...key, moved, RECORDED, DELIVERED) }
}

function join(...parts: readonly string[]): string {
  return `WITH ${parts.join(',')} SELECT * FROM moved`
}

function eventsOf({ event }: Transition): string[] {
  return event ? [RECORDED, DELIVERED] : []
}

function forMany(part: string): [given: string, part: string] {
  const { sql, names } = replaceNames(part, (name) => `in_${name}`)
  const arrays = names.map((name) => `CAST(:${name} AS ${TYPES[name] ?? 'text'}[])`)
  const columns = names.map((name) => `in_${name}`)
  return [`given AS MATERIALIZED (SELECT * FROM unnest(${arrays.join(', ')}) AS given(${columns.join(', ')}))`, sql]
}

export const ERASE: Statement = {
  name: 'erase',
  sql: `WITH erased AS (${ERASE_JOB}), events AS (${ERASE_EVENTS} AND EXISTS (SELECT 1 FROM erased)),
          steps AS (${ERASE_STEPS} AND EXISTS (SELECT 1 FROM erased)),
          messages AS (${ERASE_DELIVERIES} AND EXISTS (SELECT 1 FROM erased))
        SELECT id FROM erased`,
}

function returning({
  event,
  data,
  givesRequest,
  isOwners,
}: Pick<Transition, 'event' | 'data' | 'givesRequest' | 'isOwners'>) {
  const request = givesRequest ? ', request' : ''
  const written = isOwners
    ? 'chunk - 1 AS written_chunk, CAST(:count AS int) AS output_count'
    : 'CAST(NULL AS int) AS written_chunk'
  return `RETURNING ${JOB_COLUMNS}${request}, ${event ?? 'CAST(NULL AS text)'} AS event_type,
    ${data ?? 'CAST(NULL AS text)'} AS event_data, now_ms() AS event_at_ms, ${event ? 1 : 0} AS own_events, ${written}`
}
