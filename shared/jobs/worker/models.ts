import type { PoolName } from '#schemas/job.ts'
import type { EngineConfig } from '#schemas/models.ts'
import type { ConcurrencyLimit } from '#shared/capacity/bulkheads.ts'
import { addressesOf, CALLS_PER_SERVER_MAX } from '#shared/engines/upstream/servers.ts'
import type { Models } from '#shared/models/models.ts'
import type { WorkerDefinition } from './worker.ts'

export type OwnModels = Required<Pick<WorkerDefinition, 'models' | 'concurrencyLimits' | 'modelCount'>>

export interface OwnModelsOptions {
  readonly pool: PoolName
  readonly kinds: readonly string[]
  readonly slots: number
  /** True if several jobs are combined into one call (batching), so that the concurrency limit of an engine does not apply to jobs. */
  readonly isBatched?: boolean
  readonly placesOf?: (model: string) => number | undefined
}

/**
 * Models that a worker of a pool can run, with the concurrency limit of each: that of its engine, at most the number of slots. A
 * limit is published only if it is below the slots, is adaptive, or several models share the slots.
 */
export function modelsOf({ models }: Models, options: OwnModelsOptions): OwnModels {
  const { pool, kinds, slots, isBatched = false, placesOf } = options
  const own = models.filter((model) => model.pool === pool)
  const concurrencyLimits = own.flatMap(({ id, engine }) => {
    const capacity = isBatched ? slots : Math.min(slots, callsAtOnce(engine))
    const currentLimit = placesOf && (() => placesOf(id))
    return kinds.map((kind): ConcurrencyLimit => ({ kind, model: id, capacity, ...(currentLimit && { currentLimit }) }))
  })
  return {
    models: own.flatMap(({ id, aliases }) => [id, ...aliases]),
    concurrencyLimits: concurrencyLimits.filter(({ capacity }) => capacity < slots || placesOf || own.length > 1),
    modelCount: own.length,
  }
}

/** Maximum concurrent calls of one engine in one worker; further calls wait in the engine's queue. */
function callsAtOnce(engine: EngineConfig): number {
  switch (engine.type) {
    case 'llama':
      return engine.parallel
    case 'openai':
    case 'anthropic':
      return (engine.concurrency ?? CALLS_PER_SERVER_MAX) * addressesOf(engine).length
    case 'local':
      return engine.concurrency
    case 'echo':
    case 'research':
      return Number.POSITIVE_INFINITY
  }
}
