import { runYielding } from '#shared/lib/yielding.ts'
import { PostgresConnection } from '#shared/store/postgres/connection.ts'
import { migrate } from '#shared/store/postgres/migrate.ts'
import { compile, type Params, type Row, valuesOf } from '#shared/store/sql/sql.ts'
import type { Statement } from '#shared/store/sql/statements.ts'
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
import { changed, readKnownVersion, type ValidKeys } from './lenient.ts'
import * as rows from './postgres-rows.ts'
import { randomSecret, WEBHOOK_SECRETS_MAX, WebhookSecret } from './webhook-secrets.ts'

/** Maximum connections: one for reads and one for writes, because keys are few and rarely change. */
const CONNECTIONS_MAX = 2
/** Timeout of a statement in ms. While a statement runs, an ingress uses the keys of its last read. */
const STATEMENT_TIMEOUT_MS = 5_000

type Run = (statement: Statement, params: Params) => Promise<Row[]>

/**
 * Opens the key store in tables of Postgres, for any number of processes. Migrates the database schema first.
 *
 * @param url `postgres://user:password@host:port/database`
 * @param onProblem Called for each invalid key or project, whenever the tables have changed
 * @throws ServiceError `overloaded` if Postgres is unreachable at the start
 */
export async function openPostgresKeys(
  url: string,
  onProblem: (problem: string) => void = () => undefined,
): Promise<KeyStore> {
  await migrate(url)
  const connection = new PostgresConnection({
    url,
    connectionsMax: CONNECTIONS_MAX,
    statementTimeoutMs: STATEMENT_TIMEOUT_MS,
    // Outages of the connection are not reported here, because the caller of `list` receives the error and logs it.
    onProblem: () => undefined,
  })
  return new PostgresKeys(connection, onProblem)
}

class PostgresKeys implements KeyStore {
  readonly name = 'postgres'
  readonly #connection: PostgresConnection
  readonly #onProblem: (problem: string) => void
  #known: ValidKeys = { keys: [], projects: [] }
  #seen: string | undefined

  constructor(connection: PostgresConnection, onProblem: (problem: string) => void) {
    this.#connection = connection
    this.#onProblem = (problem) => onProblem(`Postgres: ${problem}`)
  }

  async list(): Promise<readonly ApiKey[]> {
    return (await this.#load()).keys
  }

  async listProjects(): Promise<readonly Project[]> {
    return (await this.#load()).projects
  }

  async create(key: ApiKey, by = SERVICE): Promise<void> {
    await this.#change(by, async (run) => {
      await insertKey(run, key)
      return { result: undefined, action: keyCreated(key) }
    })
  }

