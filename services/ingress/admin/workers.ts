import { setTimeout as delay } from 'node:timers/promises'
import { PoolName } from '#schemas/job.ts'
import { WORD_LIST } from '#schemas/moderations.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { audit } from './audit.ts'

/** Maximum time in which a heartbeat of the worker must confirm a drain. */
const CONFIRM_TIMEOUT_MS = 4_000
const POLL_INTERVAL_MS = 100
/** Interval at which the drain record is sent again until it is confirmed, because a record may be lost. */
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
 * Sends the change to the worker, and answers when a heartbeat of the worker confirms it.
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
  const why = drained ? '' : ' A worker that is shutting down stays drained.'
  const message = `The worker ${boot} did not confirm the change within ${CONFIRM_TIMEOUT_MS / 1_000} s.${why}`
  return new ServiceError('overloaded', message, { retryAfterMs: 2_000 })
}

/** @throws ServiceError `not_found` */
function workerOf({ jobs }: IngressContext, boot: string): Peer {
  const peer = jobs.presence.peers.get(boot)
  if (peer && PoolName.safeParse(peer.role).success) return peer
  throw new ServiceError(
    'not_found',
    `No worker '${beginningOf(boot, 64)}' is alive: GET /v1/admin/workers lists them.`,
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
    // Every worker contains the word list of moderations. The word list is shown as a model only if the catalogue
    // contains a model with its name.
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
 * Maximum concurrent jobs of a worker, from its heartbeat: the sum over its models, at most its slots. A model without
 * a bulkhead may use all slots, and so may a worker that reports no models. The word list of moderations is not
 * counted.
 *
 * @param idOf Returns the model id for an id or alias; undefined if the catalogue has none
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
    // All kinds of a model share one engine, and each reports the same bulkhead. The maximum is therefore used, not the
    // sum.
    bounds.set(model, Math.max(bounds.get(model) ?? 0, places))
  }
  let sum = 0
  for (const id of ids) sum += bounds.get(id) ?? slots
  return Math.min(slots, sum)
}
