import type { PoolName } from '#schemas/job.ts'
import type { EngineConfig } from '#schemas/models.ts'
import { IN_FLIGHT_MAX } from '#shared/engines/upstream/upstream.ts'
import type { ModelCatalogue } from '#shared/models.ts'
import { slotsKept } from './lanes.ts'
import type { WorkerDefinition } from './worker.ts'

/** What a worker says of its models. */
type OwnModels = Required<Pick<WorkerDefinition, 'models' | 'bounds' | 'modelCount'>>

/**
 * The models a worker of a pool can run, and how many jobs of each at once where these are fewer than its slots: because
 * its engine runs no more, or because others have their share of the slots.
 *
 * @param kinds The kinds of job that take a place in a model's engine.
 * @param callsOf Calls of an engine at once; default: as the engine's config bounds them.
 */
export function modelsOf(
  { models }: ModelCatalogue,
  pool: PoolName,
  kinds: readonly string[],
  slots: number,
  callsOf: (engine: EngineConfig) => number = callsAtOnce,
): OwnModels {
  const own = models.filter((model) => model.pool === pool)
  const most = own.length > 1 ? slots - slotsKept(slots) : slots
  const bounds = own.flatMap(({ id, engine }) =>
    kinds.map((kind) => ({ kind, model: id, capacity: Math.min(most, callsOf(engine)) })),
  )
  return {
    models: own.flatMap(({ id, aliases }) => [id, ...aliases]),
    bounds: bounds.filter(({ capacity }) => capacity < slots),
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
      return engine.concurrency ?? IN_FLIGHT_MAX
    case 'local':
      return engine.concurrency
    case 'echo':
    case 'research':
      return Number.POSITIVE_INFINITY
  }
}
