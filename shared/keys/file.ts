import { readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { z } from 'zod'
import { giveToOwnerOf, makeDirectory, makePrivateFile } from '#shared/directory.ts'
import { newId } from '#shared/id.ts'
import { ApiKey, KEYS_MAX, type KeyStore } from './keys.ts'

/** Written by other versions too: what this one does not know stays as it is when the file is written again. */
const KeysFile = z.looseObject({ keys: z.array(ApiKey.loose()).max(KEYS_MAX) })
type KeysFile = z.infer<typeof KeysFile>

/** How long a writer waits for another one. A write takes milliseconds. */
const LOCK_TIMEOUT_MS = 5_000

/**
 * The keys in `keys.json` of the data directory, for the processes of one machine. The file may also be edited by hand;
 * without it there are no keys, and the next first key is made anew.
 *
 * A key with a field that this version does not know is not valid here, and `onProblem` hears of it whenever the file has
 * changed: it may be a limit, of a newer version or misspelt, which nobody would keep. All others are as valid as before.
 *
 * @param directory Made with the first key.
 */
export function openFileKeys(directory: string, onProblem: (problem: string) => void = () => undefined): KeyStore {
  return new FileKeys(join(directory, 'keys.json'), onProblem)
}

class FileKeys implements KeyStore {
  readonly name = 'file'
  readonly #path: string
  readonly #onProblem: (problem: string) => void
  #keys: readonly ApiKey[] = []
  /** What the file looked like when it was last read; undefined before. */
  #seen: string | undefined

  constructor(path: string, onProblem: (problem: string) => void) {
    this.#path = path
    this.#onProblem = onProblem
  }

  async list(): Promise<readonly ApiKey[]> {
    // Looked at before it is read: a change in between is seen next time. fs.watchFile misses what comes before its first look.
    const look = this.#look()
    if (look === this.#seen) return this.#keys
    this.#keys = this.#read().keys.flatMap((key) => this.#understood(key) ?? [])
    this.#seen = look
    return this.#keys
  }

  async create(key: ApiKey): Promise<void> {
    this.#change((keys) => {
      if (keys.some(({ id, hash }) => id === key.id || hash === key.hash)) throw new Error(`The key ${key.id} exists.`)
      if (keys.length >= KEYS_MAX) throw new Error(`${this.#path} holds ${KEYS_MAX} keys, which is the most.`)
      return [...keys, key]
    })
  }

  async createFirst(key: ApiKey): Promise<boolean> {
    if (this.#look()) return false
    return this.#change(() => (this.#look() ? undefined : [key]))
  }

  async revoke(id: string): Promise<ApiKey | undefined> {
    let revoked: ApiKey | undefined
    this.#change((keys) => {
      const found = keys.find((key) => key.id === id)
      revoked = found && { ...found, revoked: true }
      return found?.revoked === false ? keys.map((key) => (key === found && revoked ? revoked : key)) : undefined
    })
    return revoked
  }

  async close(): Promise<void> {}

  #look(): string {
    const stat = statSync(this.#path, { throwIfNoEntry: false })
    return stat ? `${stat.ino} ${stat.size} ${stat.mtimeMs} ${stat.ctimeMs}` : ''
  }

  /** @throws Error when the file is there and cannot be understood */
  #read(): KeysFile {
    try {
      return KeysFile.parse(JSON.parse(readFileSync(this.#path, 'utf8')))
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { keys: [] }
      const why = error instanceof z.ZodError ? z.prettifyError(error) : String(error)
      throw new Error(`${this.#path} cannot be used: ${why}`, { cause: error })
    }
  }

  #understood(key: KeysFile['keys'][number]): ApiKey | undefined {
    const parsed = ApiKey.safeParse(key)
    if (parsed.success) return parsed.data
    const why = parsed.error.issues.map(({ message }) => message).join('; ')
    this.#onProblem(`${this.#path}: the key ${key.id}: ${why}. It is not valid here until this is mended.`)
    return undefined
  }

  /** Replaces the keys by what `change` makes of them, while no other process does. @returns False where it made nothing */
  #change(change: (keys: readonly ApiKey[]) => readonly ApiKey[] | undefined): boolean {
    makeDirectory(dirname(this.#path))
    const unlock = lock(join(dirname(this.#path), 'keys.lock'))
    try {
      const file = this.#read()
      const keys = change(file.keys)
      if (keys) replaceFile(this.#path, `${JSON.stringify({ ...file, keys }, null, 2)}\n`)
      return keys !== undefined
    } finally {
      unlock()
    }
  }
}

/**
 * The kernel's lock on an empty database file: it ends with its process, however that dies, so it is never stale. Whoever
 * may read the file could hold it for good, so nobody else may.
 */
function lock(path: string): () => void {
  makePrivateFile(path)
  const db = new DatabaseSync(path, { timeout: LOCK_TIMEOUT_MS })
  try {
    db.exec('BEGIN EXCLUSIVE')
  } catch (error) {
    db.close()
    throw new Error(`Another process is changing the keys (${path}). Try again.`, { cause: error })
  }
  return () => db.close()
}

/** A reader sees the old text or the new one, never half of it; only the owner may read either. */
function replaceFile(path: string, text: string): void {
  const draft = `${path}.${newId('', 8)}`
  try {
    writeFileSync(draft, text, { mode: 0o600, flush: true })
    giveToOwnerOf(statSync(path, { throwIfNoEntry: false }) ? path : dirname(path), draft)
    renameSync(draft, path)
  } catch (error) {
    rmSync(draft, { force: true })
    throw error
  }
}
