/**
 * The turns of tenants (docs/internals/design.md, Fairness) as a model: two tenants who submit again and again, and workers with one slot each,
 * of which every one has its own place in the round, may race with the others, and forgets its place when it starts again.
 *
 * What keeps each job's own row right is the matter of `protocol-model.ts`, and is taken for granted here: a claim takes a job
 * that waits, a job whose worker is gone is queued again. Every {@link TurnGuards guard} can be taken away, and then a promise
 * must break.
 */
import type { Model, Step } from './model-checker.ts'

/** What keeps the promises. All are on in the product. */
export const TURN_GUARDS = {
  /** A claim goes through the tenants, and not through the jobs by their age. */
  tenantsTakeTurns: true,
  /** A worker begins after the tenant whom it served last. */
  placeMoves: true,
  /** After the last tenant comes the first. */
  roundCloses: true,
  /** Of these it serves first those of whom the fewest jobs run. */
  fewestComeFirst: true,
}
export type TurnGuards = typeof TURN_GUARDS

/** How much there is of everything. */
export interface TurnsSize {
  readonly workers: number
  /** Jobs that a tenant has waiting or running at most. */
  readonly jobsMax: number
  readonly restartsMax: number
}

type Tenant = 'a' | 'b'

interface Worker {
  /** Whom it served last; empty after a start. */
  readonly place: Tenant | ''
  /** Whom its claim serves: the statement has read, and is not committed. */
  readonly picked: Tenant | ''
  /** Something has changed since the statement has read. */
  readonly isStale: boolean
  /** Whose job it runs. */
  readonly runs: Tenant | ''
}

interface World {
  /** Whose jobs wait, from the oldest on. */
  readonly queue: readonly Tenant[]
  readonly workers: readonly Worker[]
  /** Claims by which the other overtook a tenant who waited, since the tenant's last turn. */
  readonly passes: Readonly<Record<Tenant, number>>
  readonly restarts: number
  readonly bad: string | undefined
}

const TENANTS = ['a', 'b'] as const
const NEW: Worker = { place: '', picked: '', isStale: false, runs: '' }

/** The model with these guards. */
export function turnsModel(guards: TurnGuards, size: TurnsSize): Model<World> {
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

/** What can happen next. Each method yields the steps of one party. */
class Steps {
  readonly #world: World
  readonly #guards: TurnGuards
  readonly #size: TurnsSize

  constructor(world: World, guards: TurnGuards, size: TurnsSize) {
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
    // Nothing may depend on it.
    yield { ...this.#step(`${tenant} submits`, { queue: [...queue, tenant], workers: this.#changed() }), isOwn: false }
  }

  *#read(nth: number, worker: Worker): Generator<Step<World>> {
    const { workers } = this.#world
    const picked = this.#next(worker)
    if (!picked) return
    yield this.#step(`w${nth} picks ${picked}`, { workers: workers.with(nth, { ...worker, picked }) })
  }

  /** Whom a worker serves by what it reads. */
  #next({ place }: Worker): Tenant | undefined {
    const { queue } = this.#world
    if (!this.#guards.tenantsTakeTurns) return queue[0]
    const waiting = TENANTS.filter((tenant) => queue.includes(tenant))
    const after = waiting.filter((tenant) => tenant > place)
    const round = this.#guards.roundCloses ? [...after, ...waiting.filter((tenant) => tenant <= place)] : after
    if (!this.#guards.fewestComeFirst) return round[0]
    return round.toSorted((one, other) => this.#running(one) - this.#running(other))[0]
  }

  #claim(nth: number, tenant: Tenant): Step<World> {
    const { queue } = this.#world
    const oldest = queue.indexOf(tenant)
    // Another claim took the last of them: this one gives nothing, and the worker asks again.
    if (oldest < 0) return this.#step(`w${nth} finds nothing`, { workers: this.#changed(nth, { picked: '' }) })
    const place = this.#guards.placeMoves ? tenant : ''
    const workers = this.#changed(nth, { place, picked: '', runs: tenant })
    const change = { queue: queue.toSpliced(oldest, 1), workers, ...this.#judge(nth, tenant) }
    return this.#step(`w${nth} claims of ${tenant}`, change)
  }

  /** What a claim is to whom it passes over. */
  #judge(nth: number, tenant: Tenant): Partial<World> {
    const { queue, workers, restarts, passes } = this.#world
    const other = tenant === 'a' ? 'b' : 'a'
    if (!queue.includes(other)) return { passes: { a: 0, b: 0 } }
    const [own, theirs] = [this.#running(tenant), this.#running(other)]
    const count = passes[other] + (theirs <= own ? 1 : 0)
    const changed = { passes: { a: 0, b: 0, [other]: count } }
    if (count > workers.length + restarts) return { ...changed, bad: 'a tenant was passed over again and again' }
    if (own > theirs && !workers[nth]?.isStale) return { ...changed, bad: 'who had more running was served first' }
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

  /** The workers after a change that none of the others has read. */
  #changed(nth?: number, change: Partial<Worker> = {}): Worker[] {
    return this.#world.workers.map((worker, index) =>
      index === nth ? { ...worker, isStale: false, ...change } : { ...worker, isStale: worker.picked !== '' },
    )
  }

  #step(name: string, change: Partial<World>): Step<World> {
    return { name, to: { ...this.#world, ...change }, isOwn: true }
  }
}
