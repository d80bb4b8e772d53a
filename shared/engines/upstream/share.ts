import type { PoolName } from '#schemas/job.ts'
import type { AdaptiveLimit } from './limit.ts'

/** How long the workers of a model are taken for what they were. */
const MEMBERS_MS = 100

/** A worker that knows a model. */
export interface Member {
  readonly boot: string
  /** More calls than these it has no use for. */
  readonly slots: number
}

/** The workers of one pool, as one of them sees them. */
export interface FleetView {
  readonly boot: string
  /** Those that know a model and take jobs, this one among them. */
  membersOf(model: string): readonly Member[]
}

/** What was found out of what a server bears, as workers tell it each other. */
export interface FoundLimit {
  readonly model: string
  /** Its place in the list of the model's servers. */
  readonly server: number
  /** How often the limit was lowered: what is told of an older one counts no more. */
  readonly generation: number
  readonly limit: number
}

/** The upstreams of one process, as it shares them with the workers of other processes (docs/design.md, Bulkheads). */
export class UpstreamFleet {
  readonly #views = new Map<PoolName, FleetView>()
  readonly #shares = new Map<string, ModelShare>()

  /** A worker of this process shares the models of its pool with others. @returns What ends that */
  join(pool: PoolName, view: FleetView): () => void {
    this.#views.set(pool, view)
    return () => this.#views.delete(pool)
  }

  /** What this process has of a model's servers. One upstream at a time uses it: the one that was opened last. */
  open({ id, pool }: { readonly id: string; readonly pool: PoolName }): ModelShare {
    const share = new ModelShare(id, () => this.#views.get(pool))
    this.#shares.set(id, share)
    return share
  }

  /** What workers of other processes are to hear: limits that were lowered once. */
  tell(models: Iterable<string>): FoundLimit[] {
    return [...models].flatMap((model) => this.#shares.get(model)?.tell() ?? [])
  }

  /** Those of some models of which every server keeps failing. */
  failing(models: Iterable<string>): string[] {
    return [...models].filter((model) => this.#shares.get(model)?.isFailing)
  }

  /** Another worker found out something, or there are other workers than before. */
  hear(found: readonly FoundLimit[]): void {
    for (const one of found) this.#shares.get(one.model)?.hear(one)
    for (const share of this.#shares.values()) share.changed()
  }
}

/** The part of this process in the limits of one model's servers. */
export class ModelShare {
  readonly #model: string
  readonly #view: () => FleetView | undefined
  #limits: readonly AdaptiveLimit[] = []
  #onChange = () => {}
  #isFailing = () => false
  #members: readonly Member[] = []
  #membersAtMs = Number.NEGATIVE_INFINITY

  constructor(model: string, view: () => FleetView | undefined) {
    this.#model = model
    this.#view = view
  }

  /** @param onChange There may be more places than before. @param isFailing Whether every server keeps failing */
  use(limits: readonly AdaptiveLimit[], onChange: () => void, isFailing = () => false): void {
    this.#limits = limits
    this.#onChange = onChange
    this.#isFailing = isFailing
  }

  /** Whether every server keeps failing, so that calls are refused for a while. */
  get isFailing(): boolean {
    return this.#isFailing()
  }

  /** Workers that share the servers, at least one. */
  get workers(): number {
    return Math.max(1, this.#current().length)
  }

  /** Calls of so many that are for this process: of each such number all workers together have that number. */
  partOf(limit: number): number {
    const boot = this.#view()?.boot
    const members = this.#current()
    if (boot === undefined || members.length < 2) return limit
    return partsOf(limit, members).get(boot) ?? 0
  }

  tell(): FoundLimit[] {
    return this.#limits.flatMap(({ found: { generation, limit } }, server) =>
      generation > 0 ? { model: this.#model, server, generation, limit } : [],
    )
  }

  hear(found: FoundLimit): void {
    this.#limits[found.server]?.hear(found)
  }

  /** The workers are looked at again. */
  changed(): void {
    this.#membersAtMs = Number.NEGATIVE_INFINITY
    this.#onChange()
  }

  #current(): readonly Member[] {
    const nowMs = performance.now()
    if (nowMs - this.#membersAtMs < MEMBERS_MS) return this.#members
    this.#membersAtMs = nowMs
    this.#members = this.#view()?.membersOf(this.#model) ?? []
    return this.#members
  }
}

/**
 * Divides a number among workers, in equal parts up to the slots of each. What is left over goes to those whose boot ids come
 * first, so that all workers find the same parts and these add up to the number, unless the slots are fewer.
 */
export function partsOf(limit: number, members: readonly Member[]): ReadonlyMap<string, number> {
  const parts = new Map<string, number>()
  let left = limit
  const bySlots = members.toSorted((a, b) => a.slots - b.slots || (a.boot < b.boot ? 1 : -1))
  for (const [index, { boot, slots }] of bySlots.entries()) {
    // Those with the fewest slots come first, and of each kind those who are to have one less.
    const part = Math.min(slots, Math.floor(left / (bySlots.length - index)))
    parts.set(boot, part)
    left -= part
  }
  return parts
}
