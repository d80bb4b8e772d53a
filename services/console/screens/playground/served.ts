import { signal } from '@preact/signals'
import { askJson } from '#services/console/api/client.ts'
import type { Model, Page } from '#services/console/api/types.ts'
import { type Field, fieldsOf, type Reference } from './call/schema.ts'

/** What this key may ask for. */
interface Served {
  readonly models: readonly Model[]
  readonly reference: Reference
}

/** Undefined until it is known. */
export const served = signal<Served | undefined>(undefined)

/** Finds out what is served to this key. @throws ApiFailure, TypeError */
export async function loadServed(): Promise<void> {
  const [{ data: models }, reference] = await Promise.all([
    askJson<Page<Model>>('/v1/models'),
    askJson<Reference>('/openapi.json'),
  ])
  served.value = { models, reference }
}

/** The options of an endpoint, of those that are named; none before they are known. */
export function optionsOf(path: string, names: readonly string[]): readonly Field[] {
  return served.value ? fieldsOf(served.value.reference, path, names) : []
}

/** The models that can do something. */
export function modelsFor(capability: string): readonly Model[] {
  return served.value?.models.filter(({ capabilities }) => capabilities.includes(capability)) ?? []
}

/** A model that can do something: the wanted one where it can, else the first. */
export function modelFor(capability: string, wanted: string): string {
  const ids = modelsFor(capability).map(({ id }) => id)
  return ids.includes(wanted) ? wanted : (ids[0] ?? '')
}
