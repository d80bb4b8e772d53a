import { join } from 'node:path'
import {
  CommandError,
  coloured,
  EXIT,
  type ExitCode,
  type Output,
  secondsOf,
  usageError,
} from '#services/cli/text/output.ts'
import { AUDIT_LIMIT_MAX } from '#shared/keys/audit.ts'
import {
  changeProject,
  createKey,
  createProject,
  GRACE_PERIOD_SECONDS,
  keyView,
  rotateKey,
  rotationError,
} from '#shared/keys/changes.ts'
import { type ApiKey, type KeyChange, type KeyStore, projectIdOf } from '#shared/keys/keys.ts'
import { type Command, type Invocation, noArguments, onlyArgument } from './command.ts'
import {
  auditTable,
  author,
  ENV_KEY_ID,
  endpointsOf,
  expiryOf,
  keyIdOf,
  keyTable,
  LIMIT_HELP,
  LIMIT_OPTIONS,
  limitsOf,
  modelsOf,
  noSuchKey,
  nothingToChange,
  projectIdFor,
  projectTable,
  runOnStore,
  type StoreAction,
  scopesOf,
  timeText,
} from './key-store.ts'

const AUDIT_LIMIT = 50
const LIMIT_NAMES = Object.keys(LIMIT_OPTIONS)
const PERMISSION_OPTIONS = ['name', 'endpoints', 'models', 'scopes', 'expires', ...LIMIT_NAMES]

export const keys: Command = {
  summary: 'Create, list, update, rotate and revoke API keys',
  isList: true,
  help: `Usage: sluice keys create [--project P] [--name NAME] [--expires TIME] [--scopes LIST] [--endpoints LIST]
                          [--models LIST] [limits]
       sluice keys list [--project P]
       sluice keys update ID [options of create except --project]
       sluice keys rotate ID [--grace-period DURATION] [--expires TIME]
       sluice keys revoke ID
       sluice keys audit [--limit N]

Reads and writes the key store directly, not over HTTP: the database in DATABASE_URL, or keys.json in DATA_DIR. Run this command
on the host of the service with the same settings. A running service applies a change within two seconds. Only a hash of each key is
stored, so the secret is shown only once, when the key is created.

rotate creates a new key with the same project, permissions and limits. The old key expires after the grace period. audit lists
changes of keys, projects and webhook secrets, newest first, with their authors.

Options:
  --project P       id or name of a project (default: a standalone key)
  --name NAME       a label, such as ci-server
  --expires TIME    expiry: 30d, 2030-01-31T08:00:00Z or never (default never)
  --scopes LIST     calls, admin or calls,admin (default calls)
  --endpoints LIST  allow only these paths and the paths below them, comma-separated; or all (default all)
  --models LIST     allow only these models of MODELS_FILE, comma-separated; or all (default all)
  --grace-period DURATION
                    rotate: how long the old key stays valid, such as 0s, 2h or 7d (default 24h)
  --limit N         audit: maximum number of entries (default ${AUDIT_LIMIT}, maximum ${AUDIT_LIMIT_MAX})

Limits of this key, in addition to those of its project:
${LIMIT_HELP}

Examples:
  sluice keys create --name laptop
  sluice keys create --project search --expires 30d --requests-per-minute 600
  sluice keys create --name chatbot --endpoints /v1/models,/v1/chat/completions,/v1/jobs --models smollm2-135m-instruct
  sluice keys create --name operator --scopes admin
  sluice keys rotate key_7Qm2xT9bVd4KpZsR --grace-period 24h
  sluice keys revoke key_7Qm2xT9bVd4KpZsR`,
  options: {
    name: { type: 'string' },
    project: { type: 'string' },
    endpoints: { type: 'string' },
    models: { type: 'string' },
    scopes: { type: 'string' },
    expires: { type: 'string' },
    'grace-period': { type: 'string' },
    limit: { type: 'string' },
    ...LIMIT_OPTIONS,
  },
  run: (invocation) => runOnStore('keys', ACTIONS, invocation),
}

const ACTIONS: Readonly<Record<string, StoreAction>> = {
  create: { options: ['project', ...PERMISSION_OPTIONS], run: create },
  list: { options: ['project'], run: list },
  update: { options: PERMISSION_OPTIONS, run: update },
  rotate: { options: ['grace-period', 'expires'], run: rotate },
  revoke: { options: [], run: revoke },
  audit: { options: ['limit'], run: audit },
}

async function create(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  const { values, out } = invocation
  noArguments(args)
  const projectOption = values.text('project')
  const { name, endpoints, models, scopes, expires_at, limits } = await permissionsOf(invocation)
  const project = await projectIdOption(store, projectOption)
  const isFirst = (await store.list()).length === 0
  const fields = { name, endpoints, models, scopes, project, expires_at, limits }
  const { key, secret } = await createKey(store, fields, author())
  if (isFirst) noteFirstKey(invocation)
  if (out.isHumanReadable) {
    await out.write(`${secret}\n`)
    out.note(
      `Created ${key.id}. Copy the secret now; it is not shown again. Send it in the header Authorization: Bearer …`,
    )
  } else await out.json({ ...keyView(key), secret })
  return EXIT.ok
}

