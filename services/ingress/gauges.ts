import { REFUSAL_REASONS } from '#schemas/error.ts'
import { PoolName } from '#schemas/job.ts'
import { addressesOf } from '#shared/engines/upstream/servers.ts'
import type { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import { Hysteresis, type PoolWork, secondsToEmpty, slotsNeeded } from '#shared/jobs/fleet-work.ts'
import type { Ports } from '#shared/ports.ts'

/** Registers the gauges of the calls of this ingress, and of the jobs and workers of the whole fleet. */
export function showGauges(ports: Pick<Ports, 'metrics' | 'models'>, jobs: AttachedJobs): void {
  // Each counter begins with a sample of 0. Without this sample, the PromQL function `increase` would not count the
  // first event.
  for (const pool of PoolName.options) ports.metrics.workersLost.inc({ pool }, 0)
  for (const reason of REFUSAL_REASONS) ports.metrics.refusals.inc({ reason }, 0)
  showCalls(ports, jobs)
  showProjects(ports, jobs)
  showFleet(ports, jobs)
  showWanted(ports, jobs)
}

function showCalls({ metrics, models }: Pick<Ports, 'metrics' | 'models'>, jobs: AttachedJobs): void {
  for (const pool of PoolName.options) {
    for (const state of ['queued', 'running'] as const) {
      metrics.gauge('sluice_attached_jobs', { pool, state }, () => jobs.count(pool, state))
    }
  }
  metrics.rows('sluice_waiting_calls', () =>
    models.models.map(({ id, pool }) => [{ pool, model: id }, jobs.waitingOf(pool, id)] as const),
  )
  metrics.rows('sluice_calls_oldest_seconds', () =>
    jobs.work().map(({ pool, model, oldest_at_ms: since }) => [{ pool, model }, ageOf(since)] as const),
  )
}

function ageOf(sinceMs: number | undefined): number {
  return sinceMs === undefined ? 0 : Math.max(0, Date.now() - sinceMs) / 1_000
}

function showProjects({ metrics }: Pick<Ports, 'metrics'>, jobs: AttachedJobs): void {
  metrics.rows('sluice_project_calls', () => {
    const counts = new Map<string, { project: string; queued: number; running: number }>()
    for (const { envelope, state } of jobs.all()) {
      const project = envelope.tenant
      const row = counts.get(project) ?? { project, queued: 0, running: 0 }
      counts.set(project, row)
      row[state === 'queued' ? 'queued' : 'running']++
    }
    return [...counts.values()].flatMap(({ project, queued, running }) => [
      [{ project, state: 'queued' }, queued] as const,
      [{ project, state: 'running' }, running] as const,
    ])
  })
  metrics.rows('sluice_project_oldest_seconds', () => {
    const oldest = new Map<string, number>()
    for (const { envelope, state } of jobs.all())
      if (state === 'queued' && !oldest.has(envelope.tenant)) oldest.set(envelope.tenant, envelope.created_at_ms)
    return [...oldest].map(([project, since]) => [{ project }, ageOf(since)] as const)
  })
}

function showFleet({ metrics }: Pick<Ports, 'metrics'>, jobs: AttachedJobs): void {
  for (const pool of PoolName.options) {
    for (const state of ['queued', 'running'] as const) {
      metrics.gauge('sluice_fleet_calls', { pool, state }, () => jobs.fleetWork(pool).calls[state])
    }
    const workers = () => jobs.presence.workers(pool)
    const draining = () => workers().filter((worker) => worker.draining)
    const suspected = () => workers().filter((worker) => worker.isSuspected && !worker.draining)
    metrics.gauge('sluice_workers', { pool, state: 'draining' }, () => draining().length)
    metrics.gauge('sluice_workers', { pool, state: 'suspected' }, () => suspected().length)
    metrics.gauge('sluice_workers', { pool, state: 'alive' }, () => {
      return workers().length - draining().length - suspected().length
    })
    metrics.gauge('sluice_queue_empty_seconds', { pool }, () => {
      const loads = [...jobs.fleetWork(pool).models.values()]
      // The gauge shows the maximum over the queue of the whole pool and the queue of each model. A model with a concurrency
      // limit uses few slots, so its queue may need more time than the queue of the pool.
      const all = [
        secondsToEmpty(loads, jobs.presence.slots(pool)),
        ...loads.map((load) => secondsToEmpty([load], jobs.presence.slotsOf(pool, load.model))),
      ]
      return all.includes(undefined) ? undefined : Math.max(...(all as number[]))
    })
  }
}

function showWanted({ metrics, models }: Pick<Ports, 'metrics' | 'models'>, jobs: AttachedJobs): void {
  const { presence } = jobs
  const [workersWanted, serversWanted] = [new Hysteresis(), new Hysteresis()]
  const slotsPerWorker = new Map<PoolName, number>()
  for (const pool of PoolName.options) {
    metrics.gauge('sluice_workers_wanted', { pool }, () => {
      const workers = presence.workers(pool).filter(({ draining, slots }) => !draining && slots > 0)
      const slots = workers.reduce((sum, worker) => sum + worker.slots, 0)
      // Jobs can wait while no worker of the pool runs. The number of workers needed is then computed with the last known number of slots per
      // worker.
      if (workers.length > 0) slotsPerWorker.set(pool, slots / workers.length)
      const needed = slotsNeeded(jobs.fleetWork(pool).models.values())
      return workersWanted.add(pool, Math.ceil(needed / (slotsPerWorker.get(pool) ?? Math.max(1, needed))))
    })
  }
  metrics.rows('sluice_server_replicas_wanted', () => {
    const works = new Map<PoolName, PoolWork>()
    return models.models.flatMap(({ id, pool, engine }) => {
      const servers = 'base_url' in engine || 'base_urls' in engine ? addressesOf(engine).length : 0
      if (servers === 0) return []
      const work = works.get(pool) ?? jobs.fleetWork(pool)
      works.set(pool, work)
      const load = work.models.get(id)
      const perServer = presence.slotsOf(pool, id) / servers
      const needed = load ? slotsNeeded([load]) : 0
      const wanted = perServer > 0 ? Math.ceil(needed / perServer) : Math.min(1, Math.ceil(needed))
      return [[{ model: id }, serversWanted.add(id, wanted)] as const]
    })
  })
}
