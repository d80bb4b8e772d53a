import { signal } from '@preact/signals'
import { useMemo } from 'preact/hooks'
import { type ApiKey, fetchJson, messageOf, type Page, type Project } from '#services/console/api/client.ts'
import { projectName } from '#services/console/api/names.ts'

const PAGE_SIZE = 100
const ITEMS_MAX = 1_000

export const projects = signal<readonly Project[]>([])
export const keys = signal<readonly ApiKey[]>([])
export const hasMore = signal(false)
export const isLoaded = signal(false)
export const problem = signal('')

interface KeyFilter {
  readonly project: string
  readonly state: string
}

export async function refresh({ project, state }: KeyFilter, abort?: AbortSignal): Promise<void> {
  try {
    const filter = { ...(project && { project }), ...(state && { state }) }
    const found = await fetchAll<ApiKey>('/v1/admin/keys', filter, abort)
    const all = await fetchAll<Project>('/v1/admin/projects', {}, abort)
    keys.value = found.data
    hasMore.value = found.has_more
    projects.value = all.data
    isLoaded.value = true
    problem.value = ''
  } catch (error) {
    if (!abort?.aborted) problem.value = messageOf(error)
  }
}

export type CreatedKey = ApiKey & { readonly secret: string }

export async function createKey(body: object): Promise<CreatedKey> {
  return await fetchJson('/v1/admin/keys', { method: 'POST', body })
}

export async function updateKey(id: string, body: object): Promise<void> {
  await fetchJson(pathOf('keys', id), { method: 'POST', body })
}

export async function rotateKey(id: string, body: object): Promise<CreatedKey> {
  return await fetchJson(`${pathOf('keys', id)}/rotate`, { method: 'POST', body })
}

export async function revokeKey(id: string): Promise<void> {
  await fetchJson(`${pathOf('keys', id)}/revoke`, { method: 'POST' })
}

/** Creates a project, or updates the project with this id. @throws ApiFailure */
export async function saveProject(id: string | undefined, body: object): Promise<void> {
  await fetchJson(id === undefined ? '/v1/admin/projects' : pathOf('projects', id), { method: 'POST', body })
}

export function nameOf(id: string): string {
  return projects.value.find((project) => project.id === id)?.name ?? projectName(id)
}

function pathOf(what: 'keys' | 'projects', id: string): string {
  return `/v1/admin/${what}/${encodeURIComponent(id)}`
}

async function fetchAll<Item>(path: string, filter: Record<string, string>, signal?: AbortSignal) {
  const data: Item[] = []
  let after: string | null = null
  for (;;) {
    const query = new URLSearchParams({ limit: String(PAGE_SIZE), ...filter, ...(after && { after }) })
    const page: Page<Item> = await fetchJson(`${path}?${query}`, signal ? { signal } : {})
    data.push(...page.data)
    after = page.last_id
    if (!page.has_more || data.length >= ITEMS_MAX) return { data, has_more: page.has_more }
  }
}

export class Draft {
  readonly #values = signal<Readonly<Record<string, string>>>({})

  constructor(before: Readonly<Record<string, string>> = {}) {
    this.#values.value = before
  }

  text(name: string): string {
    return this.#values.value[name] ?? ''
  }

  set(name: string, text: string): void {
    this.#values.value = { ...this.#values.value, [name]: text }
  }

  number(name: string): number | null {
    const text = this.text(name).trim()
    return text === '' ? null : Number(text)
  }

  /** Returns values separated by commas or spaces. Null for an empty field. */
  parts(name: string): string[] | null {
    const parts = this.text(name)
      .split(/[\s,]+/)
      .filter(Boolean)
    return parts.length > 0 ? parts : null
  }
}

export function useDraft(before: Readonly<Record<string, string>> = {}): Draft {
  return useMemo(() => new Draft(before), [])
}
