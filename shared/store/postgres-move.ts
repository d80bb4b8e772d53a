import { CREATE_KEY, type Insert } from './inserts.ts'
import type { Move } from './moves.ts'
import { pickOf, updateOf } from './sql.ts'
import { ERASE_EVENTS, ERASE_JOB, JOB_COLUMNS, type Statement } from './statements.ts'

/**
 * Moves and inserts of jobs as single statements of Postgres: one round trip and one commit each.
 *
 * A data-modifying `WITH` runs all its parts on one snapshot and commits them together, so the row, its events and its
 * webhook message are written or not written as one.
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
  SELECT id, last_seq - own_events - CAST(:count AS int) + nth, attempt, written_chunk, type, data, event_at_ms
  FROM moved, unnest(CAST(:types AS text[]), CAST(:datas AS text[])) WITH ORDINALITY AS written(type, data, nth)
)`

const DELIVERED = `
delivered AS (
  INSERT INTO deliveries (id, job_id, seq, tenant, url, type, state, next_at_ms, created_at_ms, purge_at_ms)
  SELECT 'evt_' || substr(id, 5) || '_' || last_seq, id, last_seq, tenant, webhook_url, event_type, 'pending',
    event_at_ms, event_at_ms, event_at_ms + retention_ms
  FROM moved WHERE webhook_url IS NOT NULL AND webhook_events LIKE '%"' || event_type || '"%'
)`

/** The statement of a move. Parameters: those of the move; for writes of the owner also `:types` and `:datas`. */
export function moveStatement(move: Move): Statement {
  const pick = pickOf(move)
  const parts = [`moved AS (${updateOf(move, 'SELECT id FROM picked')} ${returning(move)})`]
  // Locked rows are another sweep's. Materialised, or the planner might pick again for each row.
  if (pick) parts.unshift(`picked AS MATERIALIZED (${pick} FOR UPDATE OF ${move.pick?.lock} SKIP LOCKED)`)
  if (move.isOwners) parts.push(OUTPUT)
  if (move.event) parts.push(RECORDED, DELIVERED)
  return { name: move.name, sql: `WITH ${parts.join(',')} SELECT * FROM moved` }
}

/** The statement of an insert. With `hasKey`, the key is taken in it, or nothing happens. */
export function insertStatement(insert: Insert, hasKey: boolean): Statement {
  const condition = hasKey ? 'EXISTS (SELECT 1 FROM key)' : 'TRUE'
  const parts = [`moved AS (${insert.sql(condition)} ${returning(insert)})`, RECORDED, DELIVERED]
  if (hasKey) parts.unshift(`key AS (${CREATE_KEY})`)
  return { name: hasKey ? `${insert.name}_with_key` : insert.name, sql: `WITH ${parts.join(',')} SELECT * FROM moved` }
}

/** Job and events, at once. */
export const ERASE: Statement = {
  name: 'erase',
  sql: `WITH erased AS (${ERASE_JOB}), events AS (${ERASE_EVENTS} AND EXISTS (SELECT 1 FROM erased))
        SELECT id FROM erased`,
}

function returning({
  event,
  data,
  givesRequest,
  isOwners,
}: Pick<Move, 'event' | 'data' | 'givesRequest' | 'isOwners'>) {
  const request = givesRequest ? ', request' : ''
  return `RETURNING ${JOB_COLUMNS}${request}, ${event ?? 'CAST(NULL AS text)'} AS event_type,
    ${data ?? 'CAST(NULL AS text)'} AS event_data, now_ms() AS event_at_ms, ${event ? 1 : 0} AS own_events,
    ${isOwners ? 'chunk - 1' : 'CAST(NULL AS int)'} AS written_chunk`
}
