import { missingKeyOf } from '#shared/engines/upstream/key.ts'
import { arbiterOf } from '#shared/jobs/arbiter.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { Starvation } from '#shared/process/starvation.ts'
import { Worker, type WorkerDefinition } from './worker.ts'

/** Silence of the consume loop after which the worker makes no progress. */
const IDLE_MS_MAX = 10_000

/**
 * Starts one worker of a pool as a service: its loop, its metrics, its health.
 *
 * @param close Closes what the kinds work with; after the last attempt has ended.
 * @param problems Sentences that say why the kinds cannot work now.
 */
export async function startWorker(
  ports: Ports,
  definition: WorkerDefinition,
  close: () => Promise<void> = async () => {},
  problems: () => string[] = () => [],
): Promise<Service> {
  const { config, log, metrics, broker, blobs, version, onFatal } = ports
  const store = ports.store && arbiterOf(ports.store)
  const { name, slots } = definition
  warnOfKeys(ports, name)
  const observer: Parameters<typeof Worker.open>[1]['observer'] = {
    onEnd: (job, end, durationMs) => {
      metrics.attempts.inc({ pool: job.pool, end })
      metrics.attemptSeconds.observe({ pool: job.pool, model: job.model }, durationMs / 1_000)
    },
  }
  const { jobLeaseMs: leaseMs, bodyBudgetBytes: bodyRoomBytes } = config
  const { pauses } = ports
  const options = { broker, blobs, log, version, store, leaseMs, bodyRoomBytes, pauses, onFatal, observer }
  const worker = await Worker.open(definition, options)
  metrics.gauge('sluice_pool_running', 'Attempts that run on this worker', { pool: name }, () => worker.running)
  metrics.gauge('sluice_pool_slots', 'Attempts this worker runs at most', { pool: name }, () => slots)
  metrics.gauge('sluice_queue_lag', 'Records in the queue that nobody acknowledged', { pool: name }, () =>
    broker.lag(`jobs.${name}`),
  )
  const starved = new Starvation(worker, slots, () => broker.lag(`jobs.${name}`))
  return {
    name,
    drain: (signal) => worker.drain(signal),
    problems: () => {
      const isStuck = worker.idleMs > IDLE_MS_MAX
      return [
        ...(isStuck ? [`The ${name} worker takes no jobs.`] : worker.isDraining ? [] : starved.problems(name)),
        ...problems(),
      ]
    },
    async close() {
      starved.close()
      await worker.close()
      await close()
    },
  }
}

function warnOfKeys({ models, config, log }: Ports, pool: string): void {
  for (const model of models.models) {
    const variable = model.pool === pool ? missingKeyOf(model, config.env) : undefined
    if (variable) log.warn({ model: model.id, variable }, 'api_key_env is not set; calls to this model fail')
  }
}
