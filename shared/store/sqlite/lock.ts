import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { makePrivateFile } from '#shared/directory.ts'

const SQLITE_BUSY = 5

/**
 * Opens a database file for this process alone; one that is made can be read by its user alone.
 *
 * The kernel's lock on the file decides: it ends with its process, however that dies, so no stale lock has to be told
 * from a live one. The file `<path>.owner` only says who it is.
 *
 * @param boot Names this process to the next one.
 * @throws Error that names the process which has it open
 */
export function openExclusively(path: string, boot: string): { db: DatabaseSync; unlock: () => void } {
  const ownerFile = `${path}.owner`
  // SQLite would make one that others may read; its log takes the mode from it.
  makePrivateFile(path)
  const db = new DatabaseSync(path, { timeout: 0 })
  try {
    // Without WAL's shared memory nobody else can even read; the lock is taken by the first write and kept.
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
    // Between taking the lock and writing the file.
    return 'another process'
  }
}
