import type { Invocation, Values } from '#services/cli/command.ts'
import { CommandError, EXIT, usageError } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'
import { didYouMean } from '#services/cli/text/similar-names.ts'
import { timeOf } from '#services/cli/text/time.ts'
import { KeyScope, type KeyStore } from '#shared/keys/keys.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { KEY_ENDPOINTS } from '#shared/keys/scopes.ts'

/** Id of the key in the setting SLUICE_API_KEY, and of that key's project. */
export const ENV_KEY_ID = 'key_env'

/** Value of `--endpoints`. @throws CommandError with similar names for an unknown endpoint */
export function endpointsOf(values: Values): string[] | undefined {
  const paths = values.parts('endpoints')
  const invalid = paths?.find((path) => !path.startsWith('/'))
  if (invalid !== undefined) {
    throw usageError(`--endpoints must be paths such as /v1/chat/completions; got '${invalid}'.`)
  }
  const unknown = paths?.find((path) => !KEY_ENDPOINTS.includes(path))
  if (unknown === undefined) return paths
  throw unknownName('--endpoints', unknown, 'endpoint', KEY_ENDPOINTS)
}

/** Value of `--models` as model ids. Aliases are resolved, because permissions are checked by id. @throws CommandError */
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

/** Value of `--scopes`. @throws CommandError */
export function scopesOf(values: Values): KeyScope[] | undefined {
  return values.parts('scopes')?.map((name) => {
    const scope = KeyScope.safeParse(name)
    if (scope.success) return scope.data
    throw unknownName('--scopes', name, 'scope', KeyScope.options)
  })
}

/** Value of `--expires` in Unix seconds; null for `never`. @throws CommandError for a time in the past */
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
 * Resolves a project id or name to an id. A standalone key is a project too.
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
    throw usageError(`${source}: ${named.length} projects have this name.`, `Use an id: ${idList(named)}`)
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
