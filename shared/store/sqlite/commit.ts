import { closeSync, fdatasync, openSync, read, write } from 'node:fs'
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { promisify } from 'node:util'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Maximum writes per transaction, and time in ms after which no further write joins a transaction. Both bounds limit how long a transaction blocks
 * the event loop.
 */
const GROUP_MAX = 128
const GROUP_MS_MAX = 10
const WAITING_MAX = 5_000
/** Length of the write-ahead log, in pages, at which a checkpoint starts. 1,000 pages are 4 MiB, which are copied in about 5 ms. */
const CHECKPOINT_PAGES = 1_000
const REWRITE_BYTES = 1024 * 1024

/** Result codes of SQLite for errors with an external cause: SQLITE_BUSY, IOERR, FULL, CANTOPEN. */
const EXTERNAL = new Set([5, 10, 13, 14])
/** Code SQLITE_IOERR, after which the commit may nevertheless have reached the disk. */
const IOERR = 10
const FULL = 13
const FULL_RETRY_MS = 60_000

/** Writes the data of an open file to the disk. */
export type Sync = (fd: number) => Promise<void>

interface GroupCommitOptions {
  readonly onFull?: (error: unknown) => void
  readonly sync?: Sync
}

interface Write {
  readonly work: () => unknown
  readonly isTransient: boolean
  readonly resolve: (result: unknown) => void
  readonly reject: (error: unknown) => void
}

/**
 * Group commit: writes of one event-loop iteration share one transaction and one sync of the disk.
 *
 * The problem: SQLite syncs its files inside COMMIT, on the event loop. A sync takes 1 to 8 ms on an idle disk and 100 ms on a busy disk. A
 * checkpoint with its two syncs takes 100 ms.
 *
 * The invariants: writes run in call order, and each write reads the effects of earlier writes. A failing write undoes only itself. No write resolves
 * before it is on the disk. The transaction is synchronous, so no read returns a part of a transaction.
 *
 * How it works: SQLite runs with `synchronous=NORMAL`, so COMMIT only writes to the page cache. Then the thread pool syncs the write-ahead log, and
 * the writes of the group resolve. No transaction runs during a sync, so slow disks get larger groups.
 *
 * A checkpoint copies the log into the main file. Automatic checkpoints are off, because they sync on the event loop. This class first syncs the log,
 * then copies it without a sync, and then syncs the main file. Only afterwards may the next transaction overwrite the log. SQLite
 * itself then syncs the header of the log on the event loop: one short sync per checkpoint.
 *
 * A group that consists of transient writes only is not synced. Otherwise an idle process would sync each second, only to renew leases that its next
 * start deletes.
 *
 * Rejected alternative: a thread with its own connection. Every row would be copied between threads, and reads would become messages.
 */
export class GroupCommit {
  readonly #db: DatabaseSync
  readonly #onFull: (error: unknown) => void
  readonly #savepoint: Record<'begin' | 'release' | 'undo', StatementSync>
  readonly #logSize: StatementSync
  readonly #log: SyncedFile
  readonly #main: SyncedFile
  /** True from the copy of the log into the main file until the main file is synced. */
  #isCopied = false
  #waiting: Write[] = []
  #running: Promise<void> | undefined
  #syncing: Promise<void> | undefined

