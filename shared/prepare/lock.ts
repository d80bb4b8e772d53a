import { randomUUID } from 'node:crypto'
import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

/*
 * A lock file per preparation. The file contains the progress of the running preparation, or the reason why the last preparation failed. The owner
 * rewrites the file every second. After 15 s without a write, the owner counts as dead, and another process may take the lock.
 *
 * One race remains. Two processes find the same dead owner, and the slower one removes the new file of the faster one. Both processes then prepare,
 * and one process fails because its files were moved. A process that fails therefore checks first whether the result exists.
 */

const NOTE = 'state.json'
const BEAT_MS = 1_000
const SILENCE_MS = 15_000

type Note =
  | { state: 'preparing'; fraction: number; message: string }
  | { state: 'failed'; reason: string; atMs: number }

export async function readNote(workDir: string): Promise<Note | undefined> {
  try {
    const file = join(workDir, NOTE)
    const note = JSON.parse(await readFile(file, 'utf8')) as Note
    const isSilent = Date.now() - (await stat(file)).mtimeMs > SILENCE_MS
    return note.state === 'preparing' && isSilent ? undefined : note
  } catch {
    // The file is missing, or another process is just creating it. The caller finds out which by trying to take the
    // lock.
    return undefined
  }
}

/** The exclusive right to prepare. One process has the lock until it calls `release` or `fail`. */
export class PreparationLock {
  readonly #workDir: string
  readonly #beat: NodeJS.Timeout
  #note: Note = { state: 'preparing', fraction: 0, message: 'starting' }
  #writing: Promise<void> = Promise.resolve()

  private constructor(workDir: string) {
    this.#workDir = workDir
    this.#beat = setInterval(() => this.#write(), BEAT_MS)
    this.#beat.unref()
  }

  /** Takes the lock. @returns Undefined if a live process has the lock or is taking it */
  static async take(workDir: string): Promise<PreparationLock | undefined> {
    const file = join(workDir, NOTE)
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

  /** Releases the lock after success or an interruption. Another process may then prepare at once. */
  async release(): Promise<void> {
    clearInterval(this.#beat)
    await this.#writing
    await rm(join(this.#workDir, NOTE), { force: true })
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
    this.#writing = this.#writing.then(() => replaceFile(join(this.#workDir, NOTE), text))
  }
}

/** Removes a lock file that records a failure or whose owner is dead. @returns True if the lock is now free */
async function clearDeadNote(file: string): Promise<boolean> {
  const found = await stat(file).catch(() => undefined)
  if (!found) return true
  const text = await readFile(file, 'utf8').catch(() => '')
  const isSilent = Date.now() - found.mtimeMs > SILENCE_MS
  if (!isSilent && !text.startsWith('{"state":"failed"')) return false
  // A rename succeeds in only one of several processes. A deletion by a slower process could instead remove the new
  // lock file of the next owner.
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
 * Writes a draft and renames it, so that a reader never gets a part of the text. Errors are ignored, because on a full disk the preparation itself
 * fails.
 */
async function replaceFile(file: string, text: string): Promise<void> {
  const draft = `${file}.${randomUUID()}`
  await writeFile(draft, text, { mode: 0o600 })
    .then(() => rename(draft, file))
    .catch(() => rm(draft, { force: true }))
}
