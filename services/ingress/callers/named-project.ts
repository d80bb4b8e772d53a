import type { ValidKeys } from '#shared/keys/lenient.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'

/** Maximum projects that an error message lists, most similar first. */
const SHOWN_MAX = 10

/**
 * Returns the id of a project that an operator gave by id or name. If a text is both, then the id takes precedence. A
 * key without a project is its own project. An unknown id is accepted, because its jobs and usage may still be stored.
 *
 * @throws ServiceError `invalid_value` if no project, or more than one, has the name
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

/** Names of all projects by id: created projects, projects that only keys mention, and keys without a project. */
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
