import { signal } from '@preact/signals'
import { fetchJson, isOperator, ownKey, type Page } from './client.ts'

/*
 * Names of projects and API keys, for screens whose data contains only ids. A key without the admin scope may not read
 * other keys and projects, so only its own name is known. If no name is known, then the id is shown.
 */

/** Id of the key that the setting SLUICE_API_KEY defines. This key has no name. */
const SETTING_KEY_ID = 'key_env'
const PAGE_SIZE = 100

interface Named {
  readonly id: string
  readonly name: string | null
}

export const namedProjects = signal<readonly Named[]>([])
export const namedKeys = signal<readonly Named[]>([])

export function projectName(id: string): string {
  return nameIn(namedProjects.value, id)
}

export function keyName(id: string): string {
  if (id === SETTING_KEY_ID) return 'Owner key'
  return nameIn([...namedKeys.value, ...(ownKey.value ? [ownKey.value] : [])], id)
}

/** Loads the newest projects and valid keys. Without them, ids are shown. */
export async function loadNames(signal: AbortSignal): Promise<void> {
  if (!isOperator.peek()) return
  const read = (what: string) => fetchJson<Page<Named>>(`/v1/admin/${what}?limit=${PAGE_SIZE}`, { signal })
  const [projects, keys] = await Promise.all([read('projects'), read('keys')])
  namedProjects.value = projects.data
  namedKeys.value = keys.data
}

function nameIn(all: readonly Named[], id: string): string {
  return all.find((one) => one.id === id)?.name ?? id
}
