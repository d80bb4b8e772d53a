import { timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { WireFormat } from '#services/ingress/reply/errors.ts'
import { ServiceError } from '#shared/error.ts'
import type { AuditEntry } from '#shared/keys/audit.ts'
import { type ApiKey, FIRST_KEY_ID, hashOf, type KeyScope, type KeyStore, keyOf, newKey } from '#shared/keys/keys.ts'
import type { Known } from '#shared/keys/lenient.ts'
import type { Limits } from '#shared/keys/project.ts'
import { coversPath, hasScope } from '#shared/keys/scopes.ts'
import { type WebhookSecret, webhookSecretsOf } from '#shared/keys/webhook-secrets.ts'
import type { Log } from '#shared/log/log.ts'
import { untilTick } from '#shared/ticks.ts'
import { runYielding } from '#shared/yielding.ts'
import { keyChanges } from './key-changes.ts'

export type { ApiKey } from '#shared/keys/keys.ts'

/** Told once that a key is not valid any more, with what its caller gets. */
type OnEnd = (error: ServiceError) => void

/**
 * How often the store is asked: a revoked key stops within this time and that of one query. What is open under a key that
 * expires ends as soon; the clock is looked at each time, since it may be set while a timer to that moment runs.
 */
const REFRESH_MS = 1_000
const NO_LIMITS: Limits = {}
/** The id of the key that SLUICE_API_KEY is, and of its project. */
export const FIXED_KEY_ID = 'key_env'

/**
 * The API keys as this ingress knows them: those of the key store, and SLUICE_API_KEY.
 *
 * A call never waits for the store. While it is away or broken the keys known so far stay as they are, rather than none.
 */
export class ApiKeys {
  readonly #store: KeyStore
  readonly #fixed: ApiKey | undefined
  readonly #log: Log
  #created: string | undefined
  #known: Known | undefined
  #limits = new Map<string, Limits>()
  /** Of keys that are projects of their own. */
  #alone = new Map<string, Limits>()
  /** Of the others, by the id of the key. */
  #inProjects = new Map<string, Limits>()
  #byHash = new Map<string, ApiKey>()
  /** By hash, who has a connection of that key open. */
  readonly #watchers = new Map<string, Set<OnEnd>>()
  #timer: NodeJS.Timeout | undefined
  #isStale = false
  #isClosed = false

  /**
   * Reads the keys; makes and keeps a random one where there never was any.
   *
   * @param store Closed with the keys, also when they cannot be opened.
   * @param fixedSecret SLUICE_API_KEY: always valid, never kept.
   * @throws What the store says when it cannot be reached or understood
   */
  static async open(store: KeyStore, fixedSecret: string | undefined, log: Log): Promise<ApiKeys> {
    const keys = new ApiKeys(store, fixedSecret, log)
    try {
      if (fixedSecret === undefined) await keys.#createFirst()
      await keys.#load()
    } catch (error) {
      await store.close()
      throw error
    }
    keys.#refreshLater()
    return keys
  }

  private constructor(store: KeyStore, fixedSecret: string | undefined, log: Log) {
    this.#store = store
    this.#log = log
    this.#fixed = fixedSecret === undefined ? undefined : keyOf(fixedSecret, { id: FIXED_KEY_ID })
  }

  /** The secret made on the first run, to be shown once; undefined where another process made it, or nobody had to. */
  get created(): string | undefined {
    return this.#created
  }

  /** The key a secret belongs to; undefined when there is none, or it was revoked or has expired. Constant time in the secret. */
  find(secret: string): ApiKey | undefined {
    const key = this.#withSecret(secret)
    return key && !endOf(key) ? key : undefined
  }

  /** As {@link find}. @throws ServiceError `invalid_api_key` where that gives none */
  get(secret: string): ApiKey {
    const key = this.#withSecret(secret)
    const end = key ? endOf(key) : new ServiceError('invalid_api_key', `Incorrect API key provided: ${mask(secret)}.`)
    if (!key || end) throw end
    return key
  }

  /**
   * Calls `onEnd` once when a key is revoked, gone or has expired: whoever came with it may stay for hours.
   *
   * @param key Valid now: as {@link find} has just given it.
   * @returns Ends the watch. It must be called, or the watcher is kept.
   */
  watch({ hash }: ApiKey, onEnd: OnEnd): () => void {
    const watchers = this.#watchers.get(hash) ?? new Set()
    this.#watchers.set(hash, watchers.add(onEnd))
    return () => {
      watchers.delete(onEnd)
      if (watchers.size === 0 && this.#watchers.get(hash) === watchers) this.#watchers.delete(hash)
    }
  }

  /** What a project may use, as far as that was said of it; beside it stand the limits of its keys. */
  limitsOf(projectId: string): Limits {
    return this.#limits.get(projectId) ?? NO_LIMITS
  }

  /** The same for whoever knows no key: a key that is a project of its own has its own limits. */
  limitsOfTenant(tenant: string): Limits {
    return this.#limits.get(tenant) ?? this.#alone.get(tenant) ?? NO_LIMITS
  }

  /** What a key inside a project may use of it: its own limits, beside those of its project. */
  limitsOfKey(id: string): Limits {
    return this.#inProjects.get(id) ?? NO_LIMITS
  }

  /** A key by its id, as far as limits depend on it: for jobs, which outlive the call that made them. */
  limited(id: string, project: string): Pick<ApiKey, 'id' | 'project' | 'limits'> {
    // A key that is a project of its own is known by the id of that.
    if (id === project) return { id, limits: this.limitsOfTenant(id) }
    return { id, project, limits: this.limitsOfKey(id) }
  }

  /** All keys, SLUICE_API_KEY among them, and all projects that were made. */
  get known(): Known {
    return { keys: [...this.#byHash.values()], projects: this.#known?.projects ?? [] }
  }

  /** As {@link known}, read from the store now. @throws When it cannot be reached */
  async fresh(): Promise<Known> {
    await this.#load()
    return this.known
  }

  /** Changes the store; what is refused then is refused here at once, and elsewhere with the next look. @throws What the store says */
  async change<T>(work: (store: KeyStore) => Promise<T>): Promise<T> {
    const result = await work(this.#store)
    await this.#load()
    this.#tellEnds()
    return result
  }

  /** The last changes, newest first. @throws When the store cannot be reached */
  listAudit(limit: number): Promise<AuditEntry[]> {
    return this.#store.listAudit(limit)
  }

  /** The secrets that sign the webhooks of a project, as the store has them now. @throws When it cannot be reached */
  webhookSecretsOf(projectId: string): Promise<readonly WebhookSecret[]> {
    return webhookSecretsOf(this.#store, projectId)
  }

  /** Stops asking the store, and closes it. */
  async close(): Promise<void> {
    this.#isClosed = true
    clearTimeout(this.#timer)
    await this.#store.close()
  }

  async #createFirst(): Promise<void> {
    const { key, secret } = newKey({ id: FIRST_KEY_ID })
    if (await this.#store.createFirst(key)) this.#created = secret
  }

  async #load(): Promise<void> {
    const before = this.#known
    const known = { keys: await this.#store.list(), projects: await this.#store.listProjects() }
    // The store gives the very same lists while nothing changed.
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

  #tellEnds(): void {
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
    this.#timer = setTimeout(() => void this.#refresh(), untilTick(REFRESH_MS)).unref()
  }

  async #refresh(): Promise<void> {
    try {
      await this.#load()
      if (this.#isStale) this.#log.info({ key_store: this.#store.name }, 'key store is back')
      this.#isStale = false
    } catch (error) {
      // Said once: an outage may last for hours.
      if (!this.#isStale && !this.#isClosed)
        this.#log.error({ err: error, key_store: this.#store.name }, 'key store not readable; keeping the known keys')
      this.#isStale = true
    }
    // Also of a store that is away: keys expire by themselves.
    this.#tellEnds()
    this.#refreshLater()
  }
}

/**
 * The key of a request: `Authorization: Bearer` or `x-api-key`, on every endpoint (docs/protocol.md, Authentication).
 * With both, the header of the endpoint's own format wins.
 *
 * @param scope What the key must be for. The rights to endpoints are those of calls.
 * @throws ServiceError `missing_api_key`, `invalid_api_key`, `permission_denied`
 */
export function authenticate(
  { headers }: Pick<IncomingMessage, 'headers'>,
  keys: ApiKeys,
  format: WireFormat,
  path: string,
  scope: KeyScope | 'any' = 'calls',
): ApiKey {
  const bearer = /^bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
  const header = headers['x-api-key']?.toString() || undefined
  const secret = format === 'anthropic' ? (header ?? bearer) : (bearer ?? header)
  if (!secret) {
    const how = format === 'anthropic' ? 'the x-api-key header' : 'the header Authorization: Bearer YOUR_KEY'
    throw new ServiceError('missing_api_key', `You didn't provide an API key. Send it in ${how}.`)
  }
  const key = keys.get(secret)
  if (scope !== 'any') requireScope(key, scope)
  // What it is every key may ask. Jobs and batches stand for calls to other endpoints: each is checked when it is submitted, and only its own project sees it.
  if (scope !== 'admin' && !/^\/v1\/((jobs|files|batches)($|\/)|(ws|key)$)/.test(path)) requireEndpoint(key, path)
  return key
}

/** Refuses a key that is for something else. @throws ServiceError `permission_denied` */
export function requireScope(key: ApiKey, scope: KeyScope): void {
  if (hasScope(key, scope)) return
  const how = `Make one that has it where the service runs: sluice keys create --scopes ${scope}`
  throw new ServiceError('permission_denied', `This API key has not the scope ${scope}, which is needed here. ${how}`)
}

/** Refuses an endpoint that a key may not call. @throws ServiceError `permission_denied` */
export function requireEndpoint(key: ApiKey, path: string): void {
  if (!key.endpoints || coversPath(key.endpoints, path)) return
  const may = key.endpoints.length > 0 ? `It may call ${key.endpoints.join(', ')}.` : 'It may call no endpoint.'
  throw new ServiceError('permission_denied', `This API key may not call ${path}. ${may}`)
}

/** Why a key is not valid, by the clock of this moment; undefined while it is. */
function endOf({ revoked: isRevoked, expires_at }: ApiKey): ServiceError | undefined {
  if (isRevoked) return revoked()
  if (expires_at === undefined || Date.now() < expires_at * 1_000) return undefined
  const when = new Date(expires_at * 1_000).toISOString().replace('.000', '')
  return new ServiceError('invalid_api_key', `This API key expired on ${when}.`)
}

function revoked(): ServiceError {
  return new ServiceError('invalid_api_key', 'This API key was revoked.')
}

/** A key as it may be shown (docs/protocol.md, Authentication): enough to recognise it, nothing to use. */
function mask(secret: string): string {
  return secret.length < 12 ? '***' : `${secret.slice(0, 3)}...${secret.slice(-4)}`
}