/**
 * Prints where the first key is stored. If DATA_DIR or DATABASE_URL differs from that of the service, then the service
 * reads another store and rejects the key. The resulting error (401) cannot name this cause.
 */
function noteFirstKey({ out, config }: Invocation): void {
  out.note(
    `This is the first key in ${keyStoreName(config)}. Only services with the same ${keyStoreSetting(config)} accept the key.`,
  )
  if (config.sluiceApiKey === undefined) out.note('The service no longer creates a key at startup.')
}

async function projectIdOption(store: KeyStore, project: string | undefined): Promise<string | undefined> {
  return project === undefined ? undefined : await projectIdFor(store, project, `--project ${project}`)
}

function keyStoreName({ databaseUrl, dataDir }: Invocation['config']): string {
  return databaseUrl === undefined ? join(dataDir, 'keys.json') : 'the database'
}

function keyStoreSetting({ databaseUrl }: Invocation['config']): string {
  return databaseUrl === undefined ? 'DATA_DIR' : 'DATABASE_URL'
}

async function list(store: KeyStore, args: readonly string[], { values, out, config }: Invocation): Promise<ExitCode> {
  noArguments(args)
  const project = await projectIdOption(store, values.text('project'))
  const found = (await store.list()).filter((key) => project === undefined || projectIdOf(key) === project)
  if (out.isHumanReadable) await out.write(found.length > 0 ? keyTable(found, out.columns) : 'No keys.\n')
  else for (const key of found) await out.json(keyView(key))
  if (config.sluiceApiKey !== undefined && (project ?? ENV_KEY_ID) === ENV_KEY_ID) noteEnvKey(out)
  return EXIT.ok
}

async function update(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  const id = keyIdOf(args)
  const before = (await store.list()).find((key) => key.id === id)
  if (!before) throw noSuchKey(id)
  const change = await permissionsOf(invocation, before)
  if (Object.keys(change).length === 0) throw nothingToChange()
  await show(invocation.out, await store.update(id, change, author()), id, 'Updated')
  return EXIT.ok
}

async function revoke(store: KeyStore, args: readonly string[], { out }: Invocation): Promise<ExitCode> {
  const id = keyIdOf(args)
  await show(out, await store.revoke(id, author()), id, 'Revoked')
  return EXIT.ok
}

async function audit(store: KeyStore, args: readonly string[], { values, out }: Invocation): Promise<ExitCode> {
  noArguments(args)
  const entries = await store.listAudit(values.count('limit', 1, AUDIT_LIMIT_MAX) ?? AUDIT_LIMIT)
  if (out.isHumanReadable)
    await out.write(entries.length > 0 ? auditTable(entries, out.columns) : 'No audit entries.\n')
  else for (const entry of entries) await out.json(entry)
  return EXIT.ok
}

/** Reads the permissions to set from the options. The values `all` and `never` remove a restriction. */
async function permissionsOf(invocation: Invocation, before?: ApiKey): Promise<KeyChange> {
  const { values } = invocation
  const [name, expires, scopes] = [values.text('name'), expiryOf(values), scopesOf(values)]
  const limits = limitsOf(values, before?.limits)
  const isUnlimited = (option: string) => values.text(option) === 'all'
  return {
    ...(name !== undefined && { name: name || undefined }),
    ...(values.text('endpoints') !== undefined && {
      endpoints: isUnlimited('endpoints') ? undefined : await endpointsOf(invocation),
    }),
    ...(values.text('models') !== undefined && {
      models: isUnlimited('models') ? undefined : await modelsOf(invocation),
    }),
    ...(scopes && { scopes }),
    ...(expires !== undefined && { expires_at: expires ?? undefined }),
    ...(limits && { limits: Object.keys(limits).length > 0 ? limits : undefined }),
  }
}

async function show(out: Output, key: ApiKey | undefined, id: string, action: 'Updated' | 'Revoked'): Promise<void> {
  if (!key) throw noSuchKey(id)
  if (out.isHumanReadable) await out.write(`${action} ${key.id}.\n`)
  else await out.json(keyView(key))
}

function noteEnvKey(out: Output): void {
  out.note(`${coloured('yellow', 'SLUICE_API_KEY')} is valid too (key_env). To revoke it, change the setting.`)
}

/** `sluice keys rotate`: creates a key with the same project and permissions. The old key expires after the grace period. */
async function rotate(store: KeyStore, args: readonly string[], { values, out }: Invocation): Promise<ExitCode> {
  const id = keyIdOf(args)
  const old = (await store.list()).find((key) => key.id === id)
  if (!old) throw noSuchKey(id)
  const expires = expiryOf(values)
  requireRotatable(old, expires !== undefined)
  const gracePeriod = values.text('grace-period')
  const gracePeriodSeconds = gracePeriod === undefined ? GRACE_PERIOD_SECONDS : secondsOf('grace-period', gracePeriod)
  const rotated = await rotateKey(
    store,
    old,
    { expiresAt: expires ?? undefined, gracePeriodSeconds: gracePeriodSeconds },
    author(),
  )
  if (!rotated) throw noSuchKey(id)
  const { key, secret, ending } = rotated
  if (out.isHumanReadable) {
    await out.write(`${secret}\n`)
    out.note(`Created ${key.id}. Copy the secret now; it is not shown again.`)
    out.note(`The old key ${id} stays valid until ${timeText(ending.expires_at ?? 0)}.`)
  } else await out.json({ ...keyView(key), secret, replaces: keyView(ending) })
  return EXIT.ok
}

