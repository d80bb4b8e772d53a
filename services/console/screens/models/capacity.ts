import type { ModelServers, Worker } from '#services/console/api/client.ts'

export interface ModelCapacity {
  readonly workers: number
  readonly concurrency: number
  readonly slots: number
  /**
   * Adaptive concurrency limits by server. A server without an entry has never signalled overload, so it has no such
   * limit.
   */
  readonly limits: readonly { readonly server: number; readonly limit: number }[]
}

export function capacityOf(id: string, pool: string, all: readonly Worker[]): ModelCapacity {
  const workers = all.filter(
    ({ role, models, suspected, draining }) =>
      role === pool && !suspected && !draining && (models === null || models.includes(id)),
  )
  const sum = (count: (worker: Worker) => number) => workers.reduce((total, worker) => total + count(worker), 0)
  return {
    workers: workers.length,
    concurrency: sum((worker) => slotsOf(id, worker)),
    slots: sum(({ slots }) => slots),
    limits: limitsOf(id, workers),
  }
}

/**
 * Returns the number of a worker's slots that a model can use. A model without a concurrency limit can use all slots. If each kind of work has its
 * own limit, then the highest one applies.
 */
function slotsOf(id: string, { concurrency_limits, slots }: Worker): number {
  const own = concurrency_limits.filter(({ model }) => model === id).map(({ capacity }) => capacity)
  return own.length === 0 ? slots : Math.min(slots, Math.max(...own))
}

/**
 * Returns the adaptive concurrency limits of a model. All workers publish the limit of each server, and the limit with the highest generation is the
 * newest.
 */
function limitsOf(id: string, workers: readonly Worker[]): ModelCapacity['limits'] {
  const newest = new Map<number, Worker['adaptive_limits'][number]>()
  for (const one of workers.flatMap(({ adaptive_limits }) => adaptive_limits).filter(({ model }) => model === id)) {
    if (one.generation > (newest.get(one.server)?.generation ?? 0)) newest.set(one.server, one)
  }
  return [...newest.values()].toSorted((a, b) => a.server - b.server)
}

/** Returns the percentage of prompt tokens that were read from the cache: of the model, and of each server if there are several. */
export function cachedStats({ cached_share: all, servers }: ModelServers): [string, string][] {
  if (all === null) return []
  const each = servers.length > 1 ? servers : []
  return [
    ['Cached prompt tokens', percentText(all)],
    ...each.map(({ server, cached_share }): [string, string] => [
      `Cached on server ${server + 1}`,
      cached_share === null ? '–' : percentText(cached_share),
    ]),
  ]
}

function percentText(share: number): string {
  return `${Math.round(100 * share)} %`
}
