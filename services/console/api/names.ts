import { signal } from '@preact/signals'
import { fetchJson, isOperator, ownKey, type Page, remembered } from './client.ts'

/*
 * Names of projects and API keys, for screens whose data contains only ids. A key without the admin scope may not read
 * other keys and projects, so only its own name is known. If no name is known, then the id is shown.
 */

/** Id of the key that the setting SLUICE_API_KEY defines, and of the project of this key. Neither has a name. */
const SETTING_KEY_ID = 'key_env'
const OWNER = 'Owner key'
const PAGE_SIZE = 100

interface Named {
  readonly id: string
  readonly name: string | null
}

const PROJECTS = 'sluice-projects'
const KEYS = 'sluice-keys'

/**
 * Names of projects and keys. After a reload of the page, these are the names in session storage,
 * until {@link loadNames} has read the current names.
 */
export const namedProjects = signal<readonly Named[]>(remembered(PROJECTS) ?? [])
export const namedKeys = signal<readonly Named[]>(remembered(KEYS) ?? [])

export function projectName(id: string): string {
  if (id === SETTING_KEY_ID) return OWNER
  const own = ownKey.value
  return nameIn([...namedProjects.value, ...(own ? [{ id: own.project, name: own.project_name }] : [])], id)
}

export function keyName(id: string): string {
  if (id === SETTING_KEY_ID) return OWNER
  return nameIn([...namedKeys.value, ...(ownKey.value ? [ownKey.value] : [])], id)
}

/**
 * Reads the names of the newest projects and of the newest valid keys, at most {@link PAGE_SIZE} of each. Any other
 * project or key is shown by its id.
 */
export async function loadNames(signal: AbortSignal): Promise<void> {
  if (!isOperator.peek()) return
  const read = (what: string) => fetchJson<Page<Named>>(`/v1/admin/${what}?limit=${PAGE_SIZE}`, { signal })
  const [projects, keys] = await Promise.all([read('projects'), read('keys')])
  namedProjects.value = projects.data
  namedKeys.value = keys.data
  // Only ids and names are stored, because the rest may be large.
  const store = (name: string, all: readonly Named[]) =>
    sessionStorage.setItem(name, JSON.stringify(all.map(({ id, name }) => ({ id, name }))))
  store(PROJECTS, projects.data)
  store(KEYS, keys.data)
}

function nameIn(all: readonly Named[], id: string): string {
  return all.find((one) => one.id === id)?.name ?? id
}
