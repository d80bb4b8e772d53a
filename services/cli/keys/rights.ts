import type { Invocation, Values } from '#services/cli/command.ts'
import { CommandError, EXIT, usageError } from '#services/cli/failure.ts'
import { didYouMean } from '#services/cli/text/near.ts'
import { plain } from '#services/cli/text/output.ts'
import { timeOf } from '#services/cli/text/time.ts'
import { KeyScope, type KeyStore } from '#shared/keys/keys.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { KEY_ENDPOINTS } from '#shared/keys/scopes.ts'

/** The id of the key that SLUICE_API_KEY is, and of its project. */
export const FIXED_KEY_ID = 'key_env'

/** The paths of `--endpoints`. @throws CommandError with the near ones for one that there is not */
export function endpointsOf(values: Values): string[] | undefined {
  const asked = values.parts('endpoints')
  const wrong = asked?.find((path) => !path.startsWith('/'))
  if (wrong !== undefined) throw usageError(`--endpoints ${wrong}: give paths such as /v1/chat/completions.`)
  const unknown = asked?.find((path) => !KEY_ENDPOINTS.includes(path))
  if (unknown === undefined) return asked
  throw unknownName('--endpoints', unknown, 'endpoint', KEY_ENDPOINTS)
}

/** The ids of the models of `--models`, which may be named by an alias: a key is held against ids. @throws CommandError */
export async function modelsOf({ values, config }: Invocation): Promise<string[] | undefined> {
  const asked = values.parts('models')
  if (!asked) return undefined
  const { loadModels } = await import('#shared/models/models.ts')
  const catalogue = loadModels(config.modelsFile)
  return asked.map((name) => {
    const model = catalogue.find(name)
    if (model) return model.id
    const known = catalogue.models.map(({ id }) => id)
    throw unknownName('--models', name, 'model', known, ` in ${config.modelsFile}`)
  })
}

/** The scopes of `--scopes`. @throws CommandError */
export function scopesOf(values: Values): KeyScope[] | undefined {
  return values.parts('scopes')?.map((name) => {
    const scope = KeyScope.safeParse(name)
    if (scope.success) return scope.data
    throw unknownName('--scopes', name, 'scope', KeyScope.options)
  })
}

/** When `--expires` is, in unix seconds; null for `never`. @throws CommandError for a time that is over */
export function expiryOf(values: Values): number | null | undefined {
  const text = values.text('expires')
  if (text === undefined) return undefined
  if (text === 'never') return null
  const nowMs = Date.now()
  const at = timeOf('expires', text, nowMs, 1)
  if (at * 1_000 > nowMs) return at
  throw usageError(`--expires ${text}: that time is over.`)
}

/**
 * The id of a project by its id or name: one that was made, or one that a key without project is.
 *
 * @param where How the caller named it, for messages.
 * @throws CommandError with the near ones where there is none, or several of the name
 */
export async function projectIdFor(store: KeyStore, asked: string, where: string): Promise<string> {
  const projects = await store.listProjects()
  const ids = new Set([FIXED_KEY_ID, ...projects.map(({ id }) => id), ...(await store.list()).map(projectIdOf)])
  if (ids.has(asked)) return asked
  const named = projects.filter(({ name }) => name === asked)
  if (named.length > 1) {
    throw usageError(`${where}: ${named.length} projects have this name.`, `Give the id: ${idList(named)}`)
  }
  if (named[0]) return named[0].id
  const names = projects.flatMap(({ name }) => (name === undefined ? [] : plain(name)))
  const near = didYouMean(asked, [...names, ...ids])
  throw new CommandError(EXIT.refused, `${where}: there is no such project.`, `${near}See them: sluice projects list`)
}

function idList(projects: readonly { readonly id: string }[]): string {
  return projects
    .slice(0, 5)
    .map(({ id }) => id)
    .join(', ')
}

function unknownName(option: string, name: string, what: string, known: readonly string[], where = ''): CommandError {
  const next = `${didYouMean(name, known)}There are: ${known.join(', ')}`
  return usageError(`${option} ${name}: there is no such ${what}${where}.`, next)
}
