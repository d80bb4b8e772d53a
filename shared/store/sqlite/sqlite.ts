import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { makeDirectory, makePrivateFile } from '#shared/config/directory.ts'
import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { RunningLimits } from '#shared/store/records.ts'
import { missingMigrations } from '#shared/store/sql/migrations.ts'
import { type EventRow, eventRows } from '#shared/store/sql/rows.ts'
import {
  type Compiled,
  compile,
  type Params,
  pickOf,
  type Row,
  type SqlDatabase,
  type TransitionRow,
  updateOf,
  valuesOf,
  type Write,
  type WrittenOutput,
} from '#shared/store/sql/sql.ts'
import { SqlStore } from '#shared/store/sql/sql-store.ts'
import {
  CREATE_KEY,
  ERASE_DELIVERIES,
  ERASE_EVENTS,
  ERASE_JOB,
  ERASE_STEPS,
  type Insert,
  IS_IDLE,
  JOB_COLUMNS,
  type Statement,
} from '#shared/store/sql/statements.ts'
import type { Transition } from '#shared/store/sql/transitions.ts'
import type { Store } from '#shared/store/store.ts'
import { GroupCommit, type Sync, translated } from './commit.ts'

const SQLITE_BUSY = 5

/** A cache of 16 MB, larger than SQLite's default, so that pages are read and written less often. */
const PRAGMAS = 'PRAGMA cache_size = -16000'

export interface SqliteOptions {
  readonly directory: string
  /** Name of this process. If a second process opens the directory, then its error contains this name. */
  readonly boot: string
  readonly now?: () => number
  /**
   * Writes the data of an open file to the disk. Default: `fdatasync`. Simulations replace this function, because a real sync takes no virtual time.
   */
  readonly sync?: Sync
  /** Called at most once per minute when a write finds the disk full. */
  readonly onProblem?: (message: string, fields: Record<string, unknown>) => void
}

const FULL_MS = 60_000

/**
 * Opens the store in one SQLite file, for one process. Resolved writes survive a crash of the process and of the machine: each is synced in the
 * write-ahead log (`commit.ts`). Leases are an exception, because they end with the process.
 *
 * @throws Error that names the process that has the directory open
 */
export function openSqliteStore({ directory, boot, now = Date.now, sync, onProblem }: SqliteOptions): Store {
  makeDirectory(directory)
  const { db, unlock } = openExclusively(join(directory, 'store.db'), boot)
  try {
    db.exec(PRAGMAS)
    db.function('now_ms', () => Math.trunc(now()))
    const limits: { current: RunningLimits | undefined } = { current: undefined }
    db.function('running_most', (tenant) => mostOf(limits.current, String(tenant)))
    migrate(db)
    // Only one process at a time can open the file, so all processes in this table have ended. Their leases end now.
    db.exec('UPDATE processes SET lease_ms = 0, lease_until_ms = 0; DELETE FROM leases')
    // The queue was in the memory of the previous process and is lost. The publication time 0 makes the scheduler publish all queued jobs at once.
    db.exec(`UPDATE jobs SET published_at_ms = 0 WHERE state = 'queued'`)
    return new SqlStore(new SqliteDatabase(db, unlock, limits, { sync, onProblem }))
  } catch (error) {
    unlock()
    db.close()
    throw error
  }
}

function mostOf(limits: RunningLimits | undefined, tenant: string): number | null {
  const most = limits?.mostOf(tenant)
  return most === undefined ? null : Math.max(0, most - (limits?.callsOf(tenant) ?? 0))
}

function migrate(db: DatabaseSync): void {
  const isNew = db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'migrations'").get() === undefined
  const rows = isNew ? [] : db.prepare('SELECT name, hash FROM migrations').all()
  const applied = new Map(rows.map(({ name, hash }) => [String(name), String(hash)]))
  const missing = missingMigrations('sqlite', applied)
  if (isNew) db.exec('CREATE TABLE migrations (name text NOT NULL PRIMARY KEY, hash text NOT NULL) STRICT')
  for (const { name, sql, hash } of missing) {
    db.exec('BEGIN IMMEDIATE')
    db.exec(sql)
    db.prepare('INSERT INTO migrations (name, hash) VALUES (?, ?)').run(name, hash)
    db.exec('COMMIT')
  }
}

const INSERT_EVENT = `INSERT INTO job_events (job_id, seq, attempt, chunk, type, data, at_ms)
  VALUES (:job_id, :seq, :attempt, :chunk, :type, :data, :at_ms)`
const INSERT_DELIVERY = `
  INSERT INTO deliveries (id, job_id, seq, tenant, url, type, state, next_at_ms, created_at_ms, purge_at_ms)
  SELECT 'evt_' || substr(id, 5) || '_' || last_seq, id, last_seq, tenant, webhook_url, :type, 'pending', now_ms(),
    now_ms(), now_ms() + retention_ms
  FROM jobs WHERE id = :id AND webhook_url IS NOT NULL AND webhook_events LIKE '%"' || :type || '"%'`

