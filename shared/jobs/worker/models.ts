import type { PoolName } from '#schemas/job.ts'
import type { EngineConfig } from '#schemas/models.ts'
import { addressesOf, IN_FLIGHT_MAX } from '#shared/engines/upstream/servers.ts'
import type { Models } from '#shared/models/models.ts'
import type { WorkerDefinition } from './worker.ts'

/** What a worker says of its models. */
export type OwnModels = Required<Pick<WorkerDefinition, 'models' | 'bounds' | 'modelCount'>>

/** What differs from pool to pool in {@link modelsOf}. */
export interface OwnModelsOptions {
  readonly pool: PoolName
  /** The kinds of job that take a place in a model's engine. */
  readonly kinds: readonly string[]
  readonly slots: number
  /** Its jobs share calls, so the bound of an engine is none of theirs. */
  readonly isBatched?: boolean
  /** Calls that the engine of a model bears now, where that changes. */
  readonly placesOf?: (model: string) => number | undefined
}

/**
 * The models a worker of a pool can run, and how many jobs of each at once: as many as its engine runs, up to the slots. The
 * bound of a model that can fill them is named only if its engine may lower it, or other models share the slots.
 */
export function modelsOf({ models }: Models, options: OwnModelsOptions): OwnModels {
  const { pool, kinds, slots, isBatched = false, placesOf } = options
  const own = models.filter((model) => model.pool === pool)
  const bounds = own.flatMap(({ id, engine }) => {
    const capacity = isBatched ? slots : Math.min(slots, callsAtOnce(engine))
    const now = placesOf && { now: () => placesOf(id) }
    return kinds.map((kind) => ({ kind, model: id, capacity, ...now }))
  })
  return {
    models: own.flatMap(({ id, aliases }) => [id, ...aliases]),
    bounds: bounds.filter(({ capacity }) => capacity < slots || placesOf || own.length > 1),
    modelCount: own.length,
  }
}

/** Calls that one engine in one worker runs at once; the others wait in its line. */
function callsAtOnce(engine: EngineConfig): number {
  switch (engine.type) {
    case 'llama':
      return engine.parallel
    case 'openai':
    case 'anthropic':
      return (engine.concurrency ?? IN_FLIGHT_MAX) * addressesOf(engine).length
    case 'local':
      return engine.concurrency
    case 'echo':
    case 'research':
      return Number.POSITIVE_INFINITY
  }
}
