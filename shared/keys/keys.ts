import { hash, randomBytes } from 'node:crypto'
import { z } from 'zod'
import { newId } from '#shared/lib/id.ts'
import type { AuditEntry } from './audit.ts'
import { Limits, type Project, type ProjectChange } from './project.ts'
import type { WebhookSecret, WebhookSecretSource } from './webhook-secrets.ts'

export const KeyScope = z.enum(['calls', 'admin'])
export type KeyScope = z.infer<typeof KeyScope>

/** An API key as it is stored: with a hash of its secret, but without the secret. */
export const ApiKey = z.strictObject({
  id: z.string().min(1),
  hash: z
    .string()
    .regex(/^[0-9a-f]{64}$/, 'must be the SHA-256 of the secret, in 64 lower-case hex digits')
    .describe('SHA-256 of the secret, hex'),
  hint: z.string().describe('Masked secret, such as sk-...abcd'),
  name: z.string().optional().describe('Owner or purpose'),
  created_at: z.int().describe('Unix seconds'),
  revoked: z.boolean().default(false),
  endpoints: z
    .array(z.string())
    .optional()
    .describe('Allowed endpoint paths, including all paths below each. Absent: all'),
  models: z.array(z.string()).optional().describe('Allowed model ids. Absent: all'),
  project: z.string().min(1).optional().describe('Project id. Absent: standalone key'),
  expires_at: z.int().min(0).optional().describe('Expiry, in Unix seconds. Absent: never'),
  scopes: z.array(KeyScope).optional().describe('Scopes. Absent: calls'),
  limits: Limits.optional().describe('Limits of this key, in addition to those of its project'),
})
export type ApiKey = z.infer<typeof ApiKey>

/** Maximum keys of one store, including revoked ones. Every ingress holds all keys in memory. */
export const KEYS_MAX = 10_000

export const FIRST_KEY_ID = 'key_first'

export interface KeyChange {
  readonly name?: string | undefined
  readonly endpoints?: string[] | undefined
  readonly models?: string[] | undefined
  readonly expires_at?: number | undefined
  readonly scopes?: KeyScope[] | undefined
  readonly limits?: Limits | undefined
}

/**
 * The key store port: API keys, projects and webhook secrets. Adapters: Postgres for several machines, `keys.json` for one.
 *
 * Guarantees of every adapter (test/shared/keys/keys.test.ts):
 * 1. A resolved change is durable. Every process that uses the store reads it with its next `list`.
 * 2. Concurrent writers do not overwrite each other's changes. A reader never sees a partial write.
 * 3. Keys are never deleted, only revoked, which is final. Projects are never deleted.
 * 4. Each change adds one audit entry, which is stored forever. `by` is its author (`audit.ts`); default: the service.
 * 5. If this version does not know a field of a key or project, then the key, or all keys of the project, are invalid. The field
 *    could be a limit, which this version would not enforce. The stored record stays unchanged.
 * 6. While the store is unreachable or unreadable, every call rejects. Calls succeed again when the store is back.
 */
export interface KeyStore extends WebhookSecretSource {
  readonly name: string
  /**
   * All keys including revoked ones, oldest first. The caller may call it every second: while the store is unchanged, the call is
   * cheap and returns the same array object.
   */
  list(): Promise<readonly ApiKey[]>
  /** All created projects, oldest first; unchanged projects are returned as the same array object, as by {@link list}. */
  listProjects(): Promise<readonly Project[]>
  /** @throws Error if the id or secret exists, or if there are {@link KEYS_MAX} keys */
  create(key: ApiKey, by?: string): Promise<void>
  /**
   * Adds the first key to a store that never had a key or a project. If several processes start at once, then only one adds a key.
   *
   * @returns Whether this call added the key
   */
  createFirst(key: ApiKey): Promise<boolean>
  update(id: string, change: KeyChange, by?: string): Promise<ApiKey | undefined>
  /**
   * Adds the successor of a key and sets the expiry of the old key, atomically.
   *
   * @param endsAt Unix seconds; the old key keeps its own expiry if that is earlier
   * @returns The old key; undefined if it does not exist, in which case nothing is added
   * @throws Error as {@link create}
   */
  rotate(id: string, successor: ApiKey, endsAt: number, by?: string): Promise<ApiKey | undefined>
  /** Revokes a key; idempotent. @returns The key; undefined if it does not exist */
  revoke(id: string, by?: string): Promise<ApiKey | undefined>
  /** @throws Error if the id exists, or if there are {@link PROJECTS_MAX} projects */
  createProject(project: Project, by?: string): Promise<void>
  updateProject(id: string, change: ProjectChange, by?: string): Promise<Project | undefined>
  /**
   * Adds a webhook secret to a project.
   *
   * @param first Derived secret of the project. If the project has no secret yet, it is stored first, so that it stays valid
   * @returns False if the project has {@link WEBHOOK_SECRETS_MAX} secrets
   */
  createWebhookSecret(secret: WebhookSecret, first: WebhookSecret, by?: string): Promise<boolean>
  deleteWebhookSecret(project: string, id: string, by?: string): Promise<'deleted' | 'last' | 'none'>
  listAudit(limit: number): Promise<AuditEntry[]>
  close(): Promise<void>
}

export interface KeyOptions {
  readonly id?: string
  readonly name?: string | undefined
  readonly endpoints?: readonly string[] | undefined
  readonly models?: readonly string[] | undefined
  readonly project?: string | undefined
  readonly expires_at?: number | undefined
  readonly scopes?: readonly KeyScope[] | undefined
  readonly limits?: Limits | undefined
}

/** Creates a key with a random secret of 240 bits: `sk-` and 40 characters. The key holds only a hash of the secret. */
export function newKey(options: KeyOptions = {}): { key: ApiKey; secret: string } {
  const secret = `sk-${randomBytes(30).toString('base64url')}`
  return { key: keyOf(secret, options), secret }
}

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

/** SHA-256 of a secret, in hex. A slow password hash is not needed, because 240 random bits cannot be guessed. */
export function hashOf(secret: string): string {
  return hash('sha256', secret)
}
