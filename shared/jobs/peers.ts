/*
 * The processes of the fleet as their last records describe them: role, slots, running jobs, models and limits. `presence.ts` updates this view.
 * Ingresses use the view to estimate waits, to divide slots, and to refuse calls that no live worker can start.
 *
 * Every process receives the heartbeats of all others. With a constant interval, the load would grow with the square of the fleet
 * (docs/operate/scale.md, Processes). The interval therefore grows with the fleet, from 500 ms to 5 s, by 500 ms per 100 processes. Example: with
 * 250 processes, the interval is 1.5 s.
 */

import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Capacity } from '#shared/capacity/bulkheads.ts'
import { type Work, workKey } from '#shared/capacity/fair-queue.ts'

export type Role = Extract<ControlRecord, { type: 'heartbeat' }>['role']

interface PeerCapacity {
  readonly models: ReadonlySet<string> | undefined
  readonly concurrencyLimits: ReadonlyMap<string, number>
  readonly backlog: Capacity['backlog']
  readonly parkedCalls: number | undefined
  readonly host: string | undefined
  readonly pid: number | undefined
  readonly adaptiveLimits?: Capacity['adaptive_limits']
  readonly openCircuits?: Capacity['open_circuits']
  readonly promptTokens?: Capacity['prompt_tokens']
  readonly preparing?: Capacity['preparing']
  readonly work?: Capacity['work']
}

export interface Peer {
  readonly boot: string
  readonly role: Role
  /** Version of the process. Empty before its first heartbeat. */
  version: string
  slots: number
  running: number
  draining: boolean
  lastSeenMs: number
  capacity: PeerCapacity | undefined
  /** Published heartbeat interval in units of 500 ms. Undefined if none was published, in which case 1 is assumed. */
  heartbeatInterval: number | undefined
  /** True if the last heartbeat is older than `suspectedMs`. Reset by the next heartbeat. */
  isSuspected: boolean
}

const limits = new WeakMap<PeerCapacity, ReadonlyMap<string, number>>()

/**
 * Returns the largest concurrency limit of each model, because a model may have one limit per kind of job. Computed once per published capacity,
 * because gauges read the limits for each model and worker.
 */
function limitsByModel(capacity: PeerCapacity): ReadonlyMap<string, number> {
  const known = limits.get(capacity)
  if (known) return known
  const found = new Map<string, number>()
  for (const [work, permits] of capacity.concurrencyLimits) {
    const model = work.slice(work.indexOf(' ') + 1)
    found.set(model, Math.max(found.get(model) ?? 0, permits))
  }
  limits.set(capacity, found)
  return found
}

export class Peers {
  readonly peers = new Map<string, Peer>()

  /** Registers a worker that was observed on another channel before its first heartbeat, so that its death is detected. */
  expect(boot: string, role: PoolName): void {
    if (!this.peers.has(boot)) this.setAlive({ boot, role, version: '', slots: 0, running: 0, draining: false })
  }

  workers(pool: PoolName): Peer[] {
    return [...this.peers.values()].filter((peer) => peer.role === pool)
  }

  ingresses(): number {
    let count = 0
    for (const { role, isSuspected } of this.peers.values()) if (role === 'ingress' && !isSuspected) count++
    return count
  }

  slots(pool: PoolName): number {
    let sum = 0
    for (const { role, draining, slots } of this.peers.values()) if (role === pool && !draining) sum += slots
    return sum
  }

  freeSlots(pool: PoolName): number {
    let sum = 0
    for (const { role, draining, isSuspected, slots, running } of this.peers.values()) {
      if (role === pool && !draining && !isSuspected) sum += Math.max(0, slots - running)
    }
    return sum
  }

