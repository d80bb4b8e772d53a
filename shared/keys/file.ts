import { link, readFile, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { giveToOwnerOf, makeDirectory, makePrivateFile } from '#shared/config/directory.ts'
import { newId } from '#shared/lib/id.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { AUDIT_LIMIT_MAX, type AuditAction, type AuditEntry, SERVICE } from './audit.ts'
import {
  keyChanged,
  keyCreated,
  projectChanged,
  projectCreated,
  rotationAction,
  secretCreated,
  secretDeleted,
} from './audit-actions.ts'
import {
  type ApiKey,
  KEYS_MAX,
  type KeyChange,
  type KeyStore,
  PROJECTS_MAX,
  type Project,
  type ProjectChange,
} from './keys.ts'
import { KeysFile, type StoredKeys } from './keys-file.ts'
import { changed, readKnownVersion, type ValidKeys } from './lenient.ts'
import { randomSecret, SecretText, WEBHOOK_SECRETS_MAX, type WebhookSecret } from './webhook-secrets.ts'

/** Maximum wait for the lock, in ms. Another process holds the lock only while it writes, for some milliseconds. */
const LOCK_TIMEOUT_MS = 5_000

/**
 * Opens the key store in `keys.json` of the data directory, for the processes of one machine. Operators may edit the file by hand. If the file is
 * deleted, then the next start creates a new first key.
 *
 * @param directory Created when the first key is created
 * @param onProblem Called for each invalid key or project, whenever the file has changed
 */
export function openFileKeys(directory: string, onProblem: (problem: string) => void = () => undefined): KeyStore {
  return new FileKeys(new KeysFile(directory, lock), onProblem)
}

class FileKeys implements KeyStore {
  readonly name = 'file'
  readonly #file: KeysFile
  readonly #onProblem: (problem: string) => void
  #known: ValidKeys = { keys: [], projects: [] }
  #secrets: readonly WebhookSecret[] = []
  #seen: string | undefined

  constructor(file: KeysFile, onProblem: (problem: string) => void) {
    this.#file = file
    this.#onProblem = (problem) => onProblem(`${file.path}: ${problem}`)
  }

  async list(): Promise<readonly ApiKey[]> {
    return (await this.#load()).keys
  }

  async listProjects(): Promise<readonly Project[]> {
    return (await this.#load()).projects
  }

  async create(key: ApiKey, by = SERVICE): Promise<void> {
    this.#file.change(by, (kept) => ({ kept: this.#withKey(kept, key), action: keyCreated(key) }))
  }

  async createFirst(key: ApiKey): Promise<boolean> {
    if (this.#file.fingerprint()) return false
    const first = { kept: { keys: [key] }, action: keyCreated(key) }
    return this.#file.change(SERVICE, () => (this.#file.fingerprint() ? undefined : first))
  }

  async update(id: string, change: KeyChange, by = SERVICE): Promise<ApiKey | undefined> {
    return this.#changeKey(id, by, (key) => ({ change, action: keyChanged('key.updated', key, change) }))
  }

  async rotate(id: string, successor: ApiKey, endsAt: number, by = SERVICE): Promise<ApiKey | undefined> {
    const addSuccessor = (kept: StoredKeys) => this.#withKey(kept, successor)
    return this.#changeKey(id, by, (key) => rotationAction(key, successor, endsAt), addSuccessor)
  }

  async revoke(id: string, by = SERVICE): Promise<ApiKey | undefined> {
    const change = { revoked: true }
    return this.#changeKey(id, by, (key) => {
      return key.revoked ? undefined : { change, action: keyChanged('key.revoked', key, {}) }
    })
  }

  async createProject(project: Project, by = SERVICE): Promise<void> {
    this.#file.change(by, (kept) => {
      const { projects = [] } = kept
      if (projects.some(({ id }) => id === project.id)) throw new Error(`The project ${project.id} exists already.`)
      if (projects.length >= PROJECTS_MAX) throw new Error(full(this.#file.path, PROJECTS_MAX, 'projects'))
      return { kept: { ...kept, projects: [...projects, project] }, action: projectCreated(project) }
    })
  }

  async updateProject(id: string, change: ProjectChange, by = SERVICE): Promise<Project | undefined> {
    let now: Project | undefined
    this.#file.change(by, (kept) => {
      const found = kept.projects?.find((project) => project.id === id)
      if (!found) return undefined
      const next = changed(found, change)
      now = next as Project
      const projects = kept.projects?.map((project) => (project === found ? next : project))
      return { kept: { ...kept, projects }, action: projectChanged(id, change) }
    })
    return now
  }

  async webhookRoot(): Promise<string> {
    return await webhookRootIn(dirname(this.#file.path))
  }

  async listWebhookSecrets(project: string): Promise<readonly WebhookSecret[]> {
    await this.#load()
    return this.#secrets.filter((secret) => secret.project === project)
  }

  async createWebhookSecret(secret: WebhookSecret, first: WebhookSecret, by = SERVICE): Promise<boolean> {
    return this.#file.change(by, (kept) => {
      const { webhook_secrets: all = [] } = kept
      const own = all.filter(({ project }) => project === secret.project)
      if (own.length >= WEBHOOK_SECRETS_MAX) return undefined
      const added = own.length === 0 ? [first, secret] : [secret]
      return { kept: { ...kept, webhook_secrets: [...all, ...added] }, action: secretCreated(secret) }
    })
  }

  async deleteWebhookSecret(project: string, id: string, by = SERVICE): Promise<'deleted' | 'last' | 'none'> {
    let end: 'deleted' | 'last' | 'none' = 'none'
    this.#file.change(by, (kept) => {
      const { webhook_secrets: all = [] } = kept
      const own = all.filter((secret) => secret.project === project)
      const found = own.find((secret) => secret.id === id)
      end = !found ? 'none' : own.length > 1 ? 'deleted' : 'last'
      if (!found || end !== 'deleted') return undefined
      return { kept: { ...kept, webhook_secrets: all.filter((one) => one !== found) }, action: secretDeleted(found) }
    })
    return end
  }

  async listAudit(limit: number): Promise<AuditEntry[]> {
    return this.#file.audit(Math.min(limit, AUDIT_LIMIT_MAX))
  }

  async close(): Promise<void> {}

  async #load(): Promise<ValidKeys> {
    // The fingerprint is computed before the read. If the file changes during the read, then the next call finds another fingerprint and reads again.
    // Rejected alternative: `fs.watchFile`, which does not report changes before its first poll.
    const look = this.#file.fingerprint()
    if (look === this.#seen) return this.#known
    const { keys, projects = [], webhook_secrets = [] } = this.#file.read()
    const known = await runYielding(readKnownVersion(keys, projects, this.#onProblem))
    this.#secrets = webhook_secrets
    this.#known = known
    this.#seen = look
    return known
  }

  #withKey(kept: StoredKeys, key: ApiKey): StoredKeys {
    const { keys } = kept
    if (keys.some(({ id, hash }) => id === key.id || hash === key.hash))
      throw new Error(`The key ${key.id} exists already.`)
    if (keys.length >= KEYS_MAX) throw new Error(full(this.#file.path, KEYS_MAX, 'keys'))
    return { ...kept, keys: [...keys, key] }
  }

  /**
   * Changes one key while the lock is held.
   *
   * @param decide Returns the change, or undefined to change nothing
   * @param also A further change that is written together with the change of the key
   * @returns The key after the change
   */
  #changeKey(
    id: string,
    by: string,
    decide: (key: ApiKey) => { change: object; action: AuditAction } | undefined,
    also: (kept: StoredKeys) => StoredKeys = (kept) => kept,
  ): ApiKey | undefined {
    let now: ApiKey | undefined
    this.#file.change(by, (kept) => {
      const found = kept.keys.find((key) => key.id === id)
      now = found as ApiKey | undefined
      const decided = now && decide(now)
      if (!found || !decided) return undefined
      const next = changed(found, decided.change)
      now = next as ApiKey
      return {
        kept: also({ ...kept, keys: kept.keys.map((key) => (key === found ? next : key)) }),
        action: decided.action,
      }
    })
    return now
  }
}

