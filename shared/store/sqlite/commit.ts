import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { ServiceError } from '#shared/error.ts'

/** Writes of one transaction at most: the event loop stands still meanwhile. */
const GROUP_MAX = 128
/** Writes that wait at most; more are refused. */
const WAITING_MAX = 5_000

/** SQLite's result codes for a world without room: SQLITE_BUSY, IOERR, FULL, CANTOPEN. */
const WORLDS_FAULT = new Set([5, 10, 13, 14])
/** After this one a commit may be on disk all the same. */
const IOERR = 10
const FULL = 13
/** Time after which a full disk may have room again. */
const FULL_RETRY_MS = 60_000

/** A write, and how its caller hears of it once it is on disk. */
interface Write {
  readonly work: () => unknown
  readonly isTransient: boolean
  readonly resolve: (result: unknown) => void
  readonly reject: (error: unknown) => void
}

/**
 * Commits the writes that come in one turn of the event loop together: one transaction, one fsync, however many they are.
 *
 * Each keeps what it was alone: it runs in the order of the calls and sees those before it, one that fails undoes nothing
 * but itself, and none resolves before the commit. The commit is over before the turn is, so no reader sees half of it.
 *
 * A group of transient writes alone is committed without an fsync: an idle process would else hold its event loop once a second
 * for as long as the disk takes, only to renew leases that its next start deletes. The next other commit brings them to the disk.
 */
export class GroupCommit {
  readonly #db: DatabaseSync
  readonly #onFull: (error: unknown) => void
  readonly #savepoint: Record<'begin' | 'release' | 'undo', StatementSync>
  #waiting: Write[] = []

  /** @param onFull Called for each commit for which the disk has no room. */
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
   * Does one write atomically. Resolves once it is on disk.
   *
   * @param isTransient It may be lost in a crash of the machine, and resolves once it is committed.
   * @throws ServiceError `overloaded` when the disk is full
   */
  run<T>(work: () => T, isTransient = false): Promise<T> {
    if (this.#waiting.length >= WAITING_MAX) {
      return Promise.reject(
        new ServiceError('overloaded', 'The job store has too much to do.', {
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

  /** Commits what waits, now. */
  flush(): void {
    while (this.#waiting.length > 0) this.#commit(this.#waiting.splice(0, GROUP_MAX))
  }

  #next(): void {
    this.#commit(this.#waiting.splice(0, GROUP_MAX))
    if (this.#waiting.length > 0) setImmediate(() => this.#next())
  }

  #commit(group: readonly Write[]): void {
    if (group.length === 0) return
    const isTransient = group.every((write) => write.isTransient)
    try {
      if (isTransient) this.#db.exec('PRAGMA synchronous = NORMAL')
      this.#db.exec('BEGIN IMMEDIATE')
      const answers = group.map((write) => this.#write(write, group.length > 1))
      this.#db.exec('COMMIT')
      for (const answer of answers) answer()
    } catch (error) {
      if (this.#db.isTransaction) this.#db.exec('ROLLBACK')
      if (codeOf(error) === FULL) this.#onFull(error)
      for (const { reject } of group) reject(translated(error))
    } finally {
      if (isTransient) this.#db.exec('PRAGMA synchronous = FULL')
    }
  }

  /** @returns What to tell its caller after the commit. @throws What makes the whole group fail */
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
      // Without room SQLite may undo the whole transaction by itself (sqlite.org/lang_transaction.html, 3).
      if (!this.#db.isTransaction) throw error
      this.#savepoint.undo.run()
      this.#savepoint.release.run()
      if (codeOf(error) === FULL) this.#onFull(error)
      return () => reject(translated(error))
    }
  }
}

/** A failure of SQLite as the port tells it: `overloaded` when it is the world's fault. */
export function translated(error: unknown): unknown {
  const code = codeOf(error)
  if (code === undefined || !WORLDS_FAULT.has(code)) return error
  if (code === FULL) {
    const more = { cause: error, retryAfterMs: FULL_RETRY_MS, isUndone: true, isInfrastructure: true }
    return new ServiceError('overloaded', 'The job store has no room left on its disk.', more)
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

/** The primary result code of SQLite: the low byte of the extended one. */
function codeOf(error: unknown): number | undefined {
  const { errcode } = (error ?? {}) as { errcode?: number }
  return errcode === undefined ? undefined : errcode & 0xff
}
