import { ServiceError } from '#shared/error.ts'
import type { Known } from '#shared/keys/lenient.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { nearestOf } from '#shared/nearest.ts'

/** Projects that a refusal names: those that are most like what was asked for. */
const SHOWN_MAX = 10

/**
 * The id of the project that an operator means by its id or its name; a key that is a project of its own goes by its own. An id
 * wins over a name, and one that nobody has is taken as it is: jobs and usage of it may still be kept.
 *
 * @throws ServiceError `invalid_value` for a name that no project has, with those that there are, or that several have
 */
export function projectIdNamed(known: Known, text: string): string {
  const names = namesById(known)
  if (names.has(text)) return text
  const ids = [...names].flatMap(([id, name]) => (name === text ? [id] : []))
  const [id, second] = ids
  if (id !== undefined && second === undefined) return id
  if (second !== undefined) {
    const all = ids.slice(0, SHOWN_MAX).join(', ')
    throw refusal(`${ids.length} projects have the name '${text}': ${all}. Give the id of one.`)
  }
  if (/^(proj|key)_[-\w]+$/.test(text)) return text
  throw refusal(`There is no project '${text}'. ${thereAre(names, text)}`)
}

/** Names of all projects by their ids: those that were made, that keys name, and keys that are their own. */
function namesById({ keys, projects }: Known): Map<string, string | undefined> {
  const names = new Map<string, string | undefined>()
  for (const key of keys) names.set(projectIdOf(key), key.project === undefined ? key.name : undefined)
  for (const { id, name } of projects) names.set(id, name)
  return names
}

function thereAre(names: ReadonlyMap<string, string | undefined>, text: string): string {
  const labels = new Map([...names].map(([id, name]) => (name === undefined ? [id, id] : [name, `${name} (${id})`])))
  const shown = nearestOf(text, [...labels.keys()]).slice(0, SHOWN_MAX)
  const more = labels.size - shown.length
  return `There are: ${shown.map(({ name }) => labels.get(name)).join(', ')}${more > 0 ? `, and ${more} more` : ''}.`
}

function refusal(message: string): ServiceError {
  return new ServiceError('invalid_value', message, { param: 'project' })
}