  /**
   * @param db Database in WAL mode and locked exclusively. No other file descriptor of the database file may be closed before the lock ends. Closing a
   * descriptor releases all POSIX locks of the process on the file
   */
  constructor(db: DatabaseSync, { onFull = () => {}, sync = promisify(fdatasync) }: GroupCommitOptions = {}) {
    this.#onFull = onFull
    this.#db = db
    db.exec('PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0')
    this.#savepoint = {
      begin: db.prepare('SAVEPOINT write'),
      release: db.prepare('RELEASE write'),
      undo: db.prepare('ROLLBACK TO write'),
    }
    this.#logSize = db.prepare('PRAGMA wal_checkpoint(NOOP)')
    this.#main = new SyncedFile(db.location() ?? '', sync)
    this.#log = new SyncedFile(`${db.location()}-wal`, sync)
  }

  /** Resolves when all committed writes are on the disk, except transient writes. Undefined if no sync is running. */
  get synced(): Promise<void> | undefined {
    return this.#syncing
  }

  /**
   * Executes one write atomically. Resolves when the write is durable.
   *
   * @param isTransient If true, then the write resolves without a sync, so a crash of the machine may lose it
   * @throws ServiceError `overloaded` if the disk is full
   */
  run<T>(work: () => T, isTransient = false): Promise<T> {
    if (this.#waiting.length >= WAITING_MAX) {
      return Promise.reject(
        new ServiceError('overloaded', 'The job store is overloaded.', {
          retryAfterMs: 1_000,
          isUndone: true,
          isInfrastructure: true,
          reason: 'store',
        }),
      )
    }
    return new Promise<T>((resolve, reject) => {
      this.#waiting.push({ work, isTransient, resolve: resolve as Write['resolve'], reject })
      this.#running ??= this.#run()
    })
  }

  /** Commits the waiting writes. Afterwards the database may be closed, which deletes the log. */
  async drain(): Promise<void> {
    await this.#running
    if (this.#isCopied) await this.#checkpoint()
  }

  close(): void {
    this.#db.close()
    this.#main.close()
    this.#log.close()
  }

  async #run(): Promise<void> {
    while (this.#waiting.length > 0) {
      await new Promise((resolve) => setImmediate(resolve))
      await this.#commit()
    }
    this.#running = undefined
  }

  async #commit(): Promise<void> {
    const group = this.#waiting.splice(0, GROUP_MAX)
    try {
      await this.#checkpoint()
      const answers = this.#transaction(group)
      this.#waiting.unshift(...group.splice(answers.length))
      if (group.some(({ isTransient }) => !isTransient)) await this.#syncLog()
      for (const answer of answers) answer()
    } catch (error) {
      if (this.#db.isTransaction) this.#db.exec('ROLLBACK')
      if (codeOf(error) === FULL) this.#onFull(error)
      for (const { reject } of group) reject(translated(error))
    }
  }

  async #syncLog(): Promise<void> {
    const syncing = this.#log.sync()
    // Reads wait for `#syncing`, because they may return only rows that are on the disk. If the sync fails, then only the writers get the error.
    this.#syncing = syncing.catch(() => {})
    try {
      await syncing
    } finally {
      this.#syncing = undefined
    }
  }

  /** Copies the log into the main file if the log is long. The next transaction then writes the log from its beginning, so the log does not grow. */
  async #checkpoint(): Promise<void> {
    if (!this.#isCopied) {
      const { log, checkpointed } = this.#logSize.get() ?? {}
      if (Number(log) - Number(checkpointed) < CHECKPOINT_PAGES) return
      // A transient write is not synced by its own transaction, so the log is synced before it is copied.
      await this.#log.sync()
      this.#db.exec('PRAGMA synchronous = OFF')
      try {
        this.#db.exec('PRAGMA wal_checkpoint')
      } finally {
        this.#db.exec('PRAGMA synchronous = NORMAL')
      }
      this.#isCopied = true
    }
    await this.#main.sync()
    this.#isCopied = false
  }

  #transaction(group: readonly Write[]): (() => void)[] {
    const untilMs = performance.now() + GROUP_MS_MAX
    const answers: (() => void)[] = []
    this.#db.exec('BEGIN IMMEDIATE')
    for (const write of group) {
      if (answers.length > 0 && performance.now() >= untilMs) break
      answers.push(this.#write(write, group.length > 1))
    }
    this.#db.exec('COMMIT')
    return answers
  }

  #write({ work, resolve, reject }: Write, isShared: boolean): () => void {
    if (!isShared) {
      const result = work()
      return () => resolve(result)
    }
    this.#savepoint.begin.run()
    try {
      const result = work()
      this.#savepoint.release.run()
      return () => resolve(result)
    } catch (error) {
      // If the disk is full, then SQLite may have rolled back the whole transaction with all savepoints (sqlite.org/lang_transaction.html, 3).
      // Nothing is left to undo, so the error ends the group.
      if (!this.#db.isTransaction) throw error
      this.#savepoint.undo.run()
      this.#savepoint.release.run()
      if (codeOf(error) === FULL) this.#onFull(error)
      return () => reject(translated(error))
    }
  }
}

/**
 * A file of SQLite that is synced in the thread pool.
 *
 * After a failed sync, Linux may regard the written data as clean, although the data is not on the disk. A second sync
 * would then succeed without writing it. The content of the file is therefore written again before the next sync.
 */
class SyncedFile {
  readonly #fd: number
  readonly #sync: Sync
  #hasFailed = false

  constructor(path: string, sync: Sync) {
    this.#fd = openSync(path, 'r+')
    this.#sync = sync
  }

  /** @throws An error with the result code IOERR, as SQLite itself throws */
  async sync(): Promise<void> {
    try {
      if (this.#hasFailed) await this.#rewrite()
      this.#hasFailed = true
      await this.#sync(this.#fd)
      this.#hasFailed = false
    } catch (error) {
      throw Object.assign(new Error('The sync of a file failed.', { cause: error }), { errcode: IOERR })
    }
  }

  close(): void {
    closeSync(this.#fd)
  }

  async #rewrite(): Promise<void> {
    const [readSoon, writeSoon] = [promisify(read), promisify(write)]
    const buffer = Buffer.allocUnsafe(REWRITE_BYTES)
    for (let offset = 0; ; ) {
      const { bytesRead } = await readSoon(this.#fd, buffer, 0, buffer.length, offset)
      if (bytesRead === 0) return
      const { bytesWritten } = await writeSoon(this.#fd, buffer, 0, bytesRead, offset)
      offset += bytesWritten
    }
  }
}

export function translated(error: unknown): unknown {
  const code = codeOf(error)
  if (code === undefined || !EXTERNAL.has(code)) return error
  if (code === FULL) {
    const more = {
      cause: error,
      retryAfterMs: FULL_RETRY_MS,
      isUndone: true,
      isInfrastructure: true,
      reason: 'disk_full',
    } as const
    return new ServiceError('overloaded', 'The disk of the job store is full.', more)
  }
  const message = 'The job store cannot write now.'
  const isUndone = code !== IOERR
  return new ServiceError('overloaded', message, {
    cause: error,
    retryAfterMs: 5_000,
    isUndone,
    isInfrastructure: true,
    reason: 'store',
  })
}

function codeOf(error: unknown): number | undefined {
  const { errcode } = (error ?? {}) as { errcode?: number }
  return errcode === undefined ? undefined : errcode & 0xff
}
