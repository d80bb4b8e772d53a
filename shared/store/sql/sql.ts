import type { DurableEvent } from '#schemas/durable-job.ts'
import type { RunningLimits } from '#shared/store/tenants.ts'
import type { Insert } from './create/inserts.ts'
import type { Statement } from './statements.ts'
import type { Move } from './transitions.ts'
import { pickInTurn } from './turns.ts'

/** What a statement is given, by name. */
export type Params = Record<string, string | number | boolean | null>

/** Output of a run as it is written: its data as JSON text. */
export type WrittenOutput = readonly { readonly type: string; readonly data: string }[]

/** What a statement gives: columns by name. Booleans may be 0 and 1. */
export type Row = Record<string, unknown>

/** A moved job as a row: its columns, the event it wrote, and `request` where the move gives it. */
export type TransitionRow = Row & { event_type: string | null; event_data: string | null; event_at_ms: number }

/** A write in the words of each database. Those of SQLite are one transaction. */
export interface Write {
  readonly postgres: Statement
  readonly sqlite: readonly string[]
}

/**
 * A database under `SqlStore`: what Postgres and SQLite do in different ways. Each call is one transaction.
 *
 * @throws ServiceError `overloaded` when it cannot be reached or is full
 */
export interface SqlDatabase {
  readonly name: string
  readonly isReachable: boolean
  /** See {@link StoreView.isFull}. */
  readonly isFull: boolean
  /** Statements of many processes run side by side. */
  readonly isShared: boolean
  /** See {@link StoreView.isIdle}; false where others write as well. */
  readonly isIdle: boolean
  /** See {@link StoreView.untilWork}; undefined where others write as well, and only they know. */
  untilWork?(signal: AbortSignal): Promise<void>
  run(statement: Statement, params: Params): Promise<Row[]>
  /** Makes a move with all it writes: its events, the output before them, its webhook messages. */
  move(move: Move, params: Params, output: WrittenOutput): Promise<TransitionRow[]>
  /** Inserts a job with its event. With `hasKey` only if the key of the same parameters could be taken. */
  insert(insert: Insert, params: Params, hasKey: boolean): Promise<TransitionRow[]>
  /** Erases a job with its events and the addresses of its messages. */
  erase(params: Params): Promise<boolean>
  /** Writes in its own words. */
  write(write: Write, params: Params): Promise<void>
  /** Runs a statement that picks rows for itself: of several at once, each takes others. */
  pick(statement: (lock: string) => Statement, params: Params): Promise<Row[]>
  /** See {@link TenantReads.limitRunning}. */
  limitRunning(limits: RunningLimits): void
  /** Prepares the days to come, and lets go of those past as a whole, where it can. */
  keepDays(): Promise<void>
  close(): Promise<void>
}

/** An event as it is inserted. `chunk` is null for what others than the owner wrote. */
export type EventRow = Omit<DurableEvent, 'data'> & { data: string | null; chunk: number | null }

/** The events a move wrote: the output first, then its own. `last_seq` of the row counts them. */
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
 * The UPDATE of a move up to its `RETURNING`.
 *
 * @param picked Gives the ids a sweep has picked.
 * @param from What is joined to the jobs.
 */
export function updateOf(move: Move, picked: string, from?: string): string {
  const count = [...(move.isOwners ? ['CAST(:count AS int)'] : []), ...(move.event ? ['1'] : [])]
  const numbered = count.length > 0 ? `, last_seq = last_seq + ${count.join(' + ')}` : ''
  const where = isSweep(move) ? `id IN (${picked})` : move.where
  return `UPDATE jobs SET ${move.set}${numbered} ${from ? `FROM ${from}` : ''} WHERE ${where}`
}

/** Whether a move picks its jobs itself. */
export function isSweep({ pick, pickInTurn: inTurn }: Move): boolean {
  return pick !== undefined || inTurn !== undefined
}

/** The SELECT of a sweep's jobs. @param isLocking Whether statements run side by side: each passes over what another has picked */
export function pickOf(move: Move, isLocking: boolean): string {
  if (move.pickInTurn !== undefined) return pickInTurn(move.pickInTurn, isLocking)
  if (!move.pick) return ''
  const { from, where, order, lock } = move.pick
  const locked = isLocking ? `FOR UPDATE OF ${lock} SKIP LOCKED` : ''
  return `SELECT jobs.id FROM ${from} WHERE ${where} ORDER BY ${order} LIMIT :limit ${locked}`
}
