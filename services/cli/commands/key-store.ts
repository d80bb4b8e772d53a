import { userInfo } from 'node:os'
import { BODIES_SECONDS_MAX } from '#schemas/admin/admin.ts'
import { ageOf } from '#services/cli/client/job-text.ts'
import {
  CommandError,
  didYouMean,
  EXIT,
  type ExitCode,
  plain,
  secondsOf,
  tableOf,
  timeOf,
  usageError,
} from '#services/cli/text/output.ts'
import type { AuditEntry } from '#shared/keys/audit.ts'
import { stateOf } from '#shared/keys/changes.ts'
import {
  type ApiKey,
  KEY_ENDPOINTS,
  KeyScope,
  type KeyStore,
  keyEndpointsWith,
  type Limits,
  type Project,
  projectIdOf,
} from '#shared/keys/keys.ts'
import type { Invocation, Values } from './command.ts'

export interface StoreAction {
  readonly options: readonly string[]
  run(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode>
}

const GLOBAL_OPTIONS = ['url', 'key', 'json', 'output', 'help']

/**
 * Runs an action of a command, such as `create` of `keys`, on the key store. The first argument names the action.
 *
 * @param command The command, such as `keys`.
 * @throws CommandError for an unknown action or unsupported option, or if the key store is unavailable
 */
export async function runOnStore(
  command: string,
  actions: Readonly<Record<string, StoreAction>>,
  invocation: Invocation,
): Promise<ExitCode> {
  // The module is imported on demand, because it loads all adapters, which no other command needs.
  const { openKeyStore } = await import('#shared/ports.ts')
  const [name = '', ...args] = invocation.args
  const action = actionOf(command, actions, name)
  const unsupported = invocation.values.given().find((option) => {
    return ![...GLOBAL_OPTIONS, ...action.options].includes(option)
  })
  if (unsupported !== undefined) throw usageError(`${command} ${name} does not support --${unsupported}.`)
  const warn = (problem: string) => invocation.out.note(problem)
  const store = await openKeyStore(invocation.config, warn).catch((error: unknown) => unavailable(error))
  try {
    return await action.run(store, args, invocation)
  } catch (error) {
    if (error instanceof CommandError) throw error
    return unavailable(error)
  } finally {
    await store.close()
  }
}

export function author(): string {
  try {
    return `cli:${userInfo().username}`
  } catch {
    // A user id without an entry in the user database, as in many containers, has no name. The numeric id is then used as the author.
    return `cli:uid ${process.getuid?.() ?? 'unknown'}`
  }
}

function actionOf(command: string, actions: Readonly<Record<string, StoreAction>>, name: string): StoreAction {
  const action = Object.hasOwn(actions, name) ? actions[name] : undefined
  if (action) return action
  const names = Object.keys(actions)
  const all = `${names.slice(0, -1).join(', ')} or ${names.at(-1)}`
  if (name === '') throw usageError(`Missing action after ${command}: ${all}.`)
  throw usageError(`Unknown action '${name}' of ${command}.`, `${didYouMean(name, names)}Valid actions: ${all}.`)
}

function unavailable(error: unknown): never {
  const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : ''
  const message = error instanceof Error ? error.message : String(error)
  throw new CommandError(
    EXIT.unreachable,
    `The key store is unavailable: ${message}${cause}`,
    'For a diagnosis: sluice doctor',
  )
}

/** Id of the key in the setting SLUICE_API_KEY. The project of that key has the same id. */
export const ENV_KEY_ID = 'key_env'

/**
 * Returns the value of `--endpoints`.
 *
 * @throws CommandError with similar names for an unknown endpoint
 */
export async function endpointsOf({ values, config }: Invocation): Promise<string[] | undefined> {
  const paths = values.parts('endpoints')
  const invalid = paths?.find((path) => !path.startsWith('/'))
  if (invalid !== undefined) {
    throw usageError(`--endpoints must be paths such as /v1/chat/completions; got '${invalid}'.`)
  }
  if (!paths || paths.every((path) => KEY_ENDPOINTS.includes(path))) return paths
  const { loadExtensions } = await import('#shared/ports/extensions.ts')
  const known = keyEndpointsWith((await loadExtensions(config.extensions)).map(({ path }) => path))
  const unknown = paths.find((path) => !known.includes(path))
  if (unknown === undefined) return paths
  throw unknownName('--endpoints', unknown, 'endpoint', known)
}

/**
 * Returns the value of `--models` as model ids. Aliases are resolved, because permissions are checked by id.
 *
 * @throws CommandError for a model that is not in the catalogue
 */
export async function modelsOf({ values, config }: Invocation): Promise<string[] | undefined> {
  const names = values.parts('models')
  if (!names) return undefined
  const { loadModels } = await import('#shared/models/models.ts')
  const catalogue = loadModels(config.modelsFile)
  return names.map((name) => {
    const model = catalogue.find(name)
    if (model) return model.id
    const known = catalogue.models.map(({ id }) => id)
    throw unknownName('--models', name, 'model', known, ` in ${config.modelsFile}`)
  })
}

export function scopesOf(values: Values): KeyScope[] | undefined {
  return values.parts('scopes')?.map((name) => {
    const scope = KeyScope.safeParse(name)
    if (scope.success) return scope.data
    throw unknownName('--scopes', name, 'scope', KeyScope.options)
  })
}

/**
 * Returns the value of `--expires` in Unix seconds. Null for `never`.
 *
 * @throws CommandError for a time in the past
 */
export function expiryOf(values: Values): number | null | undefined {
  const text = values.text('expires')
  if (text === undefined) return undefined
  if (text === 'never') return null
  const nowMs = Date.now()
  const at = timeOf('expires', text, nowMs, 1)
  if (at * 1_000 > nowMs) return at
  throw usageError(`--expires must be in the future; got '${text}'.`)
}

/**
 * Resolves a project id or name to an id. A key without a project counts as a project of its own, with the key's id.
 *
 * @param source The option or argument, for messages.
 * @throws CommandError with similar names if no project or several projects match
 */
export async function projectIdFor(store: KeyStore, idOrName: string, source: string): Promise<string> {
  const projects = await store.listProjects()
  const ids = new Set([ENV_KEY_ID, ...projects.map(({ id }) => id), ...(await store.list()).map(projectIdOf)])
  if (ids.has(idOrName)) return idOrName
  const named = projects.filter(({ name }) => name === idOrName)
  if (named.length > 1) {
    throw usageError(
      `${source}: ${named.length} projects have this name.`,
      `Use one of these ids instead: ${idList(named)}`,
    )
  }
  if (named[0]) return named[0].id
  const names = projects.flatMap(({ name }) => (name === undefined ? [] : plain(name)))
  const hint = didYouMean(idOrName, [...names, ...ids])
  throw new CommandError(EXIT.refused, `${source}: no such project.`, `${hint}To list projects: sluice projects list`)
}

function idList(projects: readonly { readonly id: string }[]): string {
  return projects
    .slice(0, 5)
    .map(({ id }) => id)
    .join(', ')
}

function unknownName(option: string, name: string, type: string, known: readonly string[], place = ''): CommandError {
  const next = `${didYouMean(name, known)}Valid values: ${known.join(', ')}`
  return usageError(`${option}: unknown ${type} '${name}'${place}.`, next)
}

const OPTIONS = {
  'requests-per-minute': 'requests_per_minute',
  'tokens-per-minute': 'tokens_per_minute',
  running: 'running',
  queued: 'queued',
  scheduled: 'scheduled',
  budget: 'budget_usd_per_month',
  'request-bodies': 'request_bodies_seconds',
} as const satisfies Record<string, keyof Limits>

const COUNT_MAX = 1_000_000_000_000
/** Option value that removes a limit, so that the limit from the service's settings applies. */
const DEFAULT = 'default'

export const LIMIT_OPTIONS = Object.fromEntries(Object.keys(OPTIONS).map((name) => [name, { type: 'string' as const }]))

export const LIMIT_HELP = `  --requests-per-minute N  maximum calls per minute
  --tokens-per-minute N    maximum input and output tokens per minute
  --running N              maximum calls and jobs in flight
  --queued N               maximum queued jobs
  --scheduled N            maximum jobs with a start time in the future
  --budget USD             maximum cost per UTC month, in US dollars
  --request-bodies TIME    retention of prompts and answers in the request log, such as 1h; 0s: none
Each limit applies to the whole fleet. The number 0 blocks all calls. The value default removes the limit, so that the setting of the service applies.`

/**
 * Returns the limits in `before` with the changes that the limit options request.
 *
 * @returns Undefined if no option sets a limit
 * @throws CommandError for an invalid number
 */
export function limitsOf(values: Values, before: Limits = {}): Limits | undefined {
  const limits: Partial<Record<keyof Limits, number>> = { ...before }
  let hasChanges = false
  for (const [option, field] of Object.entries(OPTIONS)) {
    const text = values.text(option)
    if (text === undefined) continue
    hasChanges = true
    if (text === DEFAULT) delete limits[field]
    else if (option === 'budget') limits[field] = amountOf(text)
    else if (option === 'request-bodies') limits[field] = retentionOf(option, text)
    else limits[field] = values.count(option, 0, COUNT_MAX)
  }
  return hasChanges ? (limits as Limits) : undefined
}

function limitText(limits: Limits = {}): string {
  const shown = Object.entries(OPTIONS).flatMap(([option, field]) => {
    const value = limits[field]
    return value === undefined ? [] : `${option} ${value}`
  })
  return shown.join(', ')
}

function retentionOf(option: string, text: string): number {
  const seconds = secondsOf(option, text)
  if (seconds <= BODIES_SECONDS_MAX) return seconds
  throw usageError(`--${option} must be at most ${BODIES_SECONDS_MAX / 86_400}d; got '${text}'.`)
}

function amountOf(text: string): number {
  if (/^\d{1,9}(\.\d{1,6})?$/.test(text)) return Number(text)
  throw usageError(
    `--budget must be an amount in US dollars per month, such as 25 or 12.50, or the word default; got '${text}'.`,
  )
}

export function noSuchKey(id: string): CommandError {
  if (id !== ENV_KEY_ID) {
    return new CommandError(EXIT.refused, `No key has the id ${id}.`, 'To list keys: sluice keys list')
  }
  const next = `Change the setting, set limits of the project of this key (sluice projects update ${ENV_KEY_ID}), or create another key for the same project: sluice keys create --project ${ENV_KEY_ID}`
  return new CommandError(
    EXIT.refused,
    `${id} is SLUICE_API_KEY, a setting of the service that commands cannot change.`,
    next,
  )
}

export function keyIdOf(args: readonly string[]): string {
  const [id, extra] = args
  if (id !== undefined && extra === undefined) return id
  throw usageError('Expected exactly one argument: the ID of a key.', 'To list keys: sluice keys list')
}

export function nothingToChange(): CommandError {
  return usageError('Nothing to update.', 'Use at least one option, such as --name or --requests-per-minute.')
}

const SECOND_MS = 1_000

export function timeText(seconds: number): string {
  const ms = seconds * SECOND_MS
  return Math.abs(ms) < 8.64e15 ? `${new Date(ms).toISOString().slice(0, 16).replace('T', ' ')}Z` : String(seconds)
}

export function keyTable(keys: readonly ApiKey[], columnsMax: number): string {
  const nowMs = Date.now()
  const head = ['id', 'secret', 'project', 'age', 'state', 'expires', 'scopes', 'name', 'endpoints', 'models', 'limits']
  const rows = keys.map((key) => {
    const expires = key.expires_at === undefined ? 'never' : timeText(key.expires_at)
    const details = [projectIdOf(key), ageOf(key.created_at, nowMs), stateOf(key, nowMs), expires]
    const permissions = [key.endpoints?.join(',') ?? 'all', key.models?.join(',') ?? 'all', limitText(key.limits)]
    return [key.id, key.hint, ...details, key.scopes?.join(',') ?? 'calls', key.name ?? '', ...permissions]
  })
  return tableOf(
    {
      head,
      rows,
      spare: ['limits', 'models', 'endpoints', 'age', 'scopes'],
      cut: ['limits', 'models', 'endpoints', 'name'],
    },
    columnsMax,
  )
}

export function projectTable(projects: readonly Project[], keys: readonly ApiKey[], columnsMax: number): string {
  const nowMs = Date.now()
  const rows = projects.map(({ id, name, created_at, limits }) => {
    const own = keys.filter((key) => projectIdOf(key) === id && stateOf(key, nowMs) === 'valid')
    return [id, name ?? '', ageOf(created_at, nowMs), String(own.length), limitText(limits)]
  })
  return tableOf(
    { head: ['id', 'name', 'age', 'keys', 'limits'], rows, spare: ['age'], cut: ['name', 'limits'] },
    columnsMax,
  )
}

export function auditTable(entries: readonly AuditEntry[], columnsMax: number): string {
  const rows = entries.map(({ at, author, action, subject, project, change }) => {
    return [timeText(at), action, subject, project ?? '', author, JSON.stringify(change)]
  })
  return tableOf(
    { head: ['time', 'action', 'subject', 'project', 'author', 'change'], rows, spare: ['project'], cut: ['change'] },
    columnsMax,
  )
}
