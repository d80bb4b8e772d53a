import { join } from 'node:path'
import { type Command, type Invocation, noArguments } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { LIMIT_HELP, LIMIT_OPTIONS, limitsOf } from '#services/cli/keys/limits.ts'
import { endpointsOf, expiryOf, FIXED_KEY_ID, modelsOf, projectIdFor, scopesOf } from '#services/cli/keys/rights.ts'
import { rotate } from '#services/cli/keys/rotate.ts'
import { auditTable, keyTable } from '#services/cli/keys/show.ts'
import { author, runOnStore, type StoreAction } from '#services/cli/keys/store.ts'
import { keyIdOf, noSuchKey, nothingAsked } from '#services/cli/keys/unknown.ts'
import { coloured, type Output } from '#services/cli/text/output.ts'
import { AUDIT_LIMIT_MAX } from '#shared/keys/audit.ts'
import { createKey, shownKey } from '#shared/keys/changes.ts'
import type { ApiKey, KeyChange, KeyStore } from '#shared/keys/keys.ts'
import { projectIdOf } from '#shared/keys/project.ts'

const AUDIT_LIMIT = 50
const LIMIT_NAMES = Object.keys(LIMIT_OPTIONS)
const RIGHTS = ['name', 'endpoints', 'models', 'scopes', 'expires', ...LIMIT_NAMES]

/** `sluice keys` */
export const keys: Command = {
  summary: 'Create, list, change, rotate and revoke API keys',
  help: `Usage: sluice keys create [--project P] [--name NAME] [--expires TIME] [--scopes LIST] [--endpoints LIST]
                          [--models LIST] [limits]
       sluice keys list [--project P]
       sluice keys update ID [the options of create but --project]
       sluice keys rotate ID [--overlap TIME] [--expires TIME]
       sluice keys revoke ID
       sluice keys audit [--limit N]

Works on the key store itself, not over HTTP: the database that DATABASE_URL names, or keys.json in DATA_DIR. Run it where
the service runs, with its settings. A running service notices within a second. Only a hash of a key is kept: its secret
is shown once, when it is created.

rotate makes a new key of the same project with the same rights, and lets the old one end after the overlap. audit shows who
changed which key, project or webhook secret, the last first.

Options:
  --project P       id or name of a project (sluice projects); default: the key is a project of its own
  --name NAME       whose or what for
  --expires TIME    when it ends: 30d, 2030-01-31T08:00:00Z or never; default never
  --scopes LIST     calls, admin or both with a comma; default calls
  --endpoints LIST  only these paths and those below them, with commas; all: no bound; default all
  --models LIST     only these models of MODELS_FILE, with commas; all: no bound; default all
  --overlap TIME    how long the old key stays valid beside the new one: 0s, 2h, 7d; default 24h
  --limit N         entries of the audit, up to ${AUDIT_LIMIT_MAX}; default ${AUDIT_LIMIT}
${LIMIT_HELP}.
                    Of this key alone, beside those of its project

Examples:
  sluice keys create --name laptop
  sluice keys create --project search --expires 30d --requests-per-minute 600
  sluice keys create --name embedder --endpoints /v1/models,/v1/chat/completions,/v1/jobs --models smollm2-135m-instruct
  sluice keys create --name operator --scopes admin
  sluice keys rotate key_7Qm2xT9bVd4KpZsR --overlap 24h
  sluice keys revoke key_7Qm2xT9bVd4KpZsR`,
  options: {
    name: { type: 'string' },
    project: { type: 'string' },
    endpoints: { type: 'string' },
    models: { type: 'string' },
    scopes: { type: 'string' },
    expires: { type: 'string' },
    overlap: { type: 'string' },
    limit: { type: 'string' },
    ...LIMIT_OPTIONS,
  },
  run: (invocation) => runOnStore('keys', ACTIONS, invocation),
}

const ACTIONS: Readonly<Record<string, StoreAction>> = {
  create: { options: ['project', ...RIGHTS], run: create },
  list: { options: ['project'], run: list },
  update: { options: RIGHTS, run: update },
  rotate: { options: ['overlap', 'expires'], run: rotate },
  revoke: { options: [], run: revoke },
  audit: { options: ['limit'], run: audit },
}

