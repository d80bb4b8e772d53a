/**
 * Model of the fair queue between tenants (docs/internals/design.md, Fairness), for the model checker. Two tenants submit jobs repeatedly.
 * Workers have one slot each and race with each other. Each worker remembers its position in the round robin, and loses it at a restart.
 *
 * The transitions of a single job are modelled in `protocol-model.ts`. This model assumes that a claim takes a waiting job, and that a job of a
 * dead worker is requeued. Every {@link FairQueueGuards guard} can be switched off. The tests check that a tenant then starves.
 */
import type { Model, Step } from './model-checker.ts'

/** Rules that make the queue fair. All are true in the product. Tests switch off one at a time. */
export const FAIR_QUEUE_GUARDS = {
  /** A claim selects the next tenant in the round robin, and then its oldest job. False: the oldest job of all tenants. */
  claimsIterateTenants: true,
  /** A worker continues the round robin after the tenant that it served last. False: each claim starts with the first tenant. */
  positionMoves: true,
  /** The round robin starts again with the first tenant after the last one. */
  roundWraps: true,
  /** A claim prefers the tenants with the fewest running jobs. */
  fewestComeFirst: true,
}
export type FairQueueGuards = typeof FAIR_QUEUE_GUARDS

export interface FairQueueSize {
  readonly workers: number
  /** Maximum waiting and running jobs per tenant. */
  readonly jobsMax: number
  readonly restartsMax: number
}

type Tenant = 'a' | 'b'

interface Worker {
  /** Tenant that this worker served last; empty after a restart. */
  readonly position: Tenant | ''
  /** Tenant whose job the current claim will take. The claim has read the rows and has not committed yet. */
  readonly picked: Tenant | ''
  /** True if the queue or a worker has changed since the claim read the rows, so that the choice of the tenant may be outdated. */
  readonly isStale: boolean
  /** Tenant of the running job. */
  readonly runs: Tenant | ''
}

interface World {
  /** Tenants of the waiting jobs, oldest first. */
  readonly queue: readonly Tenant[]
  readonly workers: readonly Worker[]
  /**
   * For each tenant with a waiting job: how often the other tenant was served since this tenant was served last. Above a bound, the tenant counts as
   * starved.
   */
  readonly passes: Readonly<Record<Tenant, number>>
  readonly restarts: number
  readonly bad: string | undefined
}

const TENANTS = ['a', 'b'] as const
const NEW: Worker = { position: '', picked: '', isStale: false, runs: '' }

export function fairQueueModel(guards: FairQueueGuards, size: FairQueueSize): Model<World> {
  const initial: World = {
    queue: [],
    workers: Array.from({ length: size.workers }, () => NEW),
    passes: { a: 0, b: 0 },
    restarts: 0,
    bad: undefined,
  }
  return {
    initial,
    steps: (world) => new Steps(world, guards, size).all(),
    key: JSON.stringify,
    violation: ({ bad }) => bad,
    isOwed: () => true,
    isGoal: ({ queue }) => queue.length === 0,
  }
}

/** Enumerates the possible next steps of a state. Each method yields the steps of one tenant or worker. */
class Steps {
  readonly #world: World
  readonly #guards: FairQueueGuards
  readonly #size: FairQueueSize

  constructor(world: World, guards: FairQueueGuards, size: FairQueueSize) {
    this.#world = world
    this.#guards = guards
    this.#size = size
  }

  *all(): Generator<Step<World>> {
    for (const tenant of TENANTS) yield* this.#submit(tenant)
    for (const [nth, worker] of this.#world.workers.entries()) {
      if (worker.picked !== '') yield this.#claim(nth, worker.picked)
      else if (worker.runs === '') yield* this.#read(nth, worker)
      else yield this.#step(`w${nth} ends a job of ${worker.runs}`, { workers: this.#changed(nth, { runs: '' }) })
      yield* this.#restart(nth, worker)
    }
  }

