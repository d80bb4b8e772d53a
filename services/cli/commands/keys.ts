import type { Command, Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { ageOf } from '#services/cli/text/job-text.ts'
import { coloured, type Output, tableOf } from '#services/cli/text/output.ts'
import { type ApiKey, type KeyStore, newKey } from '#shared/keys/keys.ts'
import { KEY_ENDPOINTS } from '#shared/keys/scopes.ts'

/** `sluice keys` */
export const keys: Command = {
  summary: 'Create, list and revoke API keys',
  help: `Usage: sluice keys create [--name NAME] [--endpoints LIST] [--models LIST]
       sluice keys list
       sluice keys revoke ID

Works on the key store itself, not over HTTP: the database that DATABASE_URL names, or keys.json in DATA_DIR. Run it where
the service runs, with its settings. A running service notices within a second. Only a hash of a key is kept: its secret
is shown once, when it is created.

Options:
  --name NAME       whose or what for
  --endpoints LIST  only these paths and those below them, with commas; default all
  --models LIST     only these models of MODELS_FILE, with commas; default all

Examples:
  sluice keys create --name laptop
  sluice keys create --name embedder --endpoints /v1/chat/completions,/v1/jobs --models smollm2-135m-instruct
  sluice keys revoke key_7Qm2xT9bVd4KpZsR`,
  options: { name: { type: 'string' }, endpoints: { type: 'string' }, models: { type: 'string' } },
  async run(invocation): Promise<ExitCode> {
    // With it come all adapters, which no other command needs.
    const { openKeyStore } = await import('#shared/ports.ts')
    const [action = '', ...args] = invocation.args
    const run = Object.hasOwn(ACTIONS, action) ? ACTIONS[action] : undefined
    if (!run) throw usageError(action ? `keys ${action} is not understood.` : 'keys: create, list or revoke?')
    const store = await openKeyStore(invocation.config, (problem) => invocation.out.note(problem)).catch(
      (error: unknown) => unreachable(error),
    )
    try {
      return await run(store, args, invocation)
    } catch (error) {
      if (error instanceof CommandError) throw error
      return unreachable(error)
    } finally {
      await store.close()
    }
  },
}

type Action = (store: KeyStore, args: readonly string[], invocation: Invocation) => Promise<ExitCode>

const ACTIONS: Readonly<Record<string, Action>> = { create, list, revoke }

async function create(store: KeyStore, args: readonly string[], { values, out, config }: Invocation) {
  if (args[0] !== undefined) throw usageError(`${args[0]} is not understood here.`, 'Name the key with --name.')
  const endpoints = knownEndpoints(values.parts('endpoints'))
  const models = await knownModels(values.parts('models'), config.modelsFile)
  const { key, secret } = newKey({ name: values.text('name'), endpoints, models })
  const isFirst = (await store.list()).length === 0
  await store.create(key)
  if (isFirst && config.sluiceApiKey === undefined) {
    out.note('Now that there is a key, the service makes none of its own at its start.')
  }
  if (out.isForPeople) {
    await out.write(`${secret}\n`)
    out.note(`This is ${key.id}, and the secret is shown only now. Send it as: Authorization: Bearer …`)
  } else await out.json({ ...shown(key), secret })
  return EXIT.ok
}

function knownEndpoints(asked: string[] | undefined): string[] | undefined {
  const wrong = asked?.find((path) => !path.startsWith('/'))
  if (wrong !== undefined) throw usageError(`--endpoints ${wrong}: give paths such as /v1/chat/completions.`)
  const unknown = asked?.find((path) => !KEY_ENDPOINTS.includes(path))
  if (unknown === undefined) return asked
  throw usageError(`--endpoints ${unknown}: there is no such endpoint.`, `There are: ${KEY_ENDPOINTS.join(', ')}`)
}

/** The ids of models that may be named by an alias: a key is held against ids. */
async function knownModels(asked: string[] | undefined, modelsFile: string): Promise<string[] | undefined> {
  if (!asked) return undefined
  const { loadModels } = await import('#shared/models.ts')
  const catalogue = loadModels(modelsFile)
  return asked.map((name) => {
    const model = catalogue.find(name)
    if (model) return model.id
    const known = catalogue.models.map(({ id }) => id).join(', ')
    throw usageError(`--models ${name}: there is no such model in ${modelsFile}.`, `There are: ${known}`)
  })
}

async function list(store: KeyStore, args: readonly string[], { out, config }: Invocation) {
  if (args[0] !== undefined) throw usageError(`${args[0]} is not understood here.`)
  const found = await store.list()
  if (out.isForPeople) await out.write(found.length > 0 ? keyTable(found, out.columns) : 'No keys.\n')
  else for (const key of found) await out.json(shown(key))
  if (config.sluiceApiKey !== undefined) noteFixed(out)
  return EXIT.ok
}

async function revoke(store: KeyStore, args: readonly string[], { out }: Invocation) {
  const [id, more] = args
  if (id === undefined || more !== undefined) throw usageError('Give the id of one key.', 'See them: sluice keys list')
  const key = await store.revoke(id)
  if (!key) throw new CommandError(EXIT.refused, `There is no key ${id}.`, 'See which there are: sluice keys list')
  if (out.isForPeople) await out.write(`${key.id} is revoked.\n`)
  else await out.json(shown(key))
  return EXIT.ok
}

function keyTable(found: readonly ApiKey[], columnsMax: number): string {
  const nowMs = Date.now()
  const rows = found.map((key) => {
    const rights = [key.endpoints?.join(',') ?? 'all', key.models?.join(',') ?? 'all']
    const age = ageOf(key.created_at, nowMs)
    return [key.id, key.hint, age, key.revoked ? 'revoked' : 'valid', key.name ?? '', ...rights]
  })
  return tableOf({ head: ['id', 'secret', 'age', 'state', 'name', 'endpoints', 'models'], rows, spare: [] }, columnsMax)
}

/** What may be shown of a key: everything but its hash. */
function shown({ hash: _, ...rest }: ApiKey) {
  return rest
}

function noteFixed(out: Output): void {
  out.note(`${coloured('yellow', 'SLUICE_API_KEY')} is valid too (key_env); it is revoked by changing the setting.`)
}

/** @throws CommandError always */
function unreachable(error: unknown): never {
  const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : ''
  const message = error instanceof Error ? error.message : String(error)
  throw new CommandError(
    EXIT.unreachable,
    `The key store cannot be used: ${message}${cause}`,
    'Look closer: sluice doctor',
  )
}
