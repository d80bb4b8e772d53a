import type { IncomingMessage } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import { Priority } from '#schemas/durable-job.ts'
import { PoolName } from '#schemas/job.ts'
import { WORD_LIST } from '#schemas/kinds/moderations.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { modelNotFound } from '#services/ingress/calls/endpoint.ts'
import { addressesOf } from '#shared/engines/upstream/servers.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import { jobsTopic } from '#shared/jobs/records.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { PauseTarget } from '#shared/store/jobs.ts'
import type { Depth } from '#shared/store/store.ts'
import { audit } from './audit.ts'

/** Cache lifetime of job counts, in ms. Cached because the store reads every waiting job to count them. */
const COUNT_AGE_MS = 1_000

/**
 * Maximum time in ms for a count by Kafka or the store. If the count takes longer, then the answer contains null instead of the count. The state of the pools
 * is therefore available during an outage.
 */
const COUNT_TIMEOUT_MS = 2_000

const counted = new WeakMap<object, { readonly atMs: number; readonly depth: Promise<Depth[]> }>()

/**
 * GET /v1/admin/pools: workers, slots, and waiting jobs of each pool. The field `calls` counts the calls of all ingresses for
 * which a caller waits on an open connection.
 */
export async function listPools(context: IngressContext, call: Call): Promise<void> {
  const depth = await inTime(depthOf(context))
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
    models: modelLoads({ models, jobs }, pool),
    running: workers.reduce((total, { running }) => total + running, 0),
    calls: jobs.fleetWork(pool).calls,
    jobs: own ? durableOf(own, sum) : null,
    lag: Object.fromEntries(
      await Promise.all(
        Priority.options.map(async (lane) => [lane, (await inTime(broker.lag(jobsTopic(pool, lane)))) ?? null]),
      ),
    ),
    oldest_queued_at: oldest === undefined || !Number.isFinite(oldest) ? null : Math.floor(oldest / 1_000),
  }
}

