import { ListFindings } from '#schemas/admin/admin.ts'
import { PoolName } from '#schemas/job.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { type Finding, runCheck } from '#shared/doctor/check.ts'
import { checksOfMachine } from '#shared/doctor/doctor.ts'
import { type FleetFacts, fleetFindings, type PoolFacts } from '#shared/doctor/fleet.ts'
import { listDeadLetters } from '#shared/jobs/dead-letters.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import { jobsTopic } from '#shared/jobs/topics.ts'
import { depthOf } from './pools.ts'

/**
 * Time for which findings about the machine and dead letters are cached. Their checks read a disk, a database or a
 * broker.
 */
const CACHE_TTL_MS = 30_000
/** Maximum dead letters that are counted. If there are more, then the count is a lower bound. */
const DEAD_COUNTED_MAX = 100

interface Cached<T> {
  readonly atMs: number
  readonly value: Promise<T>
}

const machineResults = new WeakMap<object, Cached<readonly Finding[]>>()
const deadLetterCounts = new WeakMap<object, Cached<FleetFacts['deadLetters']>>()

/** GET /v1/admin/findings: current problems with their remedies, as in `sluice doctor`. */
export async function listFindings(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListFindings, call.query)
  const { of } = parseBody(ListFindings, { ...call.query }, 'openai')
  const machine = of === 'fleet' ? [] : await cachedOr(machineResults, context.config, () => machineFindings(context))
  const fleet = of === 'machine' ? [] : fleetFindings(await factsOf(context))
  await call.reply.whole({ object: 'list', data: [...fleet, ...machine].map(findingObject), has_more: false })
}

function findingObject({ check, status, message, remediation, details = [] }: Finding) {
  return { check, status, message, remediation: remediation ?? null, details }
}

async function machineFindings({ config }: IngressContext): Promise<readonly Finding[]> {
  const checks = await checksOfMachine()
  return (await Promise.all(checks.map((check) => runCheck(check, config)))).flat()
}

async function factsOf(context: IngressContext): Promise<FleetFacts> {
  const { broker, store, pauses } = context
  const depth = await depthOf(context).catch(() => undefined)
  return {
    broker,
    store,
    pools: await Promise.all(PoolName.options.map((pool) => poolFacts(context, pool, depth))),
    durable: depth && {
      count: depth.reduce((sum, { state, count }) => sum + (state === 'scheduled' ? 0 : count), 0),
      max: context.config.durableJobsMax,
    },
    paused: pauses.all,
    failing: openCircuitsOf(context),
    deadLetters: await cachedOr(deadLetterCounts, broker, () => countDead(context)),
  }
}

async function poolFacts(
  { broker, jobs, models }: IngressContext,
  pool: PoolName,
  depth: Awaited<ReturnType<typeof depthOf>>,
): Promise<PoolFacts> {
  const queued = depth?.filter((row) => row.pool === pool && row.state === 'queued') ?? []
  const oldestCallMs = jobs.oldestQueuedAtMs(pool) ?? Number.POSITIVE_INFINITY
  const oldestMs = Math.min(oldestCallMs, ...queued.map(({ oldest_at_ms }) => oldest_at_ms))
  const inStore = queued.reduce((sum, { count }) => sum + count, 0)
  // Durable jobs are in the store and may also have a queue record. Attached calls are only in the queue. The larger
  // number is therefore used.
  const lag = (await broker.lag(jobsTopic(pool)).catch(() => undefined)) ?? 0
  return {
    id: pool,
    workers: jobs.presence.workers(pool).length,
    slots: jobs.presence.slots(pool),
    free: jobs.presence.freeSlots(pool),
    waiting: Math.max(lag, inStore + jobs.count(pool, 'queued')),
    oldestSeconds: Number.isFinite(oldestMs) ? (Date.now() - oldestMs) / 1_000 : undefined,
    fullModels: fullModels(jobs.presence.peers.values(), pool),
    isNeeded: models.models.some((model) => model.pool === pool),
  }
}

function fullModels(peers: Iterable<Peer>, pool: PoolName): string[] {
  const waiting = [...peers].filter(({ role, isSuspected }) => role === pool && !isSuspected)
  return [...new Set(waiting.flatMap(({ capacity }) => capacity?.backlog ?? []).map(({ model }) => model))]
}

function openCircuitsOf({ jobs }: IngressContext): FleetFacts['failing'] {
  const workers = new Map<string, number>()
  for (const { capacity } of jobs.presence.peers.values()) {
    for (const model of capacity?.openCircuits ?? []) workers.set(model, (workers.get(model) ?? 0) + 1)
  }
  return [...workers].map(([model, count]) => ({ model, workers: count }))
}

/** Number of dead letters; undefined if the broker is unreachable. */
async function countDead({ broker }: IngressContext): Promise<FleetFacts['deadLetters']> {
  const found = await listDeadLetters(broker, { max: DEAD_COUNTED_MAX }).catch(() => undefined)
  return found && { count: found.letters.length, hasMore: found.next !== undefined }
}

/**
 * Returns the cached value if it is recent enough. Otherwise starts a new read, and returns the previous value until
 * the read ends.
 */
async function cachedOr<T>(kept: WeakMap<object, Cached<T>>, key: object, read: () => Promise<T>): Promise<T> {
  const known = kept.get(key)
  if (known && Date.now() - known.atMs < CACHE_TTL_MS) return await known.value
  const value = read()
  // The first call waits for a slow read, such as a check of an unreachable database. Later calls do not.
  kept.set(key, { atMs: Date.now(), value: known ? Promise.race([value, known.value]) : value })
  if (known) void value.then(() => kept.set(key, { atMs: Date.now(), value })).catch(() => {})
  return await (known?.value ?? value)
}
