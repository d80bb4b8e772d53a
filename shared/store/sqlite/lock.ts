import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { makePrivateFile } from '#shared/directory.ts'

const SQLITE_BUSY = 5

/**
 * Opens a database file exclusively. A new file is readable by its user only.
 *
 * The kernel's lock on the file is authoritative. The lock ends with its process, so it is never stale. The file `<path>.owner` only names the owner.
 *
 * @param boot Name of this process in the error of the next one.
 * @throws Error with the process that has the file open
 */
export function openExclusively(path: string, boot: string): { db: DatabaseSync; unlock: () => void } {
  const ownerFile = `${path}.owner`
  // SQLite would create a file that others may read; its log inherits the mode.
  makePrivateFile(path)
  const db = new DatabaseSync(path, { timeout: 0 })
  try {
    // Without WAL's shared memory, no other process can even read. The first write takes the lock, which is kept.
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
