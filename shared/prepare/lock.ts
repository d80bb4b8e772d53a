import { randomUUID } from 'node:crypto'
import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

/*
 * A lock file per preparation. The file states that a preparation runs and its progress, or why the last one failed. The owner rewrites it every
 * second; after 15 s of silence the owner counts as dead and another process may take over.
 *
 * One race remains: two processes find the same dead owner, and the slower one removes the new file of the faster one. Then both work, and one finds
 * its files moved away. So a process that fails first checks whether the result exists after all.
 */

const NOTE = 'state.json'
const BEAT_MS = 1_000
const SILENCE_MS = 15_000

type Note =
  | { state: 'preparing'; fraction: number; message: string }
  | { state: 'failed'; reason: string; atMs: number }

/** State of a preparation in `workDir`; undefined if none runs and none failed. */
export async function readNote(workDir: string): Promise<Note | undefined> {
  try {
    const file = join(workDir, NOTE)
    const note = JSON.parse(await readFile(file, 'utf8')) as Note
    const isSilent = Date.now() - (await stat(file)).mtimeMs > SILENCE_MS
    return note.state === 'preparing' && isSilent ? undefined : note
  } catch {
    // The file is missing or is being written for the first time. A caller that needs certainty tries to take the lock.
    return undefined
  }
}

/** The exclusive right to prepare, held by one process until `release` or `fail`. */
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

  /** Takes the lock. @returns Undefined if a live process holds it or is taking it */
  static async take(workDir: string): Promise<PreparationLock | undefined> {
    const file = join(workDir, NOTE)
    if (!(await clearDeadNote(file))) return undefined
    const first: Note = { state: 'preparing', fraction: 0, message: 'starting' }
    try {
      await writeFile(file, JSON.stringify(first), { flag: 'wx', mode: 0o600 })
    } catch (error) {
      // ENOENT: another process has finished and removed the directory.
      if (isCode(error, 'EEXIST') || isCode(error, 'ENOENT')) return undefined
      throw error
    }
    return new PreparationLock(workDir)
  }

  /** Sets the progress; written with the next heartbeat. */
  note(fraction: number, message: string): void {
    this.#note = { state: 'preparing', fraction, message }
  }

  /** Releases the lock after success or an interruption; another process may start at once. */
  async release(): Promise<void> {
    clearInterval(this.#beat)
    await this.#writing
    await rm(join(this.#workDir, NOTE), { force: true })
  }

  /** Records a failure. The reason stays until the next attempt. */
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

/** Removes a lock file whose owner is dead or that records a failure. @returns True if the lock is free afterwards */
async function clearDeadNote(file: string): Promise<boolean> {
  const found = await stat(file).catch(() => undefined)
  if (!found) return true
  const text = await readFile(file, 'utf8').catch(() => '')
  const isSilent = Date.now() - found.mtimeMs > SILENCE_MS
  if (!isSilent && !text.startsWith('{"state":"failed"')) return false
  // If several processes rename the same file, then only one succeeds. Deleting it could hit the file of the next owner.
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

/** Writes a draft and renames it, so that a reader sees the old text or the new one. Errors are ignored here: the work itself reports a full disk. */
async function replaceFile(file: string, text: string): Promise<void> {
  const draft = `${file}.${randomUUID()}`
  await writeFile(draft, text, { mode: 0o600 })
    .then(() => rename(draft, file))
    .catch(() => rm(draft, { force: true }))
}
