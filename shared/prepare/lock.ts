import { randomUUID } from 'node:crypto'
import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

/*
 * A lock file per preparation. The file contains the progress of the running preparation, or the reason why the last preparation failed. The process
 * with the lock (the holder) rewrites the file every second. After 15 s without a write, the holder counts as dead, and another process may take the
 * lock.
 *
 * One race remains. If two processes find the same dead holder, then the slower process may remove the new file of the faster one. Both then prepare,
 * and one of them fails because its files were moved. A process that fails therefore checks first whether the result exists.
 */

const LOCK_FILE = 'state.json'
const HEARTBEAT_INTERVAL_MS = 1_000
const SILENCE_MS = 15_000

type Note =
  | { state: 'preparing'; fraction: number; message: string }
  | { state: 'failed'; reason: string; atMs: number }

export async function readNote(workDir: string): Promise<Note | undefined> {
  try {
    const file = join(workDir, LOCK_FILE)
    const note = JSON.parse(await readFile(file, 'utf8')) as Note
    const isSilent = Date.now() - (await stat(file)).mtimeMs > SILENCE_MS
    return note.state === 'preparing' && isSilent ? undefined : note
  } catch {
    // The file is missing, or another process is creating it at this moment. Both cases look alike here. In the second case, the attempt of the
    // caller to take the lock fails.
    return undefined
  }
}

/** The exclusive right of one process to prepare. The right ends with `release` or `fail`. */
export class PreparationLock {
  readonly #workDir: string
  readonly #beat: NodeJS.Timeout
  #note: Note = { state: 'preparing', fraction: 0, message: 'starting' }
  #writing: Promise<void> = Promise.resolve()

  private constructor(workDir: string) {
    this.#workDir = workDir
    this.#beat = setInterval(() => this.#write(), HEARTBEAT_INTERVAL_MS)
    this.#beat.unref()
  }

  /**
   * Takes the lock.
   *
   * @returns Undefined if another live process has the lock or is taking it
   */
  static async take(workDir: string): Promise<PreparationLock | undefined> {
    const file = join(workDir, LOCK_FILE)
    if (!(await clearDeadNote(file))) return undefined
    const first: Note = { state: 'preparing', fraction: 0, message: 'starting' }
    try {
      await writeFile(file, JSON.stringify(first), { flag: 'wx', mode: 0o600 })
    } catch (error) {
      if (isCode(error, 'EEXIST') || isCode(error, 'ENOENT')) return undefined
      throw error
    }
    return new PreparationLock(workDir)
  }

  note(fraction: number, message: string): void {
    this.#note = { state: 'preparing', fraction, message }
  }

  /** Releases the lock after success or an interruption. Another process may prepare at once. */
  async release(): Promise<void> {
    clearInterval(this.#beat)
    await this.#writing
    await rm(join(this.#workDir, LOCK_FILE), { force: true })
  }

  /** Records a failure. The lock file contains the reason until the next attempt. */
  async fail(reason: string): Promise<void> {
    clearInterval(this.#beat)
    this.#note = { state: 'failed', reason, atMs: Date.now() }
    this.#write()
    await this.#writing
  }

  #write(): void {
    const text = JSON.stringify(this.#note)
    this.#writing = this.#writing.then(() => replaceFile(join(this.#workDir, LOCK_FILE), text))
  }
}

/**
 * Removes a lock file that records a failure or whose holder is dead.
 *
 * @returns True if the lock is now free
 */
async function clearDeadNote(file: string): Promise<boolean> {
  const found = await stat(file).catch(() => undefined)
  if (!found) return true
  const text = await readFile(file, 'utf8').catch(() => '')
  const isSilent = Date.now() - found.mtimeMs > SILENCE_MS
  if (!isSilent && !text.startsWith('{"state":"failed"')) return false
  // The file is renamed before it is deleted. If several processes rename the lock file of a dead holder, then only one rename succeeds. If they
  // deleted the file directly, then a slower process could delete the new file of the next holder.
  const grave = `${file}.${randomUUID()}`
  const isOurs = await rename(file, grave).then(
    () => true,
    () => false,
  )
  await rm(grave, { force: true })
  return isOurs
}

function isCode(error: unknown, code: string): boolean {
  return error instanceof Error && 'code' in error && error.code === code
}

/**
 * Writes a new file and renames it, so that a reader never gets a part of the text. Errors are ignored: if the disk is full, then the preparation
 * itself fails.
 */
async function replaceFile(file: string, text: string): Promise<void> {
  const draft = `${file}.${randomUUID()}`
  await writeFile(draft, text, { mode: 0o600 })
    .then(() => rename(draft, file))
    .catch(() => rm(draft, { force: true }))
}