/** Table expression with the row that a transition has changed, for additional inserts. */
const MOVED = '(SELECT * FROM jobs WHERE id = :id) AS moved'

/**
 * The adapter of the port {@link SqlDatabase} for SQLite. Writes run in order, in groups. Reads run at once and see only committed data. A read
 * resolves when the data that it returns is on the disk.
 */
class SqliteDatabase implements SqlDatabase {
  readonly name = 'sqlite'
  readonly isShared = false
  readonly #db: DatabaseSync
  readonly #unlock: () => void
  readonly #limits: { current: RunningLimits | undefined }
  readonly #writes: GroupCommit
  readonly #prepared = new Map<string, { statement: StatementSync; compiled: Compiled }>()
  /** Statement of each transition, built on first use. */
  readonly #transitionSql = new WeakMap<Transition, string>()
  readonly #countChanges: StatementSync
  /** Number of rows that this connection had changed at the last idle check, and the result of that check. */
  #changes: unknown
  #wasIdle = false
  #written: PromiseWithResolvers<void> | undefined
  #closing: Promise<void> | undefined
  #fullAtMs = Number.NEGATIVE_INFINITY

  constructor(
    db: DatabaseSync,
    unlock: () => void,
    limits: { current: RunningLimits | undefined },
    { sync, onProblem = () => {} }: Pick<SqliteOptions, 'sync' | 'onProblem'>,
  ) {
    this.#db = db
    this.#unlock = unlock
    this.#limits = limits
    const onFull = (error: unknown) => {
      if (!this.isFull) onProblem('job store disk is full; writes are refused', { err: error })
      this.#fullAtMs = performance.now()
    }
    this.#writes = new GroupCommit(db, { onFull, ...(sync && { sync }) })
    this.#countChanges = db.prepare('SELECT total_changes() AS changes')
  }

  get isReachable(): boolean {
    return this.#db.isOpen
  }

  get isFull(): boolean {
    return performance.now() - this.#fullAtMs < FULL_MS
  }

  /** True if the last query found no work. The result stays valid until this connection changes a row, because no other process writes. */
  get isIdle(): boolean {
    try {
      const changes = this.#countChanges.get()?.changes
      if (changes !== this.#changes) this.#wasIdle = Boolean(this.#all(IS_IDLE, {})[0]?.is_idle)
      this.#changes = changes
      return this.#wasIdle
    } catch {
      // If the connection is closed or broken, then the store counts as not idle, and the next call reports the error.
      return false
    }
  }

  async untilWork(signal: AbortSignal): Promise<void> {
    while (!signal.aborted && !this.#closing && this.isIdle) await this.#untilWritten(signal)
  }

  async run({ sql, sqlite, isTransient }: Statement, params: Params): Promise<Row[]> {
    this.#refuseWhenClosed()
    if (!sql.startsWith('SELECT')) return await this.#write(() => this.#all(sql, params), isTransient)
    try {
      const rows = this.#all(sqlite ?? sql, params)
      await this.#writes.synced
      return sqlite ? rows.map(withTexts) : rows
    } catch (error) {
      throw translated(error)
    }
  }

  async transition(move: Transition, params: Params, output: WrittenOutput): Promise<TransitionRow[]> {
    const { reads, also = [] } = move
    let sql = this.#transitionSql.get(move)
    if (sql === undefined) {
      const read = reads ? `WITH ${reads.name} AS (${reads.sql('jobs')}) ` : ''
      sql = read + updateOf(move, pickOf(move, false)) + returning(move)
      this.#transitionSql.set(move, sql)
    }
    return await this.#write(() => {
      const rows = this.#all(sql, params) as TransitionRow[]
      for (const row of rows) this.#record(row, eventRows(row, output, move.isOwners ?? false))
      if (rows.length > 0) for (const insert of also) this.#all(insert(MOVED), params)
      return rows
    })
  }

