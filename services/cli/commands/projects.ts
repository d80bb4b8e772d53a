import { type Command, type Invocation, noArguments, onlyArgument } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { nothingToChange } from '#services/cli/keys/key-id.ts'
import { LIMIT_HELP, LIMIT_OPTIONS, limitsOf } from '#services/cli/keys/limits.ts'
import { projectIdFor } from '#services/cli/keys/permissions.ts'
import { author, runOnStore, type StoreAction } from '#services/cli/keys/store.ts'
import { keyTable, projectTable } from '#services/cli/keys/tables.ts'
import { changeProject, createProject, keyView } from '#shared/keys/changes.ts'
import type { KeyStore } from '#shared/keys/keys.ts'
import { projectIdOf } from '#shared/keys/project.ts'

const FIELDS = ['name', ...Object.keys(LIMIT_OPTIONS)]

export const projects: Command = {
  summary: 'Create, list and update projects, which own jobs and keys',
  help: `Usage: sluice projects create [--name NAME] [limits]
       sluice projects list
       sluice projects get P
       sluice projects update P [--name NAME] [limits]

A project owns jobs and any number of keys (sluice keys create --project P). The keys of a project share jobs, idempotency keys and limits. P is
the id of a project, or its name if the name is unique. A standalone key is its own project with the id of the key; such a
project is listed only after its first update. A project cannot be deleted; revoke its keys instead.

Reads and writes the key store directly, as sluice keys does. A running service applies a change within a second.

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
  run: (invocation) => runOnStore('projects', ACTIONS, invocation),
}

const ACTIONS: Readonly<Record<string, StoreAction>> = {
  create: { options: FIELDS, run: create },
  list: { options: [], run: list },
  get: { options: [], run: get },
  update: { options: FIELDS, run: update },
}

async function create(store: KeyStore, args: readonly string[], { values, out }: Invocation): Promise<ExitCode> {
  noArguments(args)
  const name = values.text('name') || undefined
  const project = await createProject(store, { name, limits: limitsOf(values) ?? {} }, author())
  if (!out.isHumanReadable) await out.json(project)
  else await out.write(`${project.id}\nTo create a key: sluice keys create --project ${project.id}\n`)
  return EXIT.ok
}

async function list(store: KeyStore, args: readonly string[], { out }: Invocation): Promise<ExitCode> {
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

async function update(store: KeyStore, args: readonly string[], { values, out }: Invocation): Promise<ExitCode> {
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
  const project = onlyArgument(args, 'P (id or name of a project)')
  return await projectIdFor(store, project, project)
}
