import { hash, randomBytes } from 'node:crypto'
import { z } from 'zod'
import { POOLS } from '#schemas/job.ts'
import { newId } from '#shared/lib/id.ts'
import type { AuditEntry } from './audit.ts'
import type { WebhookSecret, WebhookSecretSource } from './webhook-secrets.ts'

const Count = z.int().min(0)

/**
 * Limits of a project or a key, counted over all ingresses. A missing limit has the default of the settings. 0 allows nothing: no calls, or for
 * `request_bodies_seconds` no recorded bodies.
 */
export const Limits = z.strictObject({
  requests_per_minute: Count.optional().describe('Maximum calls per minute'),
  tokens_per_minute: Count.optional().describe('Maximum input and output tokens per minute'),
  running: Count.optional().describe('Maximum concurrent calls and durable jobs'),
  queued: Count.optional().describe('Maximum queued durable jobs'),
  scheduled: Count.optional().describe('Maximum scheduled durable jobs (run_at)'),
  budget_usd_per_month: z
    .number()
    .min(0)
    .optional()
    .describe('Maximum cost per UTC month, by the prices of models.yaml'),
  request_bodies_seconds: Count.optional().describe('Time for which the request log keeps the bodies of calls'),
})
export type Limits = z.infer<typeof Limits>

/** A project is the tenant: it owns jobs, idempotency keys, limits, usage and webhook secrets. A project may have many keys. */
export const Project = z.strictObject({
  id: z.string().min(1),
  name: z.string().optional().describe('Owner or purpose'),
  created_at: z.int().describe('Unix seconds'),
  limits: Limits.default({}),
})
export type Project = z.infer<typeof Project>

export interface ProjectChange {
  readonly name?: string | undefined
  readonly limits?: Limits
}

/** Maximum projects of one store. Every ingress holds all projects in memory. */
export const PROJECTS_MAX = 10_000

export function newProject({ id, name, limits = {} }: Partial<Pick<Project, 'id' | 'name' | 'limits'>> = {}): Project {
  const created_at = Math.floor(Date.now() / 1_000)
  return { id: id ?? newId('proj_', 16), ...(name !== undefined && { name }), created_at, limits }
}

/** Returns the id of a key's project. A key without a project is a tenant of its own, and its id is the project id. */
export function projectIdOf(key: { readonly id: string; readonly project?: string | undefined }): string {
  return key.project ?? key.id
}

export const KeyScope = z.enum(['calls', 'admin'])
export type KeyScope = z.infer<typeof KeyScope>

/** An API key as stored, with a hash of its secret instead of the secret. */
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

/** Maximum keys of one store, including revoked keys. Every ingress holds all keys in memory. */
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
 * 1. A resolved change is durable. Every process that uses the store reads the change with its next `list`.
 * 2. Concurrent writers do not overwrite each other's changes. A read never returns a partial write.
 * 3. Keys are never deleted, only revoked. A revoked key cannot be restored. Projects are never deleted.
 * 4. Each change adds one audit entry, which is stored forever. `by` is the author of the change. Default: `service` (`audit.ts`).
 * 5. If a key has a field that this version does not define, then the key is invalid. If a project has such a field, then all keys of the project are
 *    invalid. The field could be a limit, which this version would not enforce. The stored record stays unchanged.
 * 6. While the store is unreachable or unreadable, every read and every change rejects. Calls succeed again when the store is back.
 */
