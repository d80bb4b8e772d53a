import { fetchJson } from '#services/console/api/client.ts'
import type { Metrics } from '#services/console/api/metrics.ts'
import type { Model } from '#services/console/api/types.ts'

export interface NamedModel {
  readonly model: Model
  readonly aliases: readonly string[]
}

/** Name or alias → model id, cached. */
const idOf = new Map<string, string>()

/** Merges alias entries into their model. `GET /v1/models/ALIAS` returns the model that an alias stands for. */
export async function mergeAliases(
  models: readonly Model[],
  metrics: Metrics | undefined,
  abort: AbortSignal,
): Promise<readonly NamedModel[]> {
  for (const { labels } of metrics?.all('sluice_waiting_calls') ?? []) idOf.set(labels.model ?? '', labels.model ?? '')
  for (const { id } of models) if (!idOf.has(id)) idOf.set(id, await resolve(id, abort))
  return models
    .filter(({ id }) => idOf.get(id) === id)
    .map((model) => ({
      model,
      aliases: models.filter(({ id }) => id !== model.id && idOf.get(id) === model.id).map(({ id }) => id),
    }))
}

async function resolve(name: string, abort: AbortSignal): Promise<string> {
  return (await fetchJson<Model>(`/v1/models/${encodeURIComponent(name)}`, { signal: abort })).id
}