function requireRotatable(old: ApiKey, hasExpires: boolean): void {
  const reason = rotationError(old, hasExpires)
  if (reason === undefined) return
  if (reason === 'ends') {
    const message = `${old.id} has an expiry (${timeText(old.expires_at ?? 0)}), so the new key needs one too.`
    throw usageError(message, 'Set the expiry with --expires 30d or --expires never.')
  }
  const next = `Create a new key for the same project: sluice keys create --project ${projectIdOf(old)}`
  throw new CommandError(EXIT.refused, `${old.id} is ${reason} and cannot be rotated.`, next)
}

const FIELDS = ['name', ...Object.keys(LIMIT_OPTIONS)]

export const projects: Command = {
  summary: 'Create, list and update projects, which own jobs and keys',
  isList: true,
  help: `Usage: sluice projects create [--name NAME] [limits]
       sluice projects list
       sluice projects get PROJECT
       sluice projects update PROJECT [--name NAME] [limits]

A project owns jobs and any number of keys (sluice keys create --project PROJECT). The keys of a project share jobs, idempotency keys and
limits. PROJECT is the id of a project, or its name if the name is unique. A standalone key is its own project with the id of the key; such
a project is listed only after its first update. A project cannot be deleted; revoke its keys instead.

Reads and writes the key store directly, as sluice keys does. A running service applies a change within two seconds.

Options:
  --name NAME       a label; an empty NAME removes it

Limits of this project:
${LIMIT_HELP}

Examples:
  sluice projects create --name search --requests-per-minute 600 --budget 250
  sluice keys create --project search
  sluice projects update search --running 8 --budget default
  sluice projects get search`,
  options: { name: { type: 'string' }, ...LIMIT_OPTIONS },
  run: (invocation) => runOnStore('projects', PROJECT_ACTIONS, invocation),
}

const PROJECT_ACTIONS: Readonly<Record<string, StoreAction>> = {
  create: { options: FIELDS, run: runCreateProject },
  list: { options: [], run: listProjects },
  get: { options: [], run: get },
  update: { options: FIELDS, run: updateProject },
}

async function runCreateProject(
  store: KeyStore,
  args: readonly string[],
  { values, out }: Invocation,
): Promise<ExitCode> {
  noArguments(args)
  const name = values.text('name') || undefined
  const project = await createProject(store, { name, limits: limitsOf(values) ?? {} }, author())
  if (!out.isHumanReadable) await out.json(project)
  else await out.write(`${project.id}\nTo create a key: sluice keys create --project ${project.id}\n`)
  return EXIT.ok
}

async function listProjects(store: KeyStore, args: readonly string[], { out }: Invocation): Promise<ExitCode> {
  noArguments(args)
  const [found, keys] = [await store.listProjects(), await store.list()]
  if (!out.isHumanReadable) for (const project of found) await out.json(project)
  else await out.write(found.length > 0 ? projectTable(found, keys, out.columns) : 'No projects.\n')
  return EXIT.ok
}

async function get(store: KeyStore, args: readonly string[], { out }: Invocation): Promise<ExitCode> {
  const id = await idOf(store, args)
  const keys = (await store.list()).filter((key) => projectIdOf(key) === id)
  const project = (await store.listProjects()).find((one) => one.id === id) ?? { id, limits: {} }
  if (!out.isHumanReadable) await out.json({ ...project, keys: keys.map(keyView) })
  else {
    const shown = { created_at: keys[0]?.created_at ?? 0, ...project }
    await out.write(`${projectTable([shown], keys, out.columns)}\n${keyTable(keys, out.columns)}`)
  }
  return EXIT.ok
}

async function updateProject(store: KeyStore, args: readonly string[], { values, out }: Invocation): Promise<ExitCode> {
  const id = await idOf(store, args)
  const before = (await store.listProjects()).find((project) => project.id === id)
  const [name, limits] = [values.text('name'), limitsOf(values, before?.limits)]
  const change = { ...(name !== undefined && { name: name || undefined }), ...(limits && { limits }) }
  if (Object.keys(change).length === 0) throw nothingToChange()
  const project = await changeProject(store, id, change, author())
  if (out.isHumanReadable) await out.write(`Updated ${id}.\n`)
  else await out.json(project)
  return EXIT.ok
}

async function idOf(store: KeyStore, args: readonly string[]): Promise<string> {
  const project = onlyArgument(args, 'PROJECT (id or name)')
  return await projectIdFor(store, project, project)
}
