import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Maximum writes per transaction, and time in ms after which no further write joins a transaction. Both limit the time for which the event loop is
 * blocked.
 */
const GROUP_MAX = 128
const GROUP_MS_MAX = 10
const WAITING_MAX = 5_000

/** Result codes of SQLite for errors with an external cause: SQLITE_BUSY, IOERR, FULL, CANTOPEN. */
const EXTERNAL = new Set([5, 10, 13, 14])
/** Code SQLITE_IOERR, after which the commit may nevertheless have reached the disk. */
const IOERR = 10
const FULL = 13
const FULL_RETRY_MS = 60_000

interface Write {
  readonly work: () => unknown
  readonly isTransient: boolean
  readonly resolve: (result: unknown) => void
  readonly reject: (error: unknown) => void
}

/**
 * Group commit: writes of one event-loop iteration share one transaction and one fsync.
 *
 * Writes run in call order, and each write sees the effects of earlier writes. A failing write undoes only itself. No write resolves before the
 * commit. The commit is synchronous, so no reader sees part of a group.
 *
 * A group of transient writes only is committed without an fsync. Otherwise an idle process would block its event loop for an fsync each second, only
 * to renew leases that the next start deletes. The next durable commit also writes the transient data to disk.
 */
export class GroupCommit {
  readonly #db: DatabaseSync
  readonly #onFull: (error: unknown) => void
  readonly #savepoint: Record<'begin' | 'release' | 'undo', StatementSync>
  #waiting: Write[] = []

  constructor(db: DatabaseSync, onFull: (error: unknown) => void = () => {}) {
    this.#onFull = onFull
    this.#db = db
    this.#savepoint = {
      begin: db.prepare('SAVEPOINT write'),
      release: db.prepare('RELEASE write'),
      undo: db.prepare('ROLLBACK TO write'),
    }
  }

  /**
   * Executes one write atomically. Resolves when the write is durable.
   *
   * @param isTransient If true, then the write resolves without an fsync, so a power failure may lose it
   * @throws ServiceError `overloaded` if the disk is full
   */
  run<T>(work: () => T, isTransient = false): Promise<T> {
    if (this.#waiting.length >= WAITING_MAX) {
      return Promise.reject(
        new ServiceError('overloaded', 'The job store is overloaded.', {
          retryAfterMs: 1_000,
          isUndone: true,
          isInfrastructure: true,
        }),
      )
    }
    return new Promise<T>((resolve, reject) => {
      this.#waiting.push({ work, isTransient, resolve: resolve as Write['resolve'], reject })
      if (this.#waiting.length === 1) setImmediate(() => this.#next())
    })
  }

  flush(): void {
    while (this.#waiting.length > 0) this.#commit()
  }

  #next(): void {
    this.#commit()
    if (this.#waiting.length > 0) setImmediate(() => this.#next())
  }

  #commit(): void {
    const waiting = this.#waiting.splice(0, GROUP_MAX)
    if (waiting.length === 0) return
    const isTransient = waiting.every((write) => write.isTransient)
    const untilMs = performance.now() + GROUP_MS_MAX
    try {
      if (isTransient) this.#db.exec('PRAGMA synchronous = NORMAL')
      this.#db.exec('BEGIN IMMEDIATE')
      const answers: (() => void)[] = []
      for (const write of waiting) {
        if (answers.length > 0 && performance.now() >= untilMs) break
        answers.push(this.#write(write, waiting.length > 1))
      }
      this.#db.exec('COMMIT')
      this.#waiting.unshift(...waiting.slice(answers.length))
      for (const answer of answers) answer()
    } catch (error) {
      if (this.#db.isTransaction) this.#db.exec('ROLLBACK')
      if (codeOf(error) === FULL) this.#onFull(error)
      for (const { reject } of waiting) reject(translated(error))
    } finally {
      if (isTransient) this.#db.exec('PRAGMA synchronous = FULL')
    }
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
      // On a full disk, SQLite may roll back the whole transaction (sqlite.org/lang_transaction.html, 3), including the savepoint.
      if (!this.#db.isTransaction) throw error
      this.#savepoint.undo.run()
      this.#savepoint.release.run()
      if (codeOf(error) === FULL) this.#onFull(error)
      return () => reject(translated(error))
    }
  }
}

export function translated(error: unknown): unknown {
  const code = codeOf(error)
  if (code === undefined || !EXTERNAL.has(code)) return error
  if (code === FULL) {
    const more = { cause: error, retryAfterMs: FULL_RETRY_MS, isUndone: true, isInfrastructure: true }
    return new ServiceError('overloaded', 'The disk of the job store is full.', more)
  }
  const message = 'The job store cannot write now.'
  const isUndone = code !== IOERR
  return new ServiceError('overloaded', message, {
    cause: error,
    retryAfterMs: 5_000,
    isUndone,
    isInfrastructure: true,
  })
}

function codeOf(error: unknown): number | undefined {
  const { errcode } = (error ?? {}) as { errcode?: number }
  return errcode === undefined ? undefined : errcode & 0xff
}