/** Returns the result of a count by Kafka or the store. Undefined if the count fails or takes longer than {@link COUNT_TIMEOUT_MS}. */
export function inTime<T>(count: Promise<T>): Promise<T | undefined> {
  const done = new AbortController()
  const timeout = delay(COUNT_TIMEOUT_MS, undefined, { ref: false, signal: done.signal }).catch(() => undefined)
  return Promise.race([count.catch(() => undefined), timeout]).finally(() => done.abort())
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

export async function depthOf({ store }: IngressContext): Promise<Depth[] | undefined> {
  if (!store) return undefined
  const known = counted.get(store)
  if (known && Date.now() - known.atMs < COUNT_AGE_MS) return await known.depth
  const depth = store.depth()
  counted.set(store, { atMs: Date.now(), depth })
  return await depth
}

/** Maximum wait in ms for a heartbeat with which the worker confirms that it is drained, or that it accepts jobs again. */
const CONFIRM_TIMEOUT_MS = 4_000
const POLL_INTERVAL_MS = 100
/**
 * Interval in ms at which the drain record is sent again until the worker confirms it, because a record may be lost.
 */
const REPEAT_INTERVAL_MS = 1_000

/**
 * GET /v1/admin/workers: every live process whose heartbeats this ingress receives. Processes that are not workers have
 * no slots.
 */
export async function listWorkers(context: IngressContext, call: Call): Promise<void> {
  const peers = [...context.jobs.presence.peers.values()]
  const sorted = peers.toSorted((a, b) => compare(a.role, b.role) || compare(a.boot, b.boot))
  const data = sorted.map((peer) => workerObject(context, peer))
  await call.reply.whole({ object: 'list', data, has_more: false })
}

/** POST /v1/admin/workers/{boot}/drain: the worker accepts no more jobs, finishes those in flight, and stays up. */
export async function drainWorker(context: IngressContext, call: Call): Promise<void> {
  await setDrained(context, call, true)
}

export async function undrainWorker(context: IngressContext, call: Call): Promise<void> {
  await setDrained(context, call, false)
}

/**
 * Drains or undrains a worker. The caller receives the answer when a heartbeat of the worker confirms the change.
 *
 * @throws ServiceError `overloaded` if no confirmation arrives in time
 */
async function setDrained(context: IngressContext, call: Call, drained: boolean): Promise<void> {
  const boot = String(call.params.id)
  const { presence } = context.jobs
  const worker = () => workerOf(context, boot)
  worker()
  audit(context, call, drained ? 'drain_worker' : 'undrain_worker', { worker: boot })
  const startedAt = Date.now()
  for (let toldAt = 0; worker().draining !== drained; await delay(POLL_INTERVAL_MS)) {
    if (Date.now() - startedAt > CONFIRM_TIMEOUT_MS) throw unconfirmed(boot, drained)
    if (Date.now() - toldAt < REPEAT_INTERVAL_MS) continue
    toldAt = Date.now()
    presence.send({ type: 'drain', boot, drained })
  }
  await call.reply.whole(workerObject(context, worker()))
}

function unconfirmed(boot: string, drained: boolean): ServiceError {
  const why = drained ? '' : ' A worker that is shutting down cannot be undrained.'
  const message = `The worker ${boot} did not confirm the change within ${CONFIRM_TIMEOUT_MS / 1_000} s.${why} Check GET /v1/admin/workers.`
  return new ServiceError('overloaded', message, { retryAfterMs: 2_000 })
}

function workerOf({ jobs }: IngressContext, boot: string): Peer {
  const peer = jobs.presence.peers.get(boot)
  if (peer && PoolName.safeParse(peer.role).success) return peer
  throw new ServiceError(
    'not_found',
    `No live worker has the id '${beginningOf(boot, 64)}'. GET /v1/admin/workers lists the live workers.`,
  )
}

function workerObject({ models }: IngressContext, peer: Peer) {
  const { boot, role, version, slots, running, draining, lastSeenMs, isSuspected, capacity } = peer
  const limits = [...(capacity?.concurrencyLimits ?? [])].map(([work, places]) => {
    const [kind, model] = [work.slice(0, work.indexOf(' ')), work.slice(work.indexOf(' ') + 1)]
    return { kind, model, capacity: places }
  })
  return {
    id: boot,
    object: 'worker',
    role,
    version,
    slots,
    capacity: capacityOf(peer, (name) => models.find(name)?.id),
    ...{ running, draining, suspected: isSuspected },
    parked_calls: capacity?.parkedCalls ?? null,
    host: capacity?.host ?? null,
    pid: capacity?.pid ?? null,
    last_seen_at: Math.floor(lastSeenMs / 1_000),
    // WORD_LIST is the built-in moderation model of every worker. The answer lists this model only if models.yaml does.
    models: capacity?.models ? [...capacity.models].filter((id) => id !== WORD_LIST || models.find(id)) : null,
    concurrency_limits: limits,
    backlog: capacity?.backlog ?? [],
    adaptive_limits: capacity?.adaptiveLimits ?? [],
    open_circuits: capacity?.openCircuits ?? [],
  }
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}

/**
 * Returns the maximum concurrent jobs of a worker, from its heartbeat. The maximum is the sum of the limits of its models, at most the number of its
 * slots. If a model has no limit, or if the worker reports no models, then the maximum is the number of slots. Models outside the catalogue do not count,
 * such as the word list that answers moderations.
 *
 * @param idOf Returns the model id for an id or alias. Undefined if the catalogue has none
 */
export function capacityOf(
  { slots, capacity }: Pick<Peer, 'slots' | 'capacity'>,
  idOf: (name: string) => string | undefined,
): number {
  const ids = new Set([...(capacity?.models ?? [])].flatMap((name) => idOf(name) ?? []))
  if (!capacity || ids.size === 0) return slots
  const bounds = new Map<string, number>()
  for (const [work, places] of capacity.concurrencyLimits) {
    const model = work.slice(work.indexOf(' ') + 1)
    // A worker reports a model once per kind of work, such as `generate` and `count`. All of them share one bulkhead, so their values are not added.
    bounds.set(model, Math.max(bounds.get(model) ?? 0, places))
  }
  let sum = 0
  for (const id of ids) sum += bounds.get(id) ?? slots
  return Math.min(slots, sum)
}

export async function listPauses({ pauses }: IngressContext, call: Call): Promise<void> {
  const data = pauses.all.map((pause) => ({
    object: 'pause',
    target: pause.target,
    id: pause.id,
    by_key: pause.by,
    since: Math.floor(pause.since_ms / 1_000),
    persistent: pauses.isPersistent,
  }))
  await call.reply.whole({ object: 'list', data, has_more: false })
}

/**
 * POST /v1/admin/models/{id}/pause: no more jobs of the model are started.
 *
 * @throws ServiceError `model_not_found` if the catalogue has no such model
 */
export async function pauseModel(context: IngressContext, call: Call): Promise<void> {
  await change(context, call, modelIn(context, call), true)
}

export async function resumeModel(context: IngressContext, call: Call): Promise<void> {
  await change(context, call, resumedIn(context, call), false)
}

/**
 * POST /v1/admin/pools/{pool}/pause: no more jobs of the pool are started.
 *
 * @throws ServiceError `not_found` if there is no such pool
 */
export async function pausePool(context: IngressContext, call: Call): Promise<void> {
  await change(context, call, poolIn(call), true)
}

export async function resumePool(context: IngressContext, call: Call): Promise<void> {
  await change(context, call, poolIn(call), false)
}

async function change(context: IngressContext, call: Call, target: PauseTarget, isPaused: boolean): Promise<void> {
  const { jobs, pauses } = context
  await pauses.change(target, isPaused, call.key.id, (record) => jobs.presence.send(record))
  audit(context, call, `${isPaused ? 'pause' : 'resume'}_${target.target}`, { [target.target]: target.id })
  await call.reply.whole({ object: 'pause', ...target, paused: isPaused, persistent: pauses.isPersistent })
}

/** Returns the model in the path, given by id or alias. The pause applies to the model instead of the alias. */
function modelIn(context: IngressContext, call: Call): PauseTarget {
  const name = String(call.params.id)
  const model = context.models.find(name)
  // The error lists all models, because operators may see models that their key may not call.
  if (!model) throw modelNotFound(context, { ...call.key, models: undefined }, name)
  return { target: 'model', id: model.id }
}

/**
 * Returns the target of a resume. A paused model is looked up among the pauses first, because the catalogue may no
 * longer contain it.
 */
function resumedIn(context: IngressContext, call: Call): PauseTarget {
  const id = String(call.params.id)
  const isPaused = context.pauses.all.some((pause) => pause.target === 'model' && pause.id === id)
  return isPaused ? { target: 'model', id } : modelIn(context, call)
}

function poolIn(call: Call): PauseTarget {
  const pool = PoolName.safeParse(call.params.id)
  if (pool.success) return { target: 'pool', id: pool.data }
  throw new ServiceError('not_found', `No such pool exists. Known pools: ${PoolName.options.join(', ')}.`)
}

export const ADMIN_METRICS = '/v1/admin/metrics'

const LOOPBACK_ADDRESS = /^(127\.|::1$|::ffff:127\.)/
/**
 * Loopback names in a `Host` header. In a DNS rebinding attack, a foreign site resolves its own name to this machine.
 * The `Host` header then contains that name, so the request is not treated as local.
 */
const LOOPBACK_HOST = /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$/i
/** Headers that proxies add. A request with one of these headers is not local, even on a local connection. */
const FORWARDED = ['forwarded', 'via', 'x-forwarded-for', 'x-real-ip'] as const

/**
 * Whether a request for `/metrics` comes from another machine. Such a request needs a key with access to {@link
 * ADMIN_METRICS}.
 */
export function isMetricsOfOthers({ url = '', headers, socket }: IncomingMessage): boolean {
  if (url.split('?', 1)[0] !== '/metrics') return false
  const isLocal = LOOPBACK_ADDRESS.test(socket.remoteAddress ?? '') && LOOPBACK_HOST.test(headers.host ?? '')
  return !isLocal || FORWARDED.some((name) => headers[name] !== undefined)
}

/**
 * GET /v1/admin/metrics: metrics of this process in the Prometheus text format. This path also works if METRICS_PORT
 * moves `/metrics` to another port.
 */
export async function readMetrics({ metrics }: IngressContext, call: Call): Promise<void> {
  await call.reply.whole((await metrics.text()).text)
}

/**
 * Returns the running and queued calls of each model of a pool, with the limit of the model. This limit is often far below the number of
 * slots of the pool. The field `full` is true if a worker reports that jobs of the model wait for this limit.
 */
export function modelLoads({ models, jobs }: Pick<IngressContext, 'models' | 'jobs'>, pool: PoolName) {
  const { models: works } = jobs.fleetWork(pool)
  const workers = [...jobs.presence.peers.values()].filter(({ role, isSuspected }) => role === pool && !isSuspected)
  const full = new Set(workers.flatMap(({ capacity }) => capacity?.backlog ?? []).map(({ model }) => model))
  return models.models.flatMap(({ id, pool: own, engine }) => {
    if (own !== pool) return []
    const servers = 'base_url' in engine || 'base_urls' in engine ? addressesOf(engine).length : 0
    const limit = Math.min(jobs.presence.slotsOf(pool, id), jobs.presence.adaptiveLimitOf(pool, id, servers))
    const { running = 0, queued = 0 } = works.get(id) ?? {}
    // An ingress counts a call as running from the time at which a worker received it. The call may still wait in the worker, if
    // the concurrency limit of its model is reached. Running calls beyond the limit are therefore counted as queued.
    const parked = Math.max(0, running - limit)
    return { id, limit, running: running - parked, queued: queued + parked, full: full.has(id) }
  })
}