  async createFirst(key: ApiKey): Promise<boolean> {
    return await this.#change(SERVICE, async (run) => {
      const isMade = (await run(rows.CREATE_FIRST_KEY, rows.keyParams(key))).length > 0
      return { result: isMade, action: isMade ? keyCreated(key) : undefined }
    })
  }

  async update(id: string, change: KeyChange, by = SERVICE): Promise<ApiKey | undefined> {
    return await this.#changeKey(id, by, (key) => ({ change, action: keyChanged('key.updated', key, change) }))
  }

  async rotate(id: string, successor: ApiKey, endsAt: number, by = SERVICE): Promise<ApiKey | undefined> {
    const addSuccessor = (run: Run) => insertKey(run, successor)
    return await this.#changeKey(id, by, (key) => rotationAction(key, successor, endsAt), addSuccessor)
  }

  async revoke(id: string, by = SERVICE): Promise<ApiKey | undefined> {
    const change = { revoked: true }
    return await this.#changeKey(id, by, (key) => {
      return key.revoked ? undefined : { change, action: keyChanged('key.revoked', key, {}) }
    })
  }

  async createProject(project: Project, by = SERVICE): Promise<void> {
    await this.#change(by, async (run) => {
      const made = await run(rows.CREATE_PROJECT, rows.projectParams(project))
      if (made.length === 0) throw new Error(full(PROJECTS_MAX, 'projects'))
      return { result: undefined, action: projectCreated(project) }
    })
  }

  async updateProject(id: string, change: ProjectChange, by = SERVICE): Promise<Project | undefined> {
    return await this.#change(by, async (run) => {
      const [row] = await run(rows.LOCK_PROJECT, { id })
      if (!row) return { result: undefined, action: undefined }
      const next = changed(rows.projectOfRow(row), change) as Project
      const { name, limits } = rows.projectParams(next)
      await run(rows.UPDATE_PROJECT, { id, name: name ?? null, limits: limits ?? null })
      return { result: next, action: projectChanged(id, change) }
    })
  }

  async webhookRoot(): Promise<string> {
    const [found] = await this.#run(rows.FIND_ROOT, {})
    if (found) return String(found.secret)
    await this.#run(rows.CREATE_ROOT, { secret: randomSecret(), created_at: Math.floor(Date.now() / 1_000) })
    return String((await this.#run(rows.FIND_ROOT, {}))[0]?.secret)
  }

  async listWebhookSecrets(project: string): Promise<readonly WebhookSecret[]> {
    return (await this.#run(rows.LIST_SECRETS, { project })).map((row) => WebhookSecret.parse(row))
  }

  async createWebhookSecret(secret: WebhookSecret, first: WebhookSecret, by = SERVICE): Promise<boolean> {
    return await this.#change(by, async (run) => {
      const own = await ownSecrets(run, secret.project)
      if (own.length >= WEBHOOK_SECRETS_MAX) return { result: false, action: undefined }
      for (const one of own.length === 0 ? [first, secret] : [secret]) await run(rows.CREATE_SECRET, { ...one })
      return { result: true, action: secretCreated(secret) }
    })
  }

  async deleteWebhookSecret(project: string, id: string, by = SERVICE): Promise<'deleted' | 'last' | 'none'> {
    return await this.#change(by, async (run) => {
      const own = await ownSecrets(run, project)
      const found = own.find((secret) => secret.id === id)
      if (!found) return { result: 'none', action: undefined }
      if (own.length === 1) return { result: 'last', action: undefined }
      await run(rows.DELETE_SECRET, { project, id })
      return { result: 'deleted', action: secretDeleted(found) }
    })
  }

  async listAudit(limit: number): Promise<AuditEntry[]> {
    return (await this.#run(rows.LIST_AUDIT, { limit: Math.min(limit, AUDIT_LIMIT_MAX) })).map(rows.entryOfRow)
  }

  async close(): Promise<void> {
    await this.#connection.close()
  }

  async #load(): Promise<ValidKeys> {
    const [row] = await this.#run(rows.STATE, {})
    const state = String(row?.state)
    if (state === this.#seen) return this.#known
    // The checksum is read before the rows. If the rows change in between, then the next call finds another checksum and reads again.
    const projects = (await this.#run(rows.LIST_PROJECTS, {})).map(rows.projectOfRow)
    const keys = (await this.#run(rows.LIST_KEYS, {})).map(rows.keyOfRow)
    const known = await runYielding(readKnownVersion(keys, projects, this.#onProblem))
    this.#known = known
    this.#seen = state
    return known
  }

  /**
   * Changes one key in a transaction.
   *
   * @param decide Returns the change, or undefined to change nothing
   * @param also A further change in the same transaction
   * @returns The key after the change
   */
  async #changeKey(
    id: string,
    by: string,
    decide: (key: ApiKey) => { change: object; action: AuditAction } | undefined,
    also: (run: Run) => Promise<void> = async () => {},
  ): Promise<ApiKey | undefined> {
    return await this.#change(by, async (run) => {
      const [row] = await run(rows.LOCK_KEY, { id })
      const found = row && (rows.keyOfRow(row) as ApiKey)
      const decided = found && decide(found)
      if (!decided) return { result: found, action: undefined }
      const next = changed(found, decided.change)
      await run(rows.UPDATE_KEY, rows.keyParams(next))
      await also(run)
      return { result: next, action: decided.action }
    })
  }

  async #change<T>(
    by: string,
    work: (run: Run) => Promise<{ result: T; action: AuditAction | undefined }>,
  ): Promise<T> {
    return await this.#connection.transaction(async (client) => {
      const run = runOn(client)
      const { result, action } = await work(run)
      if (action) await run(rows.ADD_AUDIT_ENTRY, noteParams(by, action))
      return result
    })
  }

  async #run(statement: Statement, params: Params): Promise<Row[]> {
    return await this.#connection.run(statement, (compiled) => valuesOf(compiled, params))
  }
}

function runOn(client: { query(text: string, values: unknown[]): Promise<{ rows: Row[] }> }): Run {
  return async ({ sql }, params) => {
    const compiled = compile(sql, '$')
    return (await client.query(compiled.sql, valuesOf(compiled, params))).rows
  }
}

/** Returns the secrets of a project and locks them until this transaction ends. */
async function ownSecrets(run: Run, project: string): Promise<WebhookSecret[]> {
  await run(rows.LOCK_SECRETS, { project })
  return (await run(rows.LIST_SECRETS, { project })).map((row) => WebhookSecret.parse(row))
}

async function insertKey(run: Run, key: ApiKey): Promise<void> {
  const made = await run(rows.CREATE_KEY, rows.keyParams(key))
  if (made.length === 0) throw new Error(full(KEYS_MAX, 'keys'))
}

function noteParams(author: string, { action, subject, project, change }: AuditAction): Params {
  const at = Math.floor(Date.now() / 1_000)
  return { at, author, action, subject, project, change: JSON.stringify(change) }
}

function full(most: number, what: string): string {
  return `The database has reached the maximum of ${most} ${what}.`
}
