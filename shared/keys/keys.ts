import { hash, randomBytes } from 'node:crypto'
import { z } from 'zod'
import { newId } from '#shared/id.ts'
import type { AuditEntry } from './audit.ts'
import { Limits, type Project, type ProjectChange } from './project.ts'
import type { WebhookSecret, WebhookSecretSource } from './webhook-secrets.ts'

/** What a key is for: `calls` to the API; `admin`, the operator's door. */
export const KeyScope = z.enum(['calls', 'admin'])
export type KeyScope = z.infer<typeof KeyScope>

/** An API key as it is kept: its secret is known to its owner only. */
export const ApiKey = z.strictObject({
  id: z.string().min(1),
  hash: z
    .string()
    .regex(/^[0-9a-f]{64}$/, 'must be the SHA-256 of the secret, in 64 lower-case hex digits')
    .describe('SHA-256 of the secret, hex'),
  hint: z.string().describe('The secret as it may be shown: sk-...abcd'),
  name: z.string().optional().describe('Whose or what for, for people'),
  created_at: z.int().describe('Unix seconds'),
  revoked: z.boolean().default(false),
  endpoints: z.array(z.string()).optional().describe('Paths the key may call, with those below them; absent: all'),
  models: z.array(z.string()).optional().describe('Models the key may use; absent: all'),
  project: z.string().min(1).optional().describe('Whose it is; absent: the key is a project of its own'),
  expires_at: z.int().min(0).optional().describe('Unix seconds from which it is not valid; absent: never'),
  scopes: z.array(KeyScope).optional().describe('What it is for; absent: calls'),
  limits: Limits.optional().describe('Of this key alone, beside those of its project'),
})
export type ApiKey = z.infer<typeof ApiKey>

/** Keys one store holds, revoked ones included: every ingress keeps them all in memory. */
export const KEYS_MAX = 10_000

/** The id of the key that is made on the first run. */
export const FIRST_KEY_ID = 'key_first'

/** A change of a key: what is there replaces what the key has, and undefined takes it away. */
export interface KeyChange {
  readonly name?: string | undefined
  readonly endpoints?: string[] | undefined
  readonly models?: string[] | undefined
  readonly expires_at?: number | undefined
  readonly scopes?: KeyScope[] | undefined
  readonly limits?: Limits | undefined
}

/**
 * The key store port: where API keys and their projects are kept. Tables of Postgres for a fleet, `keys.json` by default.
 *
 * Promises every adapter keeps (test/shared/keys/keys.test.ts):
 * - What is resolved is kept, and every process that opened the same store sees it with its next `list`.
 * - Writers that write at once do not undo each other; a reader never sees half a write.
 * - A key is never deleted, only revoked, and stays so. A project is never deleted.
 * - Each change leaves one entry in the audit, which is kept for good. `by` says whose it is (`audit.ts`); default: the service.
 * - A key or project with what this version does not know is not valid here, nor are the keys of such a project: it may be a
 *   limit, which nobody would keep. It stays as it is.
 * - While the store cannot be reached or understood every call rejects; it works again by itself when the store does.
 */
export interface KeyStore extends WebhookSecretSource {
  /** For messages: `file` or `postgres`. */
  readonly name: string
  /** Every key, revoked ones too, oldest first. Cheap to call each second: the same list again while nothing changed. */
  list(): Promise<readonly ApiKey[]>
  /** Every project that was made, oldest first; not those that a key without project is. As cheap. */
  listProjects(): Promise<readonly Project[]>
  /** Adds a key. @throws Error when its id or secret is there already, or at {@link KEYS_MAX} */
  create(key: ApiKey, by?: string): Promise<void>
  /**
   * Adds the first key, to a store that never had a key or a project. Of several processes that start at once one wins.
   *
   * @returns Whether this call added it.
   */
  createFirst(key: ApiKey): Promise<boolean>
  /** Changes a key and gives it; undefined when there is none. */
  update(id: string, change: KeyChange, by?: string): Promise<ApiKey | undefined>
  /**
   * Adds the key that takes the place of another, which ends at a time, or earlier where it would have ended: both or neither.
   *
   * @param endsAt Unix seconds.
   * @returns The old key; undefined when there is none, and nothing was added
   * @throws Error as {@link create}
   */
  rotate(id: string, successor: ApiKey, endsAt: number, by?: string): Promise<ApiKey | undefined>
  /** Revokes a key and gives it; undefined when there is none. A second time changes nothing. */
  revoke(id: string, by?: string): Promise<ApiKey | undefined>
  /** Adds a project. @throws Error when its id is there already, or at {@link PROJECTS_MAX} */
  createProject(project: Project, by?: string): Promise<void>
  /** Changes a project and gives it; undefined when there is none. */
  updateProject(id: string, change: ProjectChange, by?: string): Promise<Project | undefined>
  /**
   * Gives a project one more webhook secret.
   *
   * @param first Given to it before, where it has none: what has signed so far goes on.
   * @returns False where it has as many as it may
   */
  createWebhookSecret(secret: WebhookSecret, first: WebhookSecret, by?: string): Promise<boolean>
  /** Takes a webhook secret away from a project, unless it is its last one. */
  deleteWebhookSecret(project: string, id: string, by?: string): Promise<'deleted' | 'last' | 'none'>
  /** The last changes, newest first. @param limit Most of them, up to `AUDIT_LIMIT_MAX` */
  listAudit(limit: number): Promise<AuditEntry[]>
  /** Lets go of everything. Tolerates a second call. */
  close(): Promise<void>
}

/** What a key may do, what it is called, and whose it is: fields of {@link ApiKey}. */
export interface KeyOptions {
  /** Default: a random one. */
  readonly id?: string
  readonly name?: string | undefined
  readonly endpoints?: readonly string[] | undefined
  readonly models?: readonly string[] | undefined
  readonly project?: string | undefined
  /** Unix seconds. */
  readonly expires_at?: number | undefined
  readonly scopes?: readonly KeyScope[] | undefined
  readonly limits?: Limits | undefined
}

/** Makes a key with a random secret of 240 bits, `sk-` and 40 characters. Only its hash is part of the key. */
export function newKey(options: KeyOptions = {}): { key: ApiKey; secret: string } {
  const secret = `sk-${randomBytes(30).toString('base64url')}`
  return { key: keyOf(secret, options), secret }
}

/** The key that belongs to a secret. */
export function keyOf(secret: string, options: KeyOptions = {}): ApiKey {
  const { id, name, endpoints, models, project, expires_at, scopes, limits } = options
  return {
    id: id ?? newId('key_', 16),
    hash: hashOf(secret),
    hint: `sk-...${secret.slice(-4)}`,
    ...(name !== undefined && { name }),
    created_at: Math.floor(Date.now() / 1_000),
    revoked: false,
    ...(endpoints && { endpoints: [...endpoints] }),
    ...(models && { models: [...models] }),
    ...(project !== undefined && { project }),
    ...(expires_at !== undefined && { expires_at }),
    ...(scopes && { scopes: [...scopes] }),
    ...(limits && { limits }),
  }
}

/** What is kept of a secret. It has enough entropy that a plain SHA-256 of it cannot be searched. */
export function hashOf(secret: string): string {
  return hash('sha256', secret)
}
