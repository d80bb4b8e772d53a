import type { PoolName } from '#schemas/job.ts'
import type { EngineConfig } from '#schemas/models.ts'
import type { ConcurrencyLimit } from '#shared/capacity/bulkheads.ts'
import { missingKeyOf } from '#shared/engines/upstream/key.ts'
import { addressesOf, CALLS_PER_SERVER_MAX } from '#shared/engines/upstream/servers.ts'
import { ownerOf } from '#shared/jobs/owner.ts'
import type { Models } from '#shared/models/models.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { Starvation } from '#shared/process/starvation.ts'
import { Worker, type WorkerDefinition } from './worker.ts'

/** Time without an iteration of the consume loop after which the worker counts as stuck. */
const IDLE_MS_MAX = 10_000

interface Pool extends Omit<WorkerDefinition, keyof OwnModels> {
  readonly own?: () => OwnModels
  /** Closes the engines of removed models. @param untilOver Resolves when all attempts that run now have ended */
  readonly retire?: (untilOver: Promise<void>) => Promise<void>
}

/**
 * Starts one worker of a pool as a service, with metrics and health, and applies model changes.
 *
 * @param close Closes the resources of the kinds after the last attempt
 * @param problems Health problems of the kinds, as sentences
 */
export async function startWorker(
  ports: Ports,
  { own, retire, ...definition }: Pool,
  close: () => Promise<void> = async () => {},
  problems: () => string[] = () => [],
): Promise<Service> {
  const { config, log, metrics, broker, blobs, version, onFatal } = ports
  const store = ports.store && ownerOf(ports.store)
  const { name, slots } = definition
  warnOfKeys(ports, name)
  const observer: Parameters<typeof Worker.open>[1]['observer'] = {
    onEnd: (job, end, durationMs) => {
      // For a batch, the model field holds the batch's target and would create one time series per value.
      const model = job.pool === 'batches' ? '' : job.model
      metrics.attempts.inc({ pool: job.pool, model, outcome: end })
      metrics.attemptSeconds.observe({ pool: job.pool, model }, durationMs / 1_000)
    },
  }
  const { jobLeaseMs: leaseMs, bodyBudgetBytes } = config
  const { pauses, upstreams } = ports
  const options = { broker, blobs, log, version, store, leaseMs, bodyBudgetBytes, pauses, upstreams, onFatal, observer }
  const worker = await Worker.open({ ...definition, ...own?.() }, options)
  const forgetModels = ports.models.onChange(() => {
    const untilOver = own ? worker.change(own()) : Promise.resolve()
    retire?.(untilOver).catch((error: unknown) =>
      log.warn({ err: error, pool: name }, 'engine of a removed model could not be closed'),
    )
  })
  metrics.gauge('sluice_pool_running', { pool: name }, () => worker.running)
  metrics.gauge('sluice_worker_parked_calls', { pool: name }, () => worker.parkedCalls)
  metrics.gauge('sluice_worker_requeued_total', { pool: name }, () => worker.requeued)
  metrics.gauge('sluice_pool_slots', { pool: name }, () => slots)
  metrics.gauge('sluice_queue_unacked_records', { pool: name }, () => broker.lag(`jobs.${name}`))
  const starved = new Starvation(worker, slots, () => broker.lag(`jobs.${name}`))
  return {
    name,
    drain: (signal) => worker.drain(signal),
    problems: () => {
      const isStuck = worker.idleMs > IDLE_MS_MAX
      return [
        ...(isStuck
          ? [`The ${name} worker does not take jobs from its queue.`]
          : worker.isDraining
            ? []
            : starved.problems(name)),
        ...problems(),
      ]
    },
    async close() {
      forgetModels()
      starved.close()
      await worker.close()
      await close()
    },
  }
}

function warnOfKeys({ models, config, log }: Ports, pool: string): void {
  for (const model of models.served.models) {
    const variable = model.pool === pool ? missingKeyOf(model, config.env) : undefined
    if (variable) log.warn({ model: model.id, variable }, 'api_key_env is not set; calls to this model fail')
  }
}

type OwnModels = Required<Pick<WorkerDefinition, 'models' | 'concurrencyLimits' | 'modelCount'>>

interface OwnModelsOptions {
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
