import { randomUUID } from 'node:crypto'
import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

/*
 * One file says that a preparation runs, how far it is, or why the last one failed. Its owner writes it again every
 * second; when it is silent the owner is dead and anyone may take over. One race is left: two processes find the same
 * dead owner, and the slower one buries the quicker one's new file. Then both work, and one of them finds its files
 * moved away by the other: who fails looks first whether the weights are there after all.
 */

const NOTE = 'state.json'
const BEAT_MS = 1_000
const SILENCE_MS = 15_000

/** What the file says. */
type Note =
  | { state: 'preparing'; fraction: number; message: string }
  | { state: 'failed'; reason: string; atMs: number }

/** The state of a preparation in `workDir`; undefined when none runs and none failed. */
export async function readNote(workDir: string): Promise<Note | undefined> {
  try {
    const file = join(workDir, NOTE)
    const note = JSON.parse(await readFile(file, 'utf8')) as Note
    const isSilent = Date.now() - (await stat(file)).mtimeMs > SILENCE_MS
    return note.state === 'preparing' && isSilent ? undefined : note
  } catch {
    // Not there, or being written for the first time: a caller that needs to know tries to take the lock.
    return undefined
  }
}

/** The right to prepare, held by one process. Ends with release or fail. */
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

  /** Takes the lock; undefined when a living process holds it or is just taking it. */
  static async take(workDir: string): Promise<PreparationLock | undefined> {
    const file = join(workDir, NOTE)
    if (!(await clearDeadNote(file))) return undefined
    const first: Note = { state: 'preparing', fraction: 0, message: 'starting' }
    try {
      await writeFile(file, JSON.stringify(first), { flag: 'wx', mode: 0o600 })
    } catch (error) {
      // ENOENT: whoever was done first has cleared the directory away.
      if (isCode(error, 'EEXIST') || isCode(error, 'ENOENT')) return undefined
      throw error
    }
    return new PreparationLock(workDir)
  }

  /** Says how far the work is; written with the next beat. */
  note(fraction: number, message: string): void {
    this.#note = { state: 'preparing', fraction, message }
  }

  /** The work is done, or was interrupted: the next one may start at once. */
  async release(): Promise<void> {
    clearInterval(this.#beat)
    await this.#writing
    await rm(join(this.#workDir, NOTE), { force: true })
  }

  /** The work failed: the reason stays until the next try. */
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

/** Removes a note that locks nothing. False: somebody prepares, or was quicker. */
async function clearDeadNote(file: string): Promise<boolean> {
  const found = await stat(file).catch(() => undefined)
  if (!found) return true
  const text = await readFile(file, 'utf8').catch(() => '')
  const isSilent = Date.now() - found.mtimeMs > SILENCE_MS
  if (!isSilent && !text.startsWith('{"state":"failed"')) return false
  // Of those who rename the same file only one succeeds; removing it could hit the next owner's.
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

/** A reader sees the old text or the new one, never half of it. A full disk is found by the work itself. */
async function replaceFile(file: string, text: string): Promise<void> {
  const draft = `${file}.${randomUUID()}`
  await writeFile(draft, text, { mode: 0o600 })
    .then(() => rename(draft, file))
    .catch(() => rm(draft, { force: true }))
}
