import { DatabaseSync } from 'node:sqlite'
import { makePrivateFile } from '#shared/directory.ts'
import { AUDIT_LIMIT_MAX, type AuditEntry, type Deed, SERVICE } from './audit.ts'
import { keyChanged, keyCreated, projectChanged, projectCreated, rotation } from './deeds.ts'
import { type ApiKey, KEYS_MAX, type KeyChange, type KeyStore } from './keys.ts'
import { type Kept, KeysFile } from './keys-file.ts'
import { PROJECTS_MAX, type Project, type ProjectChange } from './project.ts'
import { changed, type Known, understoodOf } from './understood.ts'

/** How long a writer waits for another one. A write takes milliseconds. */
const LOCK_TIMEOUT_MS = 5_000

/**
 * The keys and projects in `keys.json` of the data directory, for the processes of one machine. The file may also be edited
 * by hand; without it there are no keys, and the next first key is made anew.
 *
 * @param directory Made with the first key.
 * @param onProblem Hears of what is not understood whenever the file has changed.
 */
export function openFileKeys(directory: string, onProblem: (problem: string) => void = () => undefined): KeyStore {
  return new FileKeys(new KeysFile(directory, lock), onProblem)
}

class FileKeys implements KeyStore {
  readonly name = 'file'
  readonly #file: KeysFile
  readonly #onProblem: (problem: string) => void
  #known: Known = { keys: [], projects: [] }
  /** What the file looked like when it was last read; undefined before. */
  #seen: string | undefined

  constructor(file: KeysFile, onProblem: (problem: string) => void) {
    this.#file = file
    this.#onProblem = (problem) => onProblem(`${file.path}: ${problem}`)
  }

  async list(): Promise<readonly ApiKey[]> {
    return this.#load().keys
  }

  async listProjects(): Promise<readonly Project[]> {
    return this.#load().projects
  }

  async create(key: ApiKey, by = SERVICE): Promise<void> {
    this.#file.change(by, (kept) => ({ kept: this.#withKey(kept, key), deed: keyCreated(key) }))
  }

  async createFirst(key: ApiKey): Promise<boolean> {
    if (this.#file.look()) return false
    const first = { kept: { keys: [key] }, deed: keyCreated(key) }
    return this.#file.change(SERVICE, () => (this.#file.look() ? undefined : first))
  }

  async update(id: string, change: KeyChange, by = SERVICE): Promise<ApiKey | undefined> {
    return this.#changeKey(id, by, (key) => ({ change, deed: keyChanged('key.updated', key, change) }))
  }

  async rotate(id: string, successor: ApiKey, endsAt: number, by = SERVICE): Promise<ApiKey | undefined> {
    const addSuccessor = (kept: Kept) => this.#withKey(kept, successor)
    return this.#changeKey(id, by, (key) => rotation(key, successor, endsAt), addSuccessor)
  }

  async revoke(id: string, by = SERVICE): Promise<ApiKey | undefined> {
    const change = { revoked: true }
    return this.#changeKey(id, by, (key) => {
      return key.revoked ? undefined : { change, deed: keyChanged('key.revoked', key, {}) }
    })
  }

  async createProject(project: Project, by = SERVICE): Promise<void> {
    this.#file.change(by, (kept) => {
      const { projects = [] } = kept
      if (projects.some(({ id }) => id === project.id)) throw new Error(`The project ${project.id} exists.`)
      if (projects.length >= PROJECTS_MAX) throw new Error(full(this.#file.path, PROJECTS_MAX, 'projects'))
      return { kept: { ...kept, projects: [...projects, project] }, deed: projectCreated(project) }
    })
  }

  async updateProject(id: string, change: ProjectChange, by = SERVICE): Promise<Project | undefined> {
    let now: Project | undefined
    this.#file.change(by, (kept) => {
      const found = kept.projects?.find((project) => project.id === id)
      if (!found) return undefined
      const next = changed(found, change)
      now = next
      const projects = kept.projects?.map((project) => (project === found ? next : project))
      return { kept: { ...kept, projects }, deed: projectChanged(id, change) }
    })
    return now
  }

  async listAudit(limit: number): Promise<AuditEntry[]> {
    return this.#file.audit(Math.min(limit, AUDIT_LIMIT_MAX))
  }

  async close(): Promise<void> {}

  #load(): Known {
    // Looked at before it is read: a change in between is seen next time. fs.watchFile misses what comes before its first look.
    const look = this.#file.look()
    if (look === this.#seen) return this.#known
    const { keys, projects = [] } = this.#file.read()
    this.#known = understoodOf(keys, projects, this.#onProblem)
    this.#seen = look
    return this.#known
  }

  #withKey(kept: Kept, key: ApiKey): Kept {
    const { keys } = kept
    if (keys.some(({ id, hash }) => id === key.id || hash === key.hash)) throw new Error(`The key ${key.id} exists.`)
    if (keys.length >= KEYS_MAX) throw new Error(full(this.#file.path, KEYS_MAX, 'keys'))
    return { ...kept, keys: [...keys, key] }
  }

  /** @param decide Gives the change of a key, if there is one. @param also Made in the same step. @returns The key as it is then */
  #changeKey(
    id: string,
    by: string,
    decide: (key: ApiKey) => { change: object; deed: Deed } | undefined,
    also: (kept: Kept) => Kept = (kept) => kept,
  ): ApiKey | undefined {
    let now: ApiKey | undefined
    this.#file.change(by, (kept) => {
      const found = kept.keys.find((key) => key.id === id)
      now = found as ApiKey | undefined
      const decided = now && decide(now)
      if (!found || !decided) return undefined
      const next = changed(found, decided.change)
      now = next as ApiKey
      return { kept: also({ ...kept, keys: kept.keys.map((key) => (key === found ? next : key)) }), deed: decided.deed }
    })
    return now
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

function full(path: string, most: number, what: string): string {
  return `${path} holds ${most} ${what}, which is the most.`
}
