import { timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { WireFormat } from '#services/ingress/body/body.ts'
import type { RemainingLimit } from '#shared/capacity/rate-limits.ts'
import type { AuditEntry } from '#shared/keys/audit.ts'
import {
  type ApiKey,
  coversPath,
  FIRST_KEY_ID,
  hashOf,
  hasScope,
  type KeyScope,
  type KeyStore,
  keyOf,
  type Limits,
  newKey,
  projectIdOf,
} from '#shared/keys/keys.ts'
import type { ValidKeys } from '#shared/keys/lenient.ts'
import { type WebhookSecret, webhookSecretsOf } from '#shared/keys/webhook-secrets.ts'
import { untilAligned } from '#shared/lib/aligned-interval.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Log } from '#shared/log/log.ts'

const IDS_MAX = 20

const NEW_KEY = 'Ask the operator of the service for a key. Operators run npx sluice keys create, or use the console.'

type OnEnd = (error: ServiceError) => void

/**
 * Interval in ms at which keys are read from the store. A revoked key stops working within the interval plus one query.
 * Expiry times are checked at the same interval, because a timer per key would be wrong after a clock change.
 */
const REFRESH_MS = 1_000
const NO_LIMITS: Limits = {}
export const FIXED_KEY_ID = 'key_env'
const FIRST_KEY_SCOPES = { scopes: ['calls', 'admin'] satisfies KeyScope[] }

/**
 * API keys that this ingress accepts: those of the key store, and SLUICE_API_KEY.
 *
 * Calls never wait for the store, because keys are read every {@link REFRESH_MS} and cached. If the store is
 * unreachable, then the cached keys stay valid.
 */
export class ApiKeys {
  readonly #store: KeyStore
  readonly #fixed: ApiKey | undefined
  readonly #log: Log
  #created: string | undefined
  #known: ValidKeys | undefined
  #limits = new Map<string, Limits>()
  #alone = new Map<string, Limits>()
  #inProjects = new Map<string, Limits>()
  #byHash = new Map<string, ApiKey>()
  readonly #watchers = new Map<string, Set<OnEnd>>()
  #timer: NodeJS.Timeout | undefined
  #isStale = false
  #isClosed = false

  /**
   * Reads the keys. If no key was ever created and SLUICE_API_KEY is unset, then a random key is created and stored.
   *
   * @param store Closed when this object is closed, or if reading the keys fails
   * @param fixedSecret Value of SLUICE_API_KEY, which is always valid and never stored
   * @param isAdmin Whether the first key, fixed or created, has the scope `admin`
   * @throws The store's error if the store cannot be reached or read
   */
  static async open(store: KeyStore, fixedSecret: string | undefined, log: Log, isAdmin = false): Promise<ApiKeys> {
    const scopes = isAdmin ? FIRST_KEY_SCOPES : {}
    const fixed = fixedSecret === undefined ? undefined : keyOf(fixedSecret, { id: FIXED_KEY_ID, ...scopes })
    const keys = new ApiKeys(store, fixed, log)
    try {
      if (!fixed) await keys.#createFirst(scopes)
      await keys.#load()
    } catch (error) {
      await store.close()
      throw error
    }
    keys.#refreshLater()
    return keys
  }

  private constructor(store: KeyStore, fixed: ApiKey | undefined, log: Log) {
    this.#store = store
    this.#log = log
    this.#fixed = fixed
  }

  get created(): string | undefined {
    return this.#created
  }

  /**
   * Returns the key that has the given secret. Undefined if there is none, or if the key was revoked or has expired. Keys are found by the hash of
   * the secret, and the comparison takes constant time.
   */
  find(secret: string): ApiKey | undefined {
    const key = this.#withSecret(secret)
    return key && !endOf(key) ? key : undefined
  }

  get(secret: string): ApiKey {
    const key = this.#withSecret(secret)
    const end = key
      ? endOf(key)
      : new ServiceError('invalid_api_key', `Incorrect API key provided: ${mask(secret)}. ${NEW_KEY}`)
    if (!key || end) throw end
    return key
  }

  /**
   * Calls `onEnd` once when the key is revoked, deleted or expires. Needed for open connections, which may last for
   * hours after their key was checked.
   *
   * @param key Valid key, from {@link find}
   * @returns A function that ends the watch. Each caller must call it, because otherwise the callback stays in memory until the key ends
   */
  watch({ hash }: ApiKey, onEnd: OnEnd): () => void {
    const watchers = this.#watchers.get(hash) ?? new Set()
    this.#watchers.set(hash, watchers.add(onEnd))
    return () => {
      watchers.delete(onEnd)
      if (watchers.size === 0 && this.#watchers.get(hash) === watchers) this.#watchers.delete(hash)
    }
  }

  readonly limitsOf = (projectId: string): Limits => this.#limits.get(projectId) ?? NO_LIMITS

  readonly limitsOfTenant = (tenant: string): Limits => this.#limits.get(tenant) ?? this.#alone.get(tenant) ?? NO_LIMITS

  readonly limitsOfKey = (id: string): Limits => this.#inProjects.get(id) ?? NO_LIMITS

  limited(id: string, project: string): Pick<ApiKey, 'id' | 'project' | 'limits'> {
    // A key without a project acts as a project with the same id, so only the limits of that project apply.
    if (id === project) return { id, limits: this.limitsOfTenant(id) }
    return { id, project, limits: this.limitsOfKey(id) }
  }

  get known(): ValidKeys {
    return { keys: [...this.#byHash.values()], projects: this.#known?.projects ?? [] }
  }

  async fresh(): Promise<ValidKeys> {
    await this.#load()
    return this.known
  }

  /**
   * Runs a change of the key store, then reads the keys again. This process therefore refuses a revoked key at once. Other
   * processes refuse the key within {@link REFRESH_MS}.
   *
   * @throws The store's error
   */
  async change<T>(work: (store: KeyStore) => Promise<T>): Promise<T> {
    const result = await work(this.#store)
    await this.#load()
    this.#reportEnds()
    return result
  }

  listAudit(limit: number): Promise<AuditEntry[]> {
    return this.#store.listAudit(limit)
  }

  webhookSecretsOf(projectId: string): Promise<readonly WebhookSecret[]> {
    return webhookSecretsOf(this.#store, projectId)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    clearTimeout(this.#timer)
    await this.#store.close()
  }

  async #createFirst(scopes: Pick<ApiKey, 'scopes'>): Promise<void> {
    const { key, secret } = newKey({ id: FIRST_KEY_ID, ...scopes })
    if (await this.#store.createFirst(key)) this.#created = secret
  }

  async #load(): Promise<void> {
    const before = this.#known
    const known = { keys: await this.#store.list(), projects: await this.#store.listProjects() }
    // If no key or project has changed, then the store returns the same two arrays as before, and the maps below need not be rebuilt.
    if (known.keys === before?.keys && known.projects === before.projects) return
    this.#known = known
    const keys = this.#fixed ? [this.#fixed, ...known.keys] : known.keys
    this.#byHash = new Map(keys.map((key) => [key.hash, key]))
    const alone = keys.flatMap(({ id, project, limits }) => (project === undefined && limits ? [{ id, limits }] : []))
    const inProjects = keys.flatMap(({ id, project, limits }) => (project && limits ? [[id, limits] as const] : []))
    this.#inProjects = new Map(inProjects)
    this.#limits = new Map(known.projects.map(({ id, limits }) => [id, limits]))
    this.#alone = new Map(alone.map(({ id, limits }) => [id, limits]))
    if (before) this.#log.info(await runYielding(keyChanges(before, known)), 'API keys changed')
  }

  #withSecret(secret: string): ApiKey | undefined {
    const hash = hashOf(secret)
    const key = this.#byHash.get(hash)
    return key && timingSafeEqual(Buffer.from(key.hash), Buffer.from(hash)) ? key : undefined
  }

  #reportEnds(): void {
    for (const [hash, watchers] of this.#watchers) {
      const key = this.#byHash.get(hash)
      const end = key ? endOf(key) : revoked()
      if (!end) continue
      this.#watchers.delete(hash)
      for (const onEnd of watchers) onEnd(end)
    }
  }

  #refreshLater(): void {
    if (this.#isClosed) return
    this.#timer = setTimeout(() => void this.#refresh(), untilAligned(REFRESH_MS)).unref()
  }

  async #refresh(): Promise<void> {
    try {
      await this.#load()
      if (this.#isStale) this.#log.info({ key_store: this.#store.name }, 'key store readable again')
      this.#isStale = false
    } catch (error) {
      // Only the first failure is logged, because an outage may last for hours.
      if (!this.#isStale && !this.#isClosed)
        this.#log.error(
          { err: error, key_store: this.#store.name },
          'key store could not be read; the last known keys apply until a read succeeds',
        )
      this.#isStale = true
    }
    // Keys also expire while the store is unreachable. Connections of expired keys are therefore closed after a failed read too.
    this.#reportEnds()
    this.#refreshLater()
  }
}

/**
 * Finds the key of a request: `Authorization: Bearer` or `x-api-key`, on every endpoint (docs/internals/protocol.md,
 * Authentication). If both are present, then the header that the API of the endpoint uses takes precedence.
 *
 * @throws ServiceError `missing_api_key`, `invalid_api_key`
 */
export function authenticate({ headers }: Pick<IncomingMessage, 'headers'>, keys: ApiKeys, format: WireFormat): ApiKey {
  const bearer = /^bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
  const header = headers['x-api-key']?.toString() || undefined
  const secret = format === 'anthropic' ? (header ?? bearer) : (bearer ?? header)
  if (!secret) {
    const how = format === 'anthropic' ? 'the x-api-key header' : 'the header Authorization: Bearer YOUR_KEY'
    throw new ServiceError('missing_api_key', `You didn't provide an API key. Send it in ${how}. ${NEW_KEY}`)
  }
  return keys.get(secret)
}

/**
 * @param scope Scope that the key must have. Unless the scope is `admin`, the key must also be allowed to call the
 * endpoint.
 * @throws ServiceError `permission_denied` if the key lacks the scope or the endpoint
 */
export function authorize(key: ApiKey, path: string, scope: KeyScope | 'any' = 'calls'): void {
  if (scope !== 'any' && !hasScope(key, scope)) throw lacksScope(scope)
  // Every key may call /v1/key. A request for jobs, files, batches or a WebSocket can contain calls of several
  // endpoints. Each of these calls is checked when it is submitted.
  if (scope !== 'admin' && !/^\/v1\/((jobs|files|batches|admin\/requests)($|\/)|(ws|key)$)/.test(path))
    requireEndpoint(key, path)
}

function lacksScope(scope: KeyScope): ServiceError {
  const how = `Ask the operator of the service for a key with this scope. An operator creates one where the service runs: npx sluice keys create --scopes ${scope}`
  return new ServiceError(
    'permission_denied',
    `This API key lacks the scope '${scope}', which this endpoint requires. ${how}`,
  )
}

export function requireEndpoint(key: ApiKey, path: string): void {
  if (!key.endpoints || coversPath(key.endpoints, path)) return
  const may =
    key.endpoints.length > 0
      ? `Allowed endpoints: ${key.endpoints.join(', ')}.`
      : 'This key is not allowed to call any endpoint.'
  throw new ServiceError('permission_denied', `This API key may not call ${path}. ${may}`)
}

function endOf({ revoked: isRevoked, expires_at }: ApiKey): ServiceError | undefined {
  if (isRevoked) return revoked()
  if (expires_at === undefined || Date.now() < expires_at * 1_000) return undefined
  const when = new Date(expires_at * 1_000).toISOString().replace('.000', '')
  return new ServiceError('invalid_api_key', `This API key expired on ${when}.`)
}

function revoked(): ServiceError {
  return new ServiceError('invalid_api_key', 'This API key was revoked.')
}

function mask(secret: string): string {
  return secret.length < 12 ? '***' : `${secret.slice(0, 3)}...${secret.slice(-4)}`
}

type What = 'created' | 'gone' | 'revoked' | 'changed' | 'projects'

function* keyChanges(before: ValidKeys, after: ValidKeys): Generator<undefined, Record<string, string[] | number>> {
  const found = new Map<What, string[]>()
  const note = (what: What, id: string) => {
    const ids = found.get(what)
    if (ids) ids.push(id)
    else found.set(what, [id])
  }
  for (const [old, now] of pairs(before.keys, after.keys)) {
    const id = String((now ?? old)?.id)
    if (!old) note('created', id)
    else if (!now) note('gone', id)
    else if (now.revoked && !old.revoked) note('revoked', id)
    else if (!isSame(old, now)) note('changed', id)
    yield
  }
  for (const [old, now] of pairs(before.projects, after.projects)) {
    if (!isSame(old, now)) note('projects', String((now ?? old)?.id))
    yield
  }
  return Object.fromEntries([...found].flatMap(([what, ids]) => fieldsOf(what, ids)))
}

function pairs<T extends { readonly id: string }>(
  before: readonly T[],
  after: readonly T[],
): Iterable<[old: T | undefined, now: T | undefined]> {
  const byId = new Map<string, [T | undefined, T | undefined]>()
  for (const old of before) byId.set(old.id, [old, undefined])
  for (const now of after) byId.set(now.id, [byId.get(now.id)?.[0], now])
  return byId.values()
}

function isSame(one: object | undefined, other: object | undefined): boolean {
  return JSON.stringify(one) === JSON.stringify(other)
}

function fieldsOf(what: string, ids: string[]): [string, string[] | number][] {
  if (ids.length <= IDS_MAX) return [[what, ids]]
  return [
    [what, ids.slice(0, IDS_MAX)],
    [`${what}_count`, ids.length],
  ]
}

const SHOWN_MAX = 10

/**
 * Returns the id of a project that an operator gave by id or name. If one project has the text as its id and another as
 * its name, then the id takes precedence.
 *
 * A key without a project counts as a project of its own. A text with the form of an id is accepted even if no project
 * has this id. The jobs and usage of a deleted project may still be stored. Any other text must be the name of
 * exactly one project.
 *
 * @throws ServiceError `invalid_value` if the text is neither an id nor the name of exactly one project
 */
export function projectIdNamed(known: ValidKeys, text: string): string {
  const names = namesById(known)
  if (names.has(text)) return text
  const ids = [...names].flatMap(([id, name]) => (name === text ? [id] : []))
  const [id, second] = ids
  if (id !== undefined && second === undefined) return id
  if (second !== undefined) {
    const all = ids.slice(0, SHOWN_MAX).join(', ')
    throw refusal(`${ids.length} projects have the name '${text}': ${all}. Use the id of one.`)
  }
  if (/^(proj|key)_[-\w]+$/.test(text)) return text
  throw refusal(`No project '${text}' exists. ${knownProjects(names, text)}`)
}

function namesById({ keys, projects }: ValidKeys): Map<string, string | undefined> {
  const names = new Map<string, string | undefined>()
  for (const key of keys) names.set(projectIdOf(key), key.project === undefined ? key.name : undefined)
  for (const { id, name } of projects) names.set(id, name)
  return names
}

function knownProjects(names: ReadonlyMap<string, string | undefined>, text: string): string {
  const labels = new Map([...names].map(([id, name]) => (name === undefined ? [id, id] : [name, `${name} (${id})`])))
  const shown = similarNameOf(text, [...labels.keys()]).slice(0, SHOWN_MAX)
  const more = labels.size - shown.length
  return `Known projects: ${shown.map(({ name }) => labels.get(name)).join(', ')}${more > 0 ? `, and ${more} more` : ''}.`
}

function refusal(message: string): ServiceError {
  return new ServiceError('invalid_value', message, { param: 'project' })
}

interface HeaderTarget {
  setHeader(name: string, value: string): unknown
}

/**
 * Sets the rate-limit headers (docs/internals/protocol.md, Headers). If several limits of one kind apply, then the headers show the limit with the
 * lowest remainder.
 */
export function setLimitHeaders(res: HeaderTarget, format: WireFormat, all: readonly RemainingLimit[]): void {
  for (const kind of ['tokens', 'requests'] as const) {
    const [tightest] = all
      .filter((left) => left.kind === kind)
      .toSorted((a, b) => a.remaining - b.remaining || b.resetMs - a.resetMs)
    if (tightest) setLimitHeader(res, format, tightest)
  }
}

function setLimitHeader(
  res: HeaderTarget,
  format: WireFormat,
  { kind, limit, remaining, resetMs }: RemainingLimit,
): void {
  if (format === 'anthropic') {
    res.setHeader(`anthropic-ratelimit-${kind}-limit`, String(limit))
    res.setHeader(`anthropic-ratelimit-${kind}-remaining`, String(remaining))
    res.setHeader(`anthropic-ratelimit-${kind}-reset`, new Date(Date.now() + resetMs).toISOString())
  } else {
    res.setHeader(`x-ratelimit-limit-${kind}`, String(limit))
    res.setHeader(`x-ratelimit-remaining-${kind}`, String(remaining))
    res.setHeader(`x-ratelimit-reset-${kind}`, resetMs < 1_000 ? `${resetMs}ms` : `${Math.ceil(resetMs / 1_000)}s`)
  }
}