  async insert(insert: Insert, params: Params, hasKey: boolean): Promise<TransitionRow[]> {
    const sql = insert.sql('TRUE') + returning(insert)
    return await this.#write(() => {
      if (hasKey && this.#all(CREATE_KEY, params).length === 0) return []
      const rows = this.#all(sql, params) as TransitionRow[]
      for (const row of rows) this.#record(row, eventRows(row, [], false))
      return rows
    })
  }

  async erase(params: Params): Promise<boolean> {
    return await this.#write(() => {
      const isErased = this.#all(ERASE_JOB, params).length > 0
      if (isErased) for (const sql of [ERASE_EVENTS, ERASE_STEPS, ERASE_DELIVERIES]) this.#all(sql, params)
      return isErased
    })
  }

  async write({ sqlite, isTransient }: Write, params: Params): Promise<void> {
    await this.#write(() => {
      for (const sql of sqlite) this.#all(sql, params)
    }, isTransient)
  }

  async writeRows<Field extends string>(
    { sqlite, isTransient }: Write,
    _name: string,
    rows: readonly Readonly<Record<Field, string | number | null>>[],
    columns: Readonly<Record<string, Field>>,
  ): Promise<void> {
    await this.#write(() => {
      for (const sql of sqlite) {
        const { compiled, statement } = this.#prepare(sql)
        const fields = compiled.names.map((name) => columns[name] as Field)
        for (const row of rows) statement.run(...fields.map((field) => row[field]))
      }
    }, isTransient)
  }

  async pick(statement: (lock: string) => Statement, params: Params): Promise<Row[]> {
    return await this.run(statement(''), params)
  }

  limitRunning(limits: RunningLimits): void {
    this.#limits.current = limits
  }

  async keepDays(): Promise<void> {
    // SQLite has no partitions, so there is nothing to do.
  }

  async close(): Promise<void> {
    this.#closing ??= this.#drainAndClose()
    await this.#closing
  }

  async #drainAndClose(): Promise<void> {
    this.#notifyWritten()
    await this.#writes.drain()
    this.#prepared.clear()
    // The file `<path>.owner` is removed before the lock ends. Afterwards another process could take the lock and write its own file with this name.
    this.#unlock()
    this.#writes.close()
  }

  #record(row: TransitionRow, events: readonly EventRow[]): void {
    for (const event of events) this.#all(INSERT_EVENT, event)
    if (row.event_type !== null && row.webhook_url !== null)
      this.#all(INSERT_DELIVERY, { id: String(row.id), type: row.event_type })
  }

  #all(sql: string, params: Params): Row[] {
    const { compiled, statement } = this.#prepare(sql)
    return statement.all(...valuesOf(compiled, params).map(withoutBoolean))
  }

  #prepare(sql: string): { compiled: Compiled; statement: StatementSync } {
    let prepared = this.#prepared.get(sql)
    if (!prepared) {
      const compiled = compile(sql, '?')
      prepared = { compiled, statement: this.#db.prepare(compiled.sql) }
      this.#prepared.set(sql, prepared)
    }
    return prepared
  }

  #write<T>(work: () => T, isTransient?: boolean): Promise<T> {
    this.#refuseWhenClosed()
    return this.#writes.run(work, isTransient).finally(() => this.#notifyWritten())
  }

  async #untilWritten(signal: AbortSignal): Promise<void> {
    this.#written ??= Promise.withResolvers<void>()
    await abortable(this.#written.promise, signal).catch(() => {})
  }

  #notifyWritten(): void {
    this.#written?.resolve()
    this.#written = undefined
  }

  #refuseWhenClosed(): void {
    if (this.#closing || !this.#db.isOpen)
      throw new ServiceError('overloaded', 'The server is shutting down: the job store is closed.', {
        isUndone: true,
        isInfrastructure: true,
      })
  }
}

function withTexts(row: Row): Row {
  const entries = Object.entries(row).map(([name, value]) => [
    name,
    value instanceof Uint8Array ? textOf(value) : value,
  ])
  return Object.fromEntries(entries)
}

function textOf({ buffer, byteOffset, byteLength }: Uint8Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString()
}

function withoutBoolean(value: Params[string]) {
  return typeof value === 'boolean' ? Number(value) : value
}

function returning({ event, data, givesRequest }: Pick<Transition, 'event' | 'data' | 'givesRequest'>): string {
  const request = givesRequest ? ', request' : ''
  return ` RETURNING ${JOB_COLUMNS}${request}, ${event ?? 'NULL'} AS event_type, ${data ?? 'NULL'} AS event_data,
    now_ms() AS event_at_ms`
}

/**
 * Opens a database file exclusively. Only the file's user can read a new file.
 *
 * The kernel's lock on the file ensures that only one process opens it. The lock ends with the process, so it cannot remain after a crash. The file
 * `<path>.owner` only contains the name of the process that has the database open, for error messages of other processes.
 *
 * @param boot Name of this process, for the error of a second process.
 * @throws Error that names the process that has the file open
 */
function openExclusively(path: string, boot: string): { db: DatabaseSync; unlock: () => void } {
  const ownerFile = `${path}.owner`
  // The file is created before SQLite opens it, because SQLite would create a file that other users can read. The
  // write-ahead log inherits the mode of this file.
  makePrivateFile(path)
  const db = new DatabaseSync(path, { timeout: 0 })
  try {
    // In exclusive mode, WAL uses no shared memory, so no other process can read the file. The first write takes the lock until the close.
    db.exec('PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; BEGIN EXCLUSIVE; COMMIT')
  } catch (error) {
    db.close()
    if ((error as { errcode?: number }).errcode !== SQLITE_BUSY) throw error
    throw new Error(`${path} is open in ${ownerOf(ownerFile)}. Stop it, or give this process another DATA_DIR.`, {
      cause: error,
    })
  }
  writeFileSync(ownerFile, JSON.stringify({ pid: process.pid, boot }), { mode: 0o600 })
  return { db, unlock: () => rmSync(ownerFile, { force: true }) }
}

function ownerOf(file: string): string {
  try {
    const { pid, boot } = JSON.parse(readFileSync(file, 'utf8'))
    return `process ${pid} (${boot})`
  } catch {
    // The other process has taken the lock but has not written the file `<path>.owner` yet, so its name is unknown.
    return 'another process'
  }
}