  /**
   * Returns the maximum concurrent jobs of a kind and model in a pool. Undefined if only slots limit them. Workers without the model do not count.
   */
  capacityOf(pool: PoolName, work: Work): number | undefined {
    const key = workKey(work)
    let sum = 0
    let isBounded = false
    for (const { role, draining, slots, capacity } of this.peers.values()) {
      if (role !== pool || draining) continue
      const bound = capacity?.concurrencyLimits.get(key)
      const isKnown = capacity?.models?.has(work.model) !== false
      isBounded ||= bound !== undefined || !isKnown
      if (isKnown) sum += Math.min(slots, bound ?? slots)
    }
    return isBounded ? sum : undefined
  }

  hasModel(pool: PoolName, model: string): boolean {
    for (const { role, draining, capacity } of this.peers.values()) {
      if (role === pool && !draining && capacity?.models?.has(model) !== false) return true
    }
    return false
  }

  workersWithModel(pool: PoolName, model: string): Peer[] {
    return [...this.peers.values()].filter((peer) => isWorkerWith(peer, pool, model))
  }

  /** Maximum concurrent jobs of a model on all workers of the pool. */
  slotsOf(pool: PoolName, model: string): number {
    let sum = 0
    for (const { role, isSuspected, draining, slots, capacity } of this.peers.values()) {
      if (role !== pool || isSuspected || draining || capacity?.models?.has(model) === false) continue
      sum += Math.min(slots, (capacity && limitsByModel(capacity).get(model)) ?? slots)
    }
    return sum
  }

  /**
   * Maximum concurrent calls of a model by the adaptive limits of its servers. Infinity if a server has none, because it never signalled
   * overload. All workers publish the limit of each server. The generation of a limit counts its decreases, so the limit with the highest
   * generation is the newest.
   */
  adaptiveLimitOf(pool: PoolName, model: string, servers: number): number {
    const newest = new Map<number, NonNullable<Capacity['adaptive_limits']>[number]>()
    for (const { capacity } of this.workersWithModel(pool, model)) {
      for (const one of capacity?.adaptiveLimits ?? []) {
        if (one.model === model && one.generation > (newest.get(one.server)?.generation ?? 0))
          newest.set(one.server, one)
      }
    }
    if (servers === 0 || newest.size < servers) return Number.POSITIVE_INFINITY
    return [...newest.values()].reduce((sum, { limit }) => sum + limit, 0)
  }

  /**
   * Returns the progress of preparing a model (download or build) on the worker that will be ready first. Undefined if a worker with the model is
   * ready, or if no worker has the model.
   */
  preparing(pool: PoolName, model: string): Preparing | undefined {
    let first: Preparing | undefined
    // Each start of a call reads this value, so the loop ends at the first worker that is ready.
    for (const peer of this.peers.values()) {
      if (!isWorkerWith(peer, pool, model)) continue
      const own = preparingOn(peer, model)
      if (!own) return undefined
      if (!first || own.percent > first.percent) first = own
    }
    return first
  }

  /** Models whose circuit breakers are open on all servers, with the number of workers that report them. */
  get openCircuits(): ReadonlyMap<string, number> {
    const workers = new Map<string, number>()
    for (const { capacity } of this.peers.values())
      for (const model of capacity?.openCircuits ?? []) workers.set(model, (workers.get(model) ?? 0) + 1)
    return workers
  }

  protected setAlive(heartbeat: Pick<Peer, 'boot' | 'role' | 'version' | 'slots' | 'running' | 'draining'>): void {
    const seen = { ...heartbeat, lastSeenMs: Date.now(), isSuspected: false }
    const peer = this.peers.get(heartbeat.boot)
    if (peer) Object.assign(peer, seen)
    else this.peers.set(heartbeat.boot, { ...seen, capacity: undefined, heartbeatInterval: undefined })
  }

  protected setHeartbeatInterval(boot: string, intervalMs: number): void {
    const peer = this.peers.get(boot)
    if (peer) peer.heartbeatInterval = Math.min(HEARTBEAT_INTERVAL_MAX, Math.ceil(intervalMs / HEARTBEAT_MS))
  }

