import type { DurableEvent } from '#schemas/durable-job.ts'
import type { RunningLimits } from '#shared/store/tenants.ts'
import type { Insert } from './create/inserts.ts'
import type { Statement } from './statements.ts'
import type { Transition } from './transitions.ts'
import { pickFair } from './turns.ts'

export type Params = Record<string, string | number | boolean | null>

/** Output of an attempt as it is stored: `data` is JSON text. */
export type WrittenOutput = readonly { readonly type: string; readonly data: string }[]

/** A row of a result, as values by column name. Booleans may be 0 and 1. */
export type Row = Record<string, unknown>

/** A changed job as a row: columns, its event, and `request` if the transition returns it. */
export type TransitionRow = Row & { event_type: string | null; event_data: string | null; event_at_ms: number }

/** A write with its statements for each database. The statements for SQLite run in one transaction. */
export interface Write {
  readonly postgres: Statement
  readonly sqlite: readonly string[]
}

/**
 * A database under `SqlStore`: the operations in which Postgres and SQLite differ. Each call is one transaction.
 *
 * @throws ServiceError `overloaded` if the database is unreachable or full
 */
export interface SqlDatabase {
  readonly name: string
  readonly isReachable: boolean
  readonly isFull: boolean
  /** True if several processes use the database, so that statements run concurrently. */
  readonly isShared: boolean
  readonly isIdle: boolean
  untilWork?(signal: AbortSignal): Promise<void>
  run(statement: Statement, params: Params): Promise<Row[]>
  transition(move: Transition, params: Params, output: WrittenOutput): Promise<TransitionRow[]>
  /** Inserts a job with its event. With `hasKey`, the job is inserted only if its idempotency key is free. */
  insert(insert: Insert, params: Params, hasKey: boolean): Promise<TransitionRow[]>
  erase(params: Params): Promise<boolean>
  write(write: Write, params: Params): Promise<void>
  /** Runs a statement that locks the rows that it picks, so that concurrent statements pick different rows. */
  pick(statement: (lock: string) => Statement, params: Params): Promise<Row[]>
  limitRunning(limits: RunningLimits): void
  /** Creates partitions for the coming days, and drops past ones, if the database has partitions. */
  keepDays(): Promise<void>
  close(): Promise<void>
}

/** An event to insert. `chunk` is null unless the owner wrote it. */
export type EventRow = Omit<DurableEvent, 'data'> & { data: string | null; chunk: number | null }

/**
 * Events of a transition: first the output of the attempt, then the event of the transition itself. `last_seq` of the row counts all of
 * them.
 */
export function eventRows(row: TransitionRow, output: WrittenOutput, isOwners: boolean): EventRow[] {
  const own = row.event_type === null ? [] : [{ type: row.event_type, data: row.event_data }]
  const written = [...output, ...own]
  const first = Number(row.last_seq) - written.length + 1
  const chunk = isOwners ? Number(row.chunk) - 1 : null
  return written.map(({ type, data }, index) => ({
    job_id: String(row.id),
    seq: first + index,
    attempt: Number(row.attempt),
    type: type as DurableEvent['type'],
    data,
    at_ms: Number(row.event_at_ms),
    chunk,
  }))
}

/**
 * The UPDATE of a transition, without `RETURNING`.
 *
 * @param picked Selects the ids of a sweep.
 * @param from Tables joined to the jobs.
 */
export function updateOf(move: Transition, picked: string, from?: string): string {
  const count = [...(move.isOwners ? ['CAST(:count AS int)'] : []), ...(move.event ? ['1'] : [])]
  const numbered = count.length > 0 ? `, last_seq = last_seq + ${count.join(' + ')}` : ''
  const where = isSweep(move) ? `id IN (${picked})` : move.where
  return `UPDATE jobs SET ${move.set}${numbered} ${from ? `FROM ${from}` : ''} WHERE ${where}`
}

export function isSweep({ pick, pickFair: inTurn }: Transition): boolean {
  return pick !== undefined || inTurn !== undefined
}

/** Selects the jobs of a sweep. @param isLocking Whether statements run concurrently: each skips locked rows */
export function pickOf(move: Transition, isLocking: boolean): string {
  if (move.pickFair !== undefined) return pickFair(move.pickFair, isLocking)
  if (!move.pick) return ''
  const { from, where, order, lock } = move.pick
  const locked = isLocking ? `FOR UPDATE OF ${lock} SKIP LOCKED` : ''
  return `SELECT jobs.id FROM ${from} WHERE ${where} ORDER BY ${order} LIMIT :limit ${locked}`
}
