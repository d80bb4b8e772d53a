import { jsonTextSoon } from '#shared/json/write.ts'
import type { Dispatch, HeldAttempt, Output, TransitionResult } from '#shared/store/store.ts'
import { eventOf, eventsOf, jobOf, jsonOf, jsonText } from './rows.ts'
import { eventRows, type Params, type Row, type SqlDatabase, type TransitionRow, type WrittenOutput } from './sql.ts'
import { FIND, FIND_CHUNK } from './statements.ts'
import type { Transition } from './transitions.ts'

/** Executes state transitions: of one job, of many jobs, or as a write of an owner that may be repeated. */

/** Maximum jobs per statement, because SQLite blocks the event loop during a statement, and a job has entries in ten indexes. */
export const JOBS_MAX = 50

export async function transitionOne(
  db: SqlDatabase,
  move: Transition,
  params: Params,
): Promise<TransitionResult | undefined> {
  const [row] = await db.transition(move, params, [])
  return row && resultOf(row)
}

/** Changes up to `limit` jobs, a few at a time. If a later part fails, then the jobs changed before are returned. */
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

/** A write of the owner, which may be repeated if its answer was lost. @param moreBytes Stored bytes in addition to the output */
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
