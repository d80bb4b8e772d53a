import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import { HEARTBEAT_INTERVAL_MAX, HEARTBEAT_MS } from './heartbeat.ts'

/** What takes the same places on a worker: jobs of one kind for one model. */
export interface Work {
  readonly kind: string
  readonly model: string
}

/** The key of a {@link Work} in maps: its kind, a space, its model. No kind has a space in its name. */
export function workKey({ kind, model }: Work): string {
  return `${kind} ${model}`
}

/** What a process is: a worker of a pool, or one that takes no jobs. */
export type Role = Extract<ControlRecord, { type: 'heartbeat' }>['role']

/** What a worker can start, as it tells it. */
export type Capacity = Omit<Extract<ControlRecord, { type: 'capacity' }>, 'type' | 'boot'>

/** The same, to be looked up. */
export interface PeerCapacity {
  /** Undefined: it runs whichever model is asked for. */
  readonly models: ReadonlySet<string> | undefined
  /** By {@link workKey}. */
  readonly bounds: ReadonlyMap<string, number>
  readonly waiting: Capacity['waiting']
  /** Calls that it holds without a slot. */
  readonly aside: number | undefined
  /** Name of its machine. */
  readonly host: string | undefined
  readonly pid: number | undefined
  readonly found?: Capacity['found']
  readonly failing?: Capacity['failing']
}

/** A process as its heartbeats show it. */
export interface Peer {
  readonly boot: string
  readonly role: Role
  /** Of the program; empty while no heartbeat was heard. */
  version: string
  slots: number
  running: number
  draining: boolean
  lastSeenMs: number
  /** What it said it can start; undefined while it has said nothing. */
  capacity: PeerCapacity | undefined
  /** Half seconds between two of its heartbeats, as it told them; undefined: it told nothing, and each has one. */
  rhythm: number | undefined
  /** Silent for `silentMs`; until it is heard again. */
  isSilent: boolean
}

/** The processes that are alive, as they were heard, and what their workers can do. */
export class Peers {
  readonly peers = new Map<string, Peer>()

  /** Starts the lease of a worker that was heard on another channel before its first heartbeat. */
  expect(boot: string, role: PoolName): void {
    if (!this.peers.has(boot)) this.seen({ boot, role, version: '', slots: 0, running: 0, draining: false })
  }

  /** Workers of a pool that are alive. */
  workers(pool: PoolName): Peer[] {
    return [...this.peers.values()].filter((peer) => peer.role === pool)
  }

  /** Ingresses that are alive and heard. */
  ingresses(): number {
    let count = 0
    for (const { role, isSilent } of this.peers.values()) if (role === 'ingress' && !isSilent) count++
    return count
  }

  /** Slots of a pool's workers that take jobs. */
  slots(pool: PoolName): number {
    let sum = 0
    for (const { role, draining, slots } of this.peers.values()) if (role === pool && !draining) sum += slots
    return sum
  }

  /** Those of them that were free when their worker was heard last, of workers that are heard. */
  freeSlots(pool: PoolName): number {
    let sum = 0
    for (const { role, draining, isSilent, slots, running } of this.peers.values()) {
      if (role === pool && !draining && !isSilent) sum += Math.max(0, slots - running)
    }
    return sum
  }

  /**
   * Jobs of a kind and model that a pool's workers can have running at once; undefined where only their slots bound them, which
   * those of workers that do not know the model do not.
   */
  capacityOf(pool: PoolName, work: Work): number | undefined {
    const key = workKey(work)
    let sum = 0
    let isBounded = false
    for (const { role, draining, slots, capacity } of this.peers.values()) {
      if (role !== pool || draining) continue
      const bound = capacity?.bounds.get(key)
      const isKnown = capacity?.models?.has(work.model) !== false
      isBounded ||= bound !== undefined || !isKnown
      if (isKnown) sum += Math.min(slots, bound ?? slots)
    }
    return isBounded ? sum : undefined
  }

  /** Whether some worker of a pool may be able to run a model. */
  hasModel(pool: PoolName, model: string): boolean {
    for (const { role, draining, capacity } of this.peers.values()) {
      if (role === pool && !draining && capacity?.models?.has(model) !== false) return true
    }
    return false
  }

  /** Workers of a pool that take jobs and may be able to run a model. */
  knowing(pool: PoolName, model: string): Peer[] {
    const isOne = ({ draining, capacity }: Peer) => !draining && capacity?.models?.has(model) !== false
    return this.workers(pool).filter(isOne)
  }

  /** A process was heard just now. */
  protected seen(heard: Pick<Peer, 'boot' | 'role' | 'version' | 'slots' | 'running' | 'draining'>): void {
    const seen = { ...heard, lastSeenMs: Date.now(), isSilent: false }
    const peer = this.peers.get(heard.boot)
    if (peer) Object.assign(peer, seen)
    else this.peers.set(heard.boot, { ...seen, capacity: undefined, rhythm: undefined })
  }

  /** A process said how often it says that it lives, in milliseconds. */
  protected heardRhythm(boot: string, beatMs: number): void {
    const peer = this.peers.get(boot)
    if (peer) peer.rhythm = Math.min(HEARTBEAT_INTERVAL_MAX, Math.ceil(beatMs / HEARTBEAT_MS))
  }

  /** A process said what it can start. Of one that was never heard it says nothing yet: its heartbeat comes first. */
  protected told(
    boot: string,
    { models, bounds, waiting, aside, host, pid, found, failing }: Capacity,
  ): Peer | undefined {
    const peer = this.peers.get(boot)
    if (!peer) return undefined
    peer.capacity = {
      models: models === null ? undefined : new Set(models),
      bounds: new Map(bounds.map((bound) => [workKey(bound), bound.capacity])),
      ...{ waiting, aside, host, pid, found, failing },
    }
    return peer
  }
}
