import { Priority } from '#schemas/durable-job.ts'
import { PoolName } from '#schemas/job.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { jobsTopic } from '#shared/jobs/topics.ts'
import type { Depth } from '#shared/store/store.ts'

/** Time for which job counts are cached. The store reads every waiting job to count them. */
const COUNT_AGE_MS = 1_000

const counted = new WeakMap<object, { readonly atMs: number; readonly depth: Promise<Depth[]> }>()

/**
 * GET /v1/admin/pools: workers, slots, and waiting jobs with their age. Only attached calls of this ingress are
 * included.
 */
export async function listPools(context: IngressContext, call: Call): Promise<void> {
  const depth = await depthOf(context)
  const data = await Promise.all(PoolName.options.map((pool) => poolObject(context, pool, depth)))
  await call.reply.whole({ object: 'list', data, has_more: false })
}

async function poolObject(
  { broker, jobs, models, pauses }: IngressContext,
  pool: PoolName,
  depth: Depth[] | undefined,
) {
  const workers = jobs.presence.workers(pool)
  const own = depth?.filter((row) => row.pool === pool)
  const sum = (rows: readonly Depth[]) => rows.reduce((total, { count }) => total + count, 0)
  const queued = own?.filter(({ state }) => state === 'queued')
  const oldest = queued && Math.min(...queued.map(({ oldest_at_ms }) => oldest_at_ms))
  const isMine = ({ target, id }: { target: string; id: string }) =>
    target === 'pool' ? id === pool : models.find(id)?.pool === pool
  return {
    id: pool,
    object: 'pool',
    paused: pauses.all.filter(isMine).map(({ target, id }) => ({ target, id })),
    workers: workers.length,
    draining: workers.filter(({ draining }) => draining).length,
    slots: jobs.presence.slots(pool),
    free: jobs.presence.freeSlots(pool),
    running: workers.reduce((total, { running }) => total + running, 0),
    calls: { queued: jobs.count(pool, 'queued'), running: jobs.count(pool, 'running') },
    jobs: own ? durableOf(own, sum) : null,
    lag: Object.fromEntries(
      await Promise.all(
        Priority.options.map(async (lane) => [
          lane,
          (await broker.lag(jobsTopic(pool, lane)).catch(() => undefined)) ?? null,
        ]),
      ),
    ),
    oldest_queued_at: oldest === undefined || !Number.isFinite(oldest) ? null : Math.floor(oldest / 1_000),
  }
}

function durableOf(own: readonly Depth[], sum: (rows: readonly Depth[]) => number) {
  const of = (state: Depth['state'], lane?: Priority) =>
    sum(own.filter((row) => row.state === state && row.priority === (lane ?? row.priority)))
  return {
    queued: { normal: of('queued', 'normal'), low: of('queued', 'low') },
    scheduled: of('scheduled'),
    in_progress: of('in_progress'),
    waiting: of('waiting'),
  }
}

/**
 * Waiting and running jobs in the store, at most {@link COUNT_AGE_MS} old; undefined without a store.
 *
 * @throws ServiceError `overloaded` if the store is unreachable
 */
export async function depthOf({ store }: IngressContext): Promise<Depth[] | undefined> {
  if (!store) return undefined
  const known = counted.get(store)
  if (known && Date.now() - known.atMs < COUNT_AGE_MS) return await known.depth
  const depth = store.depth()
  counted.set(store, { atMs: Date.now(), depth })
  return await depth
}
