import type { Worker } from '#services/console/api/types.ts'

/** Who runs a model. */
export interface Served {
  /** That live and take jobs. */
  readonly workers: number
  /** Calls that they run at once. */
  readonly share: number
  readonly slots: number
  /** Workers that refuse its calls for a while, because each of its servers kept failing there (its circuit breaker is open). */
  readonly failing: number
  /** Calls at once that its servers were found to bear, by server: none that answered without complaint has one. */
  readonly limits: readonly { readonly server: number; readonly limit: number }[]
}

/** What the workers of a pool say of a model. @param id Of the model */
export function servedOf(id: string, pool: string, all: readonly Worker[]): Served {
  const workers = all.filter(
    ({ role, models, silent, draining }) =>
      role === pool && !silent && !draining && (models === null || models.includes(id)),
  )
  const sum = (of: (worker: Worker) => number) => workers.reduce((total, worker) => total + of(worker), 0)
  return {
    workers: workers.length,
    share: sum((worker) => placesOf(id, worker)),
    slots: sum(({ slots }) => slots),
    failing: workers.filter(({ failing }) => failing.includes(id)).length,
    limits: limitsOf(id, workers),
  }
}

/** A model without a bound may have every slot; one with several kinds of work has as many as the widest. */
function placesOf(id: string, { bounds, slots }: Worker): number {
  const own = bounds.filter(({ model }) => model === id).map(({ capacity }) => capacity)
  return own.length === 0 ? slots : Math.min(slots, Math.max(...own))
}

/** What one worker finds out holds for all, so of each server the newest counts. */
function limitsOf(id: string, workers: readonly Worker[]): Served['limits'] {
  const newest = new Map<number, Worker['found'][number]>()
  for (const one of workers.flatMap(({ found }) => found).filter(({ model }) => model === id)) {
    if (one.generation > (newest.get(one.server)?.generation ?? 0)) newest.set(one.server, one)
  }
  return [...newest.values()].toSorted((a, b) => a.server - b.server)
}
