import { askJson } from '#services/console/api/client.ts'
import type { Figures } from '#services/console/api/metrics.ts'
import type { Model } from '#services/console/api/types.ts'

/** A model of the catalogue, with the other names that it has. */
export interface NamedModel {
  readonly model: Model
  readonly aliases: readonly string[]
}

/** What a name stands for, once that was asked. */
const idOf = new Map<string, string>()

/** The same list without the rows that are aliases: the service gives an alias its model. */
export async function withoutAliases(
  models: readonly Model[],
  figures: Figures | undefined,
  abort: AbortSignal,
): Promise<readonly NamedModel[]> {
  for (const { labels } of figures?.all('sluice_waiting_calls') ?? []) idOf.set(labels.model ?? '', labels.model ?? '')
  for (const { id } of models) if (!idOf.has(id)) idOf.set(id, await resolve(id, abort))
  return models
    .filter(({ id }) => idOf.get(id) === id)
    .map((model) => ({
      model,
      aliases: models.filter(({ id }) => id !== model.id && idOf.get(id) === model.id).map(({ id }) => id),
    }))
}

async function resolve(name: string, abort: AbortSignal): Promise<string> {
  return (await askJson<Model>(`/v1/models/${encodeURIComponent(name)}`, { signal: abort })).id
}