  *#submit(tenant: Tenant): Generator<Step<World>> {
    const { queue } = this.#world
    const own = queue.filter((one) => one === tenant).length + this.#running(tenant)
    if (own >= this.#size.jobsMax) return
    // A submission is not counted as a step of the system (`isOwn: false`): tenants may stop submitting, so progress must not depend on it.
    yield { ...this.#step(`${tenant} submits`, { queue: [...queue, tenant], workers: this.#changed() }), isOwn: false }
  }

  *#read(nth: number, worker: Worker): Generator<Step<World>> {
    const { workers } = this.#world
    const picked = this.#next(worker)
    if (!picked) return
    yield this.#step(`w${nth} picks ${picked}`, { workers: workers.with(nth, { ...worker, picked }) })
  }

  /** Returns the tenant whose job the worker would claim, based on the current state. */
  #next({ position }: Worker): Tenant | undefined {
    const { queue } = this.#world
    if (!this.#guards.claimsIterateTenants) return queue[0]
    const waiting = TENANTS.filter((tenant) => queue.includes(tenant))
    const after = waiting.filter((tenant) => tenant > position)
    const round = this.#guards.roundWraps ? [...after, ...waiting.filter((tenant) => tenant <= position)] : after
    if (!this.#guards.fewestComeFirst) return round[0]
    return round.toSorted((one, other) => this.#running(one) - this.#running(other))[0]
  }

  #claim(nth: number, tenant: Tenant): Step<World> {
    const { queue } = this.#world
    const oldest = queue.indexOf(tenant)
    // If another worker has claimed the tenant's last job in the meantime, then this claim gets no job, and the worker polls again.
    if (oldest < 0) return this.#step(`w${nth} finds nothing`, { workers: this.#changed(nth, { picked: '' }) })
    const position = this.#guards.positionMoves ? tenant : ''
    const workers = this.#changed(nth, { position, picked: '', runs: tenant })
    const change = { queue: queue.toSpliced(oldest, 1), workers, ...this.#judge(nth, tenant) }
    return this.#step(`w${nth} claims of ${tenant}`, change)
  }

  /** Updates the counts of {@link World.passes} after a claim, and reports a violation of fairness. */
  #judge(nth: number, tenant: Tenant): Partial<World> {
    const { queue, workers, restarts, passes } = this.#world
    const other = tenant === 'a' ? 'b' : 'a'
    if (!queue.includes(other)) return { passes: { a: 0, b: 0 } }
    const [own, theirs] = [this.#running(tenant), this.#running(other)]
    const count = passes[other] + (theirs <= own ? 1 : 0)
    const changed = { passes: { a: 0, b: 0, [other]: count } }
    if (count > workers.length + restarts) return { ...changed, bad: 'a tenant starved' }
    if (own > theirs && !workers[nth]?.isStale)
      return { ...changed, bad: 'a tenant with more running jobs was served first' }
    return changed
  }

  *#restart(nth: number, { runs }: Worker): Generator<Step<World>> {
    const { queue, restarts } = this.#world
    if (restarts >= this.#size.restartsMax) return
    const handedBack = runs === '' ? queue : [runs, ...queue]
    const change = { queue: handedBack, workers: this.#changed(nth, NEW), restarts: restarts + 1 }
    yield { ...this.#step(`! w${nth} starts again`, change), isOwn: false }
  }

  #running(tenant: Tenant): number {
    return this.#world.workers.filter(({ runs }) => runs === tenant).length
  }

  /** Changes one worker, and marks the uncommitted claims of all other workers as stale. */
  #changed(nth?: number, change: Partial<Worker> = {}): Worker[] {
    return this.#world.workers.map((worker, index) =>
      index === nth ? { ...worker, isStale: false, ...change } : { ...worker, isStale: worker.picked !== '' },
    )
  }

  #step(name: string, change: Partial<World>): Step<World> {
    return { name, to: { ...this.#world, ...change }, isOwn: true }
  }
}