async function create(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  const { values, out, config } = invocation
  noArguments(args)
  const asked = values.text('project')
  const { name, endpoints, models, scopes, expires_at, limits } = await rightsOf(invocation)
  const project = asked === undefined ? undefined : await projectIdFor(store, asked, `--project ${asked}`)
  const isFirst = (await store.list()).length === 0
  const rights = { name, endpoints, models, scopes, project, expires_at, limits }
  const { key, secret } = await createKey(store, rights, author())
  // Who forgot DATA_DIR would get a key that works nowhere, and a 401 that cannot say why.
  if (isFirst)
    out.note(`It is the first key in ${placeOf(config)}. Only services with that ${placeName(config)} know it.`)
  if (isFirst && config.sluiceApiKey === undefined) {
    out.note('Now that there is a key, the service makes none of its own at its start.')
  }
  if (out.isForPeople) {
    await out.write(`${secret}\n`)
    out.note(`This is ${key.id}, and the secret is shown only now. Send it as: Authorization: Bearer …`)
  } else await out.json({ ...shownKey(key), secret })
  return EXIT.ok
}

/** Where keys are kept, without the password of a database. */
function placeOf({ databaseUrl, dataDir }: Invocation['config']): string {
  return databaseUrl === undefined ? join(dataDir, 'keys.json') : 'the database'
}

function placeName({ databaseUrl }: Invocation['config']): string {
  return databaseUrl === undefined ? 'DATA_DIR' : 'DATABASE_URL'
}

async function list(store: KeyStore, args: readonly string[], { values, out, config }: Invocation): Promise<ExitCode> {
  noArguments(args)
  const asked = values.text('project')
  const project = asked === undefined ? undefined : await projectIdFor(store, asked, `--project ${asked}`)
  const found = (await store.list()).filter((key) => project === undefined || projectIdOf(key) === project)
  if (out.isForPeople) await out.write(found.length > 0 ? keyTable(found, out.columns) : 'No keys.\n')
  else for (const key of found) await out.json(shownKey(key))
  if (config.sluiceApiKey !== undefined && (project ?? FIXED_KEY_ID) === FIXED_KEY_ID) noteFixed(out)
  return EXIT.ok
}

async function update(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode> {
  const id = keyIdOf(args)
  const before = (await store.list()).find((key) => key.id === id)
  if (!before) throw noSuchKey(id)
  const change = await rightsOf(invocation, before)
  if (Object.keys(change).length === 0) throw nothingAsked()
  await show(invocation.out, await store.update(id, change, author()), id, 'is changed')
  return EXIT.ok
}

async function revoke(store: KeyStore, args: readonly string[], { out }: Invocation): Promise<ExitCode> {
  const id = keyIdOf(args)
  await show(out, await store.revoke(id, author()), id, 'is revoked')
  return EXIT.ok
}

async function audit(store: KeyStore, args: readonly string[], { values, out }: Invocation): Promise<ExitCode> {
  noArguments(args)
  const entries = await store.listAudit(values.count('limit', 1, AUDIT_LIMIT_MAX) ?? AUDIT_LIMIT)
  if (out.isForPeople) await out.write(entries.length > 0 ? auditTable(entries, out.columns) : 'No changes.\n')
  else for (const entry of entries) await out.json(entry)
  return EXIT.ok
}

/** The fields of a key that options name; `all` and `never` take a bound away. */
async function rightsOf(invocation: Invocation, before?: ApiKey): Promise<KeyChange> {
  const { values } = invocation
  const [name, expires, scopes] = [values.text('name'), expiryOf(values), scopesOf(values)]
  const limits = limitsOf(values, before?.limits)
  const isAll = (option: string) => values.text(option) === 'all'
  return {
    ...(name !== undefined && { name: name || undefined }),
    ...(values.text('endpoints') !== undefined && { endpoints: isAll('endpoints') ? undefined : endpointsOf(values) }),
    ...(values.text('models') !== undefined && { models: isAll('models') ? undefined : await modelsOf(invocation) }),
    ...(scopes && { scopes }),
    ...(expires !== undefined && { expires_at: expires ?? undefined }),
    ...(limits && { limits: Object.keys(limits).length > 0 ? limits : undefined }),
  }
}

async function show(out: Output, key: ApiKey | undefined, id: string, done: string): Promise<void> {
  if (!key) throw noSuchKey(id)
  if (out.isForPeople) await out.write(`${key.id} ${done}.\n`)
  else await out.json(shownKey(key))
}

function noteFixed(out: Output): void {
  out.note(`${coloured('yellow', 'SLUICE_API_KEY')} is valid too (key_env); it is revoked by changing the setting.`)
}
