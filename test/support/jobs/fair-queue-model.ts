/**
 * Model of the fair queue between tenants (docs/internals/design.md, Fairness). Two tenants submit repeatedly. Workers have one slot each,
 * race with each other, keep a position in the round robin, and lose it at a restart.
 *
 * The row of a job is modelled in `protocol-model.ts`. Assumed here: A claim takes a waiting job, and a job of a dead worker is requeued. Every {@link FairQueueGuards guard} can be removed, and then a tenant must starve.
 */
import type { Model, Step } from './model-checker.ts'

/** Guards of the fair queue; all are enabled in the product. */
export const FAIR_QUEUE_GUARDS = {
  /** A claim iterates over tenants, not over jobs by age. */
  claimsIterateTenants: true,
  /** A worker starts after the tenant that it served last. */
  positionMoves: true,
  /** The round robin starts again with the first tenant after the last one. */
  roundWraps: true,
  /** A claim considers first the tenants with the fewest running jobs. */
  fewestComeFirst: true,
}
export type FairQueueGuards = typeof FAIR_QUEUE_GUARDS

/** Bounds of the model. */
export interface FairQueueSize {
  readonly workers: number
  /** Maximum waiting and running jobs per tenant. */
  readonly jobsMax: number
  readonly restartsMax: number
}

type Tenant = 'a' | 'b'

interface Worker {
  /** Tenant that was served last; empty after a start. */
  readonly position: Tenant | ''
  /** Tenant whose job the current claim will take. The statement has read the rows, but is not committed yet. */
  readonly picked: Tenant | ''
  /** The state has changed since the statement read it. */
  readonly isStale: boolean
  /** Tenant of the running job. */
  readonly runs: Tenant | ''
}

interface World {
  /** Tenants of the waiting jobs, oldest first. */
  readonly queue: readonly Tenant[]
  readonly workers: readonly Worker[]
  /** For each tenant: the number of claims of the other tenant since the last claim of this tenant, while this tenant had a waiting job. */
  readonly passes: Readonly<Record<Tenant, number>>
  readonly restarts: number
  readonly bad: string | undefined
}

const TENANTS = ['a', 'b'] as const
const NEW: Worker = { position: '', picked: '', isStale: false, runs: '' }

/** The model with these guards. */
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

/** Possible next steps. Each method yields the steps of one party. */
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
    // No invariant may depend on a submission.
    yield { ...this.#step(`${tenant} submits`, { queue: [...queue, tenant], workers: this.#changed() }), isOwn: false }
  }

  *#read(nth: number, worker: Worker): Generator<Step<World>> {
    const { workers } = this.#world
    const picked = this.#next(worker)
    if (!picked) return
    yield this.#step(`w${nth} picks ${picked}`, { workers: workers.with(nth, { ...worker, picked }) })
  }

  /** The tenant that a worker serves, by the state that it reads. */
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
    // Another claim took the last job: this claim returns none, and the worker polls again.
    if (oldest < 0) return this.#step(`w${nth} finds nothing`, { workers: this.#changed(nth, { picked: '' }) })
    const position = this.#guards.positionMoves ? tenant : ''
    const workers = this.#changed(nth, { position, picked: '', runs: tenant })
    const change = { queue: queue.toSpliced(oldest, 1), workers, ...this.#judge(nth, tenant) }
    return this.#step(`w${nth} claims of ${tenant}`, change)
  }

  /** Updates the overtaking counts after a claim. */
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

  /** Marks the readings of all other workers as outdated. */
  #changed(nth?: number, change: Partial<Worker> = {}): Worker[] {
    return this.#world.workers.map((worker, index) =>
      index === nth ? { ...worker, isStale: false, ...change } : { ...worker, isStale: worker.picked !== '' },
    )
  }

  #step(name: string, change: Partial<World>): Step<World> {
    return { name, to: { ...this.#world, ...change }, isOwn: true }
  }
}