  protected setCapacity(
    boot: string,
    {
      models,
      concurrency_limits,
      backlog,
      parked_calls,
      host,
      pid,
      adaptive_limits,
      open_circuits,
      prompt_tokens,
      preparing,
      work,
    }: Capacity,
  ): Peer | undefined {
    const peer = this.peers.get(boot)
    if (!peer) return undefined
    peer.capacity = {
      models: models === null ? undefined : new Set(models),
      concurrencyLimits: new Map(concurrency_limits.map((limit) => [workKey(limit), limit.capacity])),
      ...{
        backlog,
        parkedCalls: parked_calls,
        host,
        pid,
        adaptiveLimits: adaptive_limits,
        openCircuits: open_circuits,
        promptTokens: prompt_tokens,
        preparing,
        work,
      },
    }
    return peer
  }
}

export type Preparing = NonNullable<Capacity['preparing']>[number]

/** Returns the progress of preparing a model (download or build) on one worker. Undefined if the model is ready there. */
export function preparingOn({ capacity }: Peer, model: string): Preparing | undefined {
  return capacity?.preparing?.find((one) => one.model === null || one.model === model)
}

/** Returns the progress as a text for waiting callers, such as `preparing llama-3: 40 %, download`. */
export function preparingText(preparing: Preparing | undefined): string | undefined {
  return preparing && `preparing ${preparing.resource}: ${preparing.percent} %, ${preparing.step}`
}

function isWorkerWith({ role, draining, capacity }: Peer, pool: PoolName, model: string): boolean {
  return role === pool && !draining && capacity?.models?.has(model) !== false
}

/** Heartbeat interval in ms of a busy process in a small fleet, and the unit of longer intervals. */
export const HEARTBEAT_MS = 500
/**
 * Heartbeat interval of an idle process, in units of {@link HEARTBEAT_MS}. The value is longer than for a busy process, because each heartbeat wakes
 * every other process.
 */
const IDLE_INTERVAL = 2
export const IDLE_HEARTBEAT_MS = IDLE_INTERVAL * HEARTBEAT_MS
export const IDLE_UNITS = 10
/** Number of processes per unit of the interval, so that each process receives about this many heartbeats per 500 ms. */
const PROCESSES_PER_UNIT = 100
/**
 * Maximum heartbeat interval, in units of {@link HEARTBEAT_MS}. The interval has this maximum in a fleet of more than 900 processes. In a larger
 * fleet, the number of received heartbeats per second grows with each process, but a dead process is still detected in time.
 */
const HEARTBEAT_INTERVAL_MAX = 10

type HeartbeatIntervals = ReadonlyMap<string, { readonly heartbeatInterval: number | undefined }>

/**
 * Returns the heartbeat interval of this process, in units of 500 ms, from 1 to 10.
 *
 * @param peers All processes. A process without a published interval may run an older version that expects 500 ms, so the result is then 1
 * @param isIdle True if this process had no job for {@link IDLE_UNITS} units
 */
export function heartbeatIntervalOf(peers: HeartbeatIntervals, own: string, isIdle: boolean): number {
  const wanted = Math.max(isIdle ? IDLE_INTERVAL : 1, Math.ceil(peers.size / PROCESSES_PER_UNIT))
  if (wanted === 1) return 1
  for (const [boot, { heartbeatInterval }] of peers) if (heartbeatInterval === undefined && boot !== own) return 1
  return Math.min(HEARTBEAT_INTERVAL_MAX, wanted)
}

/**
 * Returns the additional time in ms for which the failure detector waits for a peer with a long heartbeat interval: 2 × (`interval` − 1) ×
 * 500 ms.
 *
 * If the channel is late, then the heartbeats of all processes are late. In the additional time, this process detects by its own late
 * heartbeat that the channel is late, and suspects no peer.
 *
 * @param interval Heartbeat interval in units of 500 ms
 */
export function slackMs(interval: number): number {
  return 2 * (interval - 1) * HEARTBEAT_MS
}
