import { hash, randomBytes } from 'node:crypto'
import { z } from 'zod'
import { newId } from '#shared/lib/id.ts'
import type { AuditEntry } from './audit.ts'
import { Limits, type Project, type ProjectChange } from './project.ts'
import type { WebhookSecret, WebhookSecretSource } from './webhook-secrets.ts'

/** Permissions of a key: `calls` for the API, `admin` for the admin API. */
export const KeyScope = z.enum(['calls', 'admin'])
export type KeyScope = z.infer<typeof KeyScope>

/** An API key as it is stored. Only its owner has the secret. */
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

/** Maximum keys of one store, including revoked ones: every ingress holds all of them in memory. */
export const KEYS_MAX = 10_000

/** Id of the key that the first start creates. */
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
 * The key store port: API keys, projects and webhook secrets. Postgres for a fleet, `keys.json` by default.
 *
 * Promises every adapter keeps (test/shared/keys/keys.test.ts).
 * 1. A resolved change is durable, and every process that opened the same store sees it with its next `list`.
 * 2. Concurrent writers do not overwrite each other. A reader never sees a partial write.
 * 3. Keys are never deleted, only revoked, which is final. Projects are never deleted.
 * 4. Each change adds one audit entry, which is stored forever. `by` is its author (`audit.ts`); default: the service.
 * 5. A key or project with a field that this version does not support is invalid here, and so are the keys of such a project. The field could be a
 *    limit that this version would not enforce. The stored record stays unchanged.
 * 6. While the store is unreachable or unreadable, every call rejects. Calls succeed again when the store is back.
 */
export interface KeyStore extends WebhookSecretSource {
  readonly name: string
  /**
   * All keys including revoked ones, oldest first. Cheap enough to be called each second: while the store is unchanged, the call
   * returns the same array object.
   */
  list(): Promise<readonly ApiKey[]>
  /** All created projects, oldest first; a key without a project is not listed. As cheap as {@link list}. */
  listProjects(): Promise<readonly Project[]>
  /** Adds a key. @throws Error if its id or secret exists, or at {@link KEYS_MAX} */
  create(key: ApiKey, by?: string): Promise<void>
  /**
   * Adds the first key to a store that never had a key or a project. If several processes start at once, then one succeeds.
   *
   * @returns Whether this call added the key.
   */
  createFirst(key: ApiKey): Promise<boolean>
  /** Changes a key. @returns The changed key; undefined if it does not exist */
  update(id: string, change: KeyChange, by?: string): Promise<ApiKey | undefined>
  /**
   * Adds the successor of a key and sets the expiry of the old one, atomically.
   *
   * @param endsAt Unix seconds; an earlier expiry of the old key stays.
   * @returns The old key; undefined if it does not exist, and then nothing is added.
   * @throws Error as {@link create}
   */
  rotate(id: string, successor: ApiKey, endsAt: number, by?: string): Promise<ApiKey | undefined>
  /** Revokes a key. A second call changes nothing. @returns The key; undefined if it does not exist */
  revoke(id: string, by?: string): Promise<ApiKey | undefined>
  /** Adds a project. @throws Error if its id exists, or at {@link PROJECTS_MAX} */
  createProject(project: Project, by?: string): Promise<void>
  /** Changes a project. @returns The changed project; undefined if it does not exist */
  updateProject(id: string, change: ProjectChange, by?: string): Promise<Project | undefined>
  /**
   * Adds a webhook secret to a project.
   *
   * @param first Stored before `secret` if the project has none: the derived secret stays valid.
   * @returns False if the project has {@link WEBHOOK_SECRETS_MAX} secrets
   */
  createWebhookSecret(secret: WebhookSecret, first: WebhookSecret, by?: string): Promise<boolean>
  /** Deletes a webhook secret of a project, unless it is the last one. */
  deleteWebhookSecret(project: string, id: string, by?: string): Promise<'deleted' | 'last' | 'none'>
  /** The latest audit entries, newest first. @param limit Up to `AUDIT_LIMIT_MAX` */
  listAudit(limit: number): Promise<AuditEntry[]>
  /** Closes all connections. Idempotent. */
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

/** SHA-256 of a secret, hex. A slow password hash is not needed: 240 random bits cannot be searched. */
export function hashOf(secret: string): string {
  return hash('sha256', secret)
}
