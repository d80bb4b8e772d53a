import type { PoolName } from '#schemas/job.ts'
import type { EngineConfig } from '#schemas/models.ts'
import { IN_FLIGHT_MAX } from '#shared/engines/upstream/upstream.ts'
import type { ModelCatalogue } from '#shared/models.ts'
import type { WorkerDefinition } from './worker.ts'

/**
 * The models a worker of a pool can run, and how many jobs of each at once where these are fewer than its slots.
 *
 * @param kind The kind of job that takes a place in the model's engine.
 */
export function modelsOf(
  { models }: ModelCatalogue,
  pool: PoolName,
  kind: string,
  slots: number,
): Required<Pick<WorkerDefinition, 'models' | 'bounds'>> {
  const own = models.filter((model) => model.pool === pool)
  const bounds = own.map(({ id, engine }) => ({ kind, model: id, capacity: callsAtOnce(engine) }))
  return {
    models: own.flatMap(({ id, aliases }) => [id, ...aliases]),
    bounds: bounds.filter(({ capacity }) => capacity < slots),
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
