import { signal } from '@preact/signals'
import { fetchJson } from '#services/console/api/client.ts'
import type { Model, Page } from '#services/console/api/types.ts'
import { type Field, fieldsOf, type Reference } from './call/schema.ts'

interface Catalog {
  readonly models: readonly Model[]
  readonly reference: Reference
}

/** Undefined until loaded. */
export const catalog = signal<Catalog | undefined>(undefined)

export async function loadCatalog(): Promise<void> {
  const [{ data: models }, reference] = await Promise.all([
    fetchJson<Page<Model>>('/v1/models'),
    fetchJson<Reference>('/openapi.json'),
  ])
  catalog.value = { models, reference }
}

/** The options of an endpoint with these names, if its schema has them. Empty until the schema is loaded. */
export function optionsOf(path: string, names: readonly string[]): readonly Field[] {
  return catalog.value ? fieldsOf(catalog.value.reference, path, names) : []
}

export function modelsFor(capability: string): readonly Model[] {
  return catalog.value?.models.filter(({ capabilities }) => capabilities.includes(capability)) ?? []
}

/** The wanted model if it has the capability, else the first model that has it, else an empty string. */
export function modelFor(capability: string, wanted: string): string {
  const ids = modelsFor(capability).map(({ id }) => id)
  return ids.includes(wanted) ? wanted : (ids[0] ?? '')
}