/**
 * Takes an exclusive lock on an empty SQLite file. The kernel releases the lock when the process ends, even after a crash. The file is readable only
 * by the user of this process, because any other user who can read it could hold the lock forever.
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
  return `${path} has reached the maximum of ${most} ${what}.`
}

/**
 * Returns the secret in the file `webhook-root` of the data directory. Creates the file if it is missing. The file is readable only by the user of
 * this process. The secret is not stored in `keys.json`, because the existence of `keys.json` means that a key was created.
 *
 * @throws Error if the file does not contain a secret
 */
async function webhookRootIn(directory: string): Promise<string> {
  const path = join(directory, 'webhook-root')
  const secret = await readSecret(path).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error
    await createSecret(directory, path)
    return await readSecret(path)
  })
  if (SecretText.safeParse(secret).success) return secret
  throw new Error(
    `${path} contains no secret. Delete the file to create a new one; this changes all default webhook secrets.`,
  )
}

async function readSecret(path: string): Promise<string> {
  return (await readFile(path, 'utf8')).trim()
}

async function createSecret(directory: string, path: string): Promise<void> {
  const partial = join(directory, newId('.partial-'))
  makeDirectory(directory)
  await writeFile(partial, `${randomSecret()}\n`, { mode: 0o600 })
  giveToOwnerOf(directory, partial)
  try {
    await link(partial, path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    await rm(partial)
  }
}