export interface KeyStore extends WebhookSecretSource {
  readonly name: string
  /**
   * Lists all keys, including revoked keys, oldest first. Callers poll every second: while the store is unchanged, the call is cheap and returns the
   * previous array.
   */
  list(): Promise<readonly ApiKey[]>
  /** Lists all created projects, oldest first. While the store is unchanged, the call returns the previous array, as {@link list} does. */
  listProjects(): Promise<readonly Project[]>
  /** @throws Error if the id or secret exists, or if there are {@link KEYS_MAX} keys */
  create(key: ApiKey, by?: string): Promise<void>
  /**
   * Adds the first key to a store that never had a key or a project. If several processes start at the same time, then only one of them adds a key.
   *
   * @returns True if this call added the key
   */
  createFirst(key: ApiKey): Promise<boolean>
  update(id: string, change: KeyChange, by?: string): Promise<ApiKey | undefined>
  /**
   * Adds the successor of a key and sets the expiry of the old key, atomically.
   *
   * @param endsAt Unix seconds. If the old key expires earlier, then its expiry is unchanged
   * @returns The old key. Undefined if it does not exist, in which case nothing is added
   * @throws Error as {@link create}
   */
  rotate(id: string, successor: ApiKey, endsAt: number, by?: string): Promise<ApiKey | undefined>
  /**
   * Revokes a key. A second call has no effect.
   *
   * @returns The key. Undefined if it does not exist
   */
  revoke(id: string, by?: string): Promise<ApiKey | undefined>
  /** @throws Error if the id exists, or if there are {@link PROJECTS_MAX} projects */
  createProject(project: Project, by?: string): Promise<void>
  updateProject(id: string, change: ProjectChange, by?: string): Promise<Project | undefined>
  /**
   * Adds a webhook secret to a project.
   *
   * @param first The secret that was derived for the project (`webhook-secrets.ts`). If the project has no stored secret yet, then the derived secret
   * is stored too, so that it stays valid
   * @returns False if the project already has {@link WEBHOOK_SECRETS_MAX} secrets
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

/** Creates a key with a random secret of 240 bits: `sk-` and 40 characters. `key` contains only a hash of the secret, so `secret` is shown once. */
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

/** Returns the SHA-256 of a secret, in hex. A fast hash is sufficient, because 240 random bits cannot be guessed. */
export function hashOf(secret: string): string {
  return hash('sha256', secret)
}

export interface LimitSettings {
  readonly rateLimitRequests: number
  readonly rateLimitTokens: number
  readonly concurrencyMaxPerKey: number
}

export type Owner = 'key' | 'project'

interface OwnedLimits {
  readonly owner: Owner
  readonly id: string
  readonly requests: number | undefined
  readonly tokens: number | undefined
  readonly running: number | undefined
  /** True if `running` also counts durable jobs, in addition to attached calls. This applies to projects, and to keys that belong to no project. */
  readonly countsJobs: boolean
}

/**
 * Returns the limits that apply to a call: those of its key, with defaults from the settings, and those of its project. The project's limits are
 * shared by all its keys.
 *
 * @param ofProject Returns the limits of a project. Undefined if it has none
 */
export function limitsOfKey(
  { id, project, limits = {} }: Pick<ApiKey, 'id' | 'project' | 'limits'>,
  settings: LimitSettings,
  ofProject?: (project: string) => Limits | undefined,
): OwnedLimits[] {
  const own: OwnedLimits = {
    owner: 'key',
    id,
    requests: limits.requests_per_minute ?? (settings.rateLimitRequests || undefined),
    tokens: limits.tokens_per_minute ?? (settings.rateLimitTokens || undefined),
    running: limits.running ?? (settings.concurrencyMaxPerKey || undefined),
    countsJobs: project === undefined && limits.running !== undefined,
  }
  const projectId = projectIdOf({ id, project })
  const { requests_per_minute: requests, tokens_per_minute: tokens, running } = ofProject?.(projectId) ?? {}
  return [own, { owner: 'project', id: projectId, requests, tokens, running, countsJobs: true }]
}

/**
 * Returns the effective limits of a key. An effective limit is the lower one of the key's limit (or its default) and the project's limit. All keys of
 * a project share the project's limit, so other keys may have used it up.
 *
 * @param ofProject Returns the limits of a project. Undefined if it has none
 */
export function effectiveLimits(
  key: Pick<ApiKey, 'id' | 'project' | 'limits'>,
  settings: LimitSettings,
  ofProject: (project: string) => Limits | undefined,
): Limits {
  const [own, project] = [key.limits ?? {}, ofProject(projectIdOf(key)) ?? {}]
  const owners = limitsOfKey(key, settings, ofProject)
  const all: Record<keyof Limits, readonly (number | undefined)[]> = {
    requests_per_minute: owners.map(({ requests }) => requests),
    tokens_per_minute: owners.map(({ tokens }) => tokens),
    running: owners.map(({ running }) => running),
    queued: [own.queued, project.queued],
    scheduled: [own.scheduled, project.scheduled],
    budget_usd_per_month: [own.budget_usd_per_month, project.budget_usd_per_month],
    request_bodies_seconds: [own.request_bodies_seconds, project.request_bodies_seconds],
  }
  const entries = Object.entries(all).map(
    ([name, found]) => [name, found.filter((limit) => limit !== undefined)] as const,
  )
  return Object.fromEntries(entries.flatMap(([name, set]) => (set.length > 0 ? [[name, Math.min(...set)]] : [])))
}

/**
 * Paths that the field `endpoints` of a key may contain. Every key may use jobs, files, batches and WebSockets, because the path of each call inside
 * them is checked when the call is submitted.
 */
export const KEY_ENDPOINTS: readonly string[] = [
  ...Object.values(POOLS).flatMap(({ scopes }) => scopes),
  '/v1/conversations',
  '/v1/models',
  '/v1/key',
  '/v1/usage',
  '/v1/history',
  '/v1/jobs',
  '/v1/files',
  '/v1/batches',
  '/v1/webhook-secrets',
  '/v1/ws',
]

/** Returns {@link KEY_ENDPOINTS} with the paths of extensions, which operators add. */
export function keyEndpointsWith(paths: readonly string[]): readonly string[] {
  return [...KEY_ENDPOINTS, ...paths.filter((path) => !coversPath(KEY_ENDPOINTS, path))]
}

/** Root of the admin API. Paths below it require the scope `admin` and ignore the `endpoints` of a key. */
export const ADMIN_PATH = '/v1/admin'

/** Whether a key has a scope. A key without a list of scopes has only `calls`. A key with the scope `admin` may read and change all projects. */
export function hasScope({ scopes = ['calls'] }: Pick<ApiKey, 'scopes'>, scope: KeyScope): boolean {
  return scopes.includes(scope)
}

export function coversPath(endpoints: readonly string[], path: string): boolean {
  return endpoints.some((endpoint) => path === endpoint || path.startsWith(`${endpoint}/`))
}
