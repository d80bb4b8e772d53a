import { deleteTopic } from '../support/processes/kafka.ts'
import type { History } from './check/history.ts'
import type { Cluster, Targets } from './cluster.ts'
import type { Actor } from './load/actor.ts'
import { openRandom, type Random } from './load/random.ts'

/** `kill`: SIGKILL. `freeze`: SIGSTOP, then SIGCONT after a while. `roll`: SIGTERM and a restart. `delete`: a Kafka topic is deleted. */
export type FaultKind = 'kill' | 'freeze' | 'roll' | 'delete'

export interface Fault {
  readonly kind: FaultKind
  /** Name of the process that is hit, such as `inference-1`, `broker` or `database`; for `delete`, name of the topic. */
  readonly target: string
  /** Start, in milliseconds after the start of the load. */
  readonly atMs: number
  /** Time for which the process is down or frozen. */
  readonly forMs: number
}

/** Distribution of the kills over the kinds of processes: out of 20 kills, 5 hit inference workers, and so on. */
const KILL_SHARES = { inference: 5, research: 4, ingress: 4, scheduler: 2, broker: 3, database: 2 } as const
/** Roles whose processes are restarted by SIGTERM, one after the other. */
const ROLLED = ['inference', 'research', 'ingress', 'scheduler'] as const

/** Kafka topics that may be deleted, in this order. */
const TOPICS = ['jobs.inference', 'replies', 'events', 'control', 'jobs.research'] as const

/** Number of faults that only some runs have; default: none. */
export interface Others {
  readonly poolerKills?: number
  readonly topicDeletions?: number
}

type Sort = keyof typeof KILL_SHARES

/**
 * Plans the faults of a run. The plan has `kills` kills, spread over all kinds of processes. For every 20 kills, there are also 6 freezes and 3
 * restarts. The times are evenly spaced, with jitter. Equal seeds give equal plans.
 */
export function planFaults(seed: number, kills: number, durationMs: number, targets: Targets): Fault[] {
  const random = openRandom(seed)
  const sorts = shuffle(sortsOf(kills), random)
  const kinds: { kind: FaultKind; sort: Sort }[] = [
    ...sorts.map((sort) => ({ kind: 'kill' as const, sort })),
    ...shuffle(sortsOf(Math.ceil(kills * 0.3)), random).map((sort) => ({ kind: 'freeze' as const, sort })),
    ...Array.from({ length: Math.ceil(kills * 0.15) }, (_, i) => ({
      kind: 'roll' as const,
      sort: ROLLED[i % ROLLED.length] ?? 'inference',
    })),
  ]
  const slotMs = durationMs / kinds.length
  return shuffle(kinds, random).map(({ kind, sort }, i) => ({
    kind,
    target: targetOf(sort, targets, random),
    atMs: Math.round((i + random.next()) * slotMs),
    forMs: kind === 'freeze' ? random.between(5_000, 15_000) : random.between(200, 3_000),
  }))
}

/** Adds kills of PgBouncer and deletions of topics to a plan, evenly spaced. */
export function withOthers(plan: readonly Fault[], others: Others, durationMs: number): Fault[] {
  const spread = (kind: FaultKind, targets: readonly string[], offset: number) =>
    targets.map((target, i): Fault => {
      return { kind, target, atMs: Math.round(((i + offset) * durationMs) / targets.length), forMs: 1_000 }
    })
  const { poolerKills = 0, topicDeletions = 0 } = others
  const topics = Array.from({ length: topicDeletions }, (_, i) => TOPICS[i % TOPICS.length] ?? 'replies')
  const poolers = Array.from({ length: poolerKills }, () => 'pooler')
  return [...plan, ...spread('kill', poolers, 0.5), ...spread('delete', topics, 0.3)].toSorted(
    (a, b) => a.atMs - b.atMs,
  )
}

/** Returns `count` kinds of processes in the proportions of {@link KILL_SHARES}, and each kind at least once if `count` is large enough. */
function sortsOf(count: number): Sort[] {
  const cycle = interleave(KILL_SHARES)
  return Array.from({ length: count }, (_, i) => cycle[i % cycle.length] ?? 'inference')
}

/** Orders the kinds of processes round robin, so that a short prefix of the list contains every kind. */
function interleave(shares: Readonly<Record<Sort, number>>): Sort[] {
  const sorts = Object.keys(shares) as Sort[]
  const rounds = Math.max(...Object.values(shares))
  return Array.from({ length: rounds }, (_, round) => sorts.filter((sort) => shares[sort] > round)).flat()
}

function targetOf(sort: Sort, targets: Targets, random: Random): string {
  if (sort === 'broker' || sort === 'database') return sort
  return `${sort}-${random.between(1, targets[sort])}`
}

function shuffle<T>(items: readonly T[], random: Random): T[] {
  return items
    .map((item) => ({ item, order: random.next() }))
    .toSorted((a, b) => a.order - b.order)
    .map(({ item }) => item)
}

/**
 * Runs a plan and returns after its last fault. Faults of one process run one after the other; faults of different processes may overlap. If a
 * fault cannot be injected, then the problem is recorded and the fault is skipped.
 */
export async function runFaults(
  plan: readonly Fault[],
  cluster: Cluster,
  history: History,
  onFault: (kind: FaultKind, target: string) => void,
): Promise<void> {
  const lines = new Map<string, Promise<void>>()
  const startedAt = history.nowMs
  for (const fault of plan) {
    const waitMs = startedAt + fault.atMs - history.nowMs
    if (waitMs > 0) await sleep(waitMs)
    // A topic can be deleted only while the broker runs. A deletion therefore counts as a fault of the broker, so that it cannot overlap with a
    // kill of the broker.
    const actor = fault.kind === 'delete' ? 'broker' : fault.target
    const previous = lines.get(actor) ?? Promise.resolve()
    lines.set(
      actor,
      previous.then(() => {
        onFault(fault.kind, fault.target)
        return apply(fault, cluster, history)
      }),
    )
  }
  await Promise.all(lines.values())
}

async function apply({ kind, target, forMs }: Fault, cluster: Cluster, history: History): Promise<void> {
  history.add('faults', { type: 'fault', phase: 'begin', kind, target })
  try {
    if (kind === 'delete') await deleteTopic(cluster.broker.address, target)
    else await affect(cluster.actor(target), kind, forMs)
    history.add('faults', { type: 'fault', phase: 'end', kind, target })
  } catch (error) {
    history.add('faults', { type: 'fault', phase: 'problem', kind, target, problem: String(error) })
  }
}

async function affect(actor: Actor, kind: 'kill' | 'freeze' | 'roll', forMs: number): Promise<void> {
  if (kind === 'freeze') {
    actor.freeze()
    await sleep(forMs)
    actor.thaw()
    return
  }
  await actor.down(kind === 'kill' ? 'SIGKILL' : 'SIGTERM')
  await sleep(forMs)
  await actor.up()
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
