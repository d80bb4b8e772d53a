import type { PoolName } from '#schemas/job.ts'
import type { Usage } from '#schemas/kinds/generate.ts'
import type { AdaptiveLimit } from '#shared/capacity/adaptive-limit.ts'
import type { Metrics } from '#shared/lib/metrics.ts'

const MEMBERS_TTL_MS = 100

export interface Member {
  readonly boot: string
  readonly slots: number
}

export interface FleetView {
  readonly boot: string
  membersOf(model: string): readonly Member[]
}

export interface PublishedLimit {
  readonly model: string
  readonly server: number
  /** Number of decreases of the limit so far. If two limits differ, then the one with fewer decreases is outdated. */
  readonly generation: number
  readonly limit: number
}

/**
 * Tokens of the prompts that a server received since its model was opened in this worker. `cached` counts the tokens that the server's prefix cache
 * contained.
 */
export interface PromptTokens {
  readonly model: string
  readonly server: number
  readonly input: number
  readonly cached: number
}

interface BreakerState {
  readonly isOpen: boolean
  readonly isFailing: boolean
}

export interface ServerState {
  readonly isOpen: boolean
  readonly permits: number
  readonly inFlight: number
}

interface PromptCounter {
  inc(labels: { readonly model: string; readonly server: string; readonly cache: 'hit' | 'miss' }, tokens: number): void
}

const NO_COUNTER: PromptCounter = { inc() {} }

/**
 * Divides the concurrency limits of upstreams among the workers of this process and those of other processes (docs/internals/design.md,
 * Bulkheads).
 */
export class UpstreamFleet {
  readonly #views = new Map<PoolName, FleetView>()
  readonly #partitions = new Map<string, ModelPartition>()
  readonly #promptTokens: PromptCounter

  constructor(promptTokens: PromptCounter = NO_COUNTER) {
    this.#promptTokens = promptTokens
  }

  /**
   * Registers a worker of this process, so that limits of the pool's models are divided among workers.
   *
   * @returns A function that unregisters the worker
   */
  join(pool: PoolName, view: FleetView): () => void {
    this.#views.set(pool, view)
    return () => this.#views.delete(pool)
  }

  /**
   * Returns this process's part of a model's limits. If the catalogue is reloaded, then a model may be open twice, and the part belongs to the
   * upstream that was opened last.
   */
  open({ id, pool }: { readonly id: string; readonly pool: PoolName }): ModelPartition {
    const share = new ModelPartition(id, () => this.#views.get(pool), this.#promptTokens)
    this.#partitions.set(id, share)
    return share
  }

  /**
   * Returns the limits to publish to other processes. Until its first decrease, a limit has its initial value, which is equal in every
   * process, so the limit is not published.
   */
  limitsToPublish(models: Iterable<string>): PublishedLimit[] {
    return [...models].flatMap((model) => this.#partitions.get(model)?.limitsToPublish() ?? [])
  }

  promptTokensOf(models: Iterable<string>): PromptTokens[] {
    return [...models].flatMap((model) => this.#partitions.get(model)?.promptTokens ?? [])
  }

  /** Exports the state of each server of each open model as metrics. */
  showIn(metrics: Pick<Metrics, 'rows'>): void {
    const read = (value: (server: ServerState) => number) => () =>
      [...this.#partitions].flatMap(([model, { servers }]) =>
        servers.map((one, server) => [{ model, server: String(server) }, value(one)] as const),
      )
    metrics.rows(
      'sluice_server_circuit_open',
      read(({ isOpen }) => Number(isOpen)),
    )
    metrics.rows(
      'sluice_server_concurrency_limit',
      read(({ permits }) => permits),
    )
    metrics.rows(
      'sluice_server_running',
      read(({ inFlight }) => inFlight),
    )
  }

  failingModels(models: Iterable<string>): string[] {
    return [...models].filter((model) => this.#partitions.get(model)?.isFailing)
  }

  applyPublished(found: readonly PublishedLimit[]): void {
    for (const one of found) this.#partitions.get(one.model)?.applyPublished(one)
    for (const share of this.#partitions.values()) share.refresh()
  }
}

export class ModelPartition {
  readonly #model: string
  readonly #view: () => FleetView | undefined
  #limits: readonly AdaptiveLimit[] = []
  #onChange = () => {}
  #breakers: readonly BreakerState[] = []
  #members: readonly Member[] = []
  #membersAtMs = Number.NEGATIVE_INFINITY
  readonly #counter: PromptCounter
  readonly #prompts = new Map<number, PromptTokens>()

  constructor(model: string, view: () => FleetView | undefined, counter: PromptCounter) {
    this.#model = model
    this.#view = view
    this.#counter = counter
  }

  get promptTokens(): PromptTokens[] {
    return [...this.#prompts.values()]
  }

  /**
   * Counts the prompt of a call, unless its usage is estimated.
   *
   * @param server Index of the server
   */
  countPrompt(server: number, { input_tokens, cached_tokens = 0, estimated }: Usage): void {
    if (estimated) return
    const hit = Math.min(cached_tokens, input_tokens)
    const model = this.#model
    const { input, cached } = this.#prompts.get(server) ?? { input: 0, cached: 0 }
    this.#prompts.set(server, { model, server, input: input + input_tokens, cached: cached + hit })
    const labels = { model, server: String(server) }
    this.#counter.inc({ ...labels, cache: 'hit' }, hit)
    this.#counter.inc({ ...labels, cache: 'miss' }, input_tokens - hit)
  }

  /**
   * Sets the servers of the model. The lists have one entry per server, in the same order.
   *
   * @param onChange Called when the number of permits may have increased
   * @param breakers Circuit breakers of the servers
   */
  use(limits: readonly AdaptiveLimit[], onChange: () => void, breakers: readonly BreakerState[] = []): void {
    this.#limits = limits
    this.#onChange = onChange
    this.#breakers = breakers
  }

  /** Whether the circuit breakers of all servers have opened, and no call has succeeded since. */
  get isFailing(): boolean {
    return this.#breakers.length > 0 && this.#breakers.every((breaker) => breaker.isFailing)
  }

  get servers(): ServerState[] {
    const slots = this.#current().find(({ boot }) => boot === this.#view()?.boot)?.slots ?? Number.POSITIVE_INFINITY
    return this.#limits.map(({ permits, inFlight }, i) => ({
      // A single worker gets the whole limit. Without a configured limit, the limit is above the worker's slots until the server signals overload. So
      // at most the slots are reported.
      permits: Math.min(permits, slots),
      inFlight,
      isOpen: this.#breakers[i]?.isOpen === true,
    }))
  }

  get workers(): number {
    return Math.max(1, this.#current().length)
  }

  partOf(limit: number): number {
    const boot = this.#view()?.boot
    const members = this.#current()
    if (boot === undefined || members.length < 2) return limit
    return partsOf(limit, members).get(boot) ?? 0
  }

  limitsToPublish(): PublishedLimit[] {
    return this.#limits.flatMap(({ published: { generation, limit } }, server) =>
      generation > 0 ? { model: this.#model, server, generation, limit } : [],
    )
  }

  applyPublished(found: PublishedLimit): void {
    this.#limits[found.server]?.applyPublished(found)
  }

  refresh(): void {
    this.#membersAtMs = Number.NEGATIVE_INFINITY
    this.#onChange()
  }

  #current(): readonly Member[] {
    const nowMs = performance.now()
    if (nowMs - this.#membersAtMs < MEMBERS_TTL_MS) return this.#members
    this.#membersAtMs = nowMs
    this.#members = this.#view()?.membersOf(this.#model) ?? []
    return this.#members
  }
}

/**
 * Divides a concurrency limit among workers in equal parts, each at most the worker's slots. The remainder goes to the workers whose ids (`boot`) sort first,
 * so that all workers compute the same parts. The parts add up to the limit, unless there are fewer slots.
 */
export function partsOf(limit: number, members: readonly Member[]): ReadonlyMap<string, number> {
  const parts = new Map<string, number>()
  let left = limit
  const bySlots = members.toSorted((a, b) => a.slots - b.slots || (a.boot < b.boot ? 1 : -1))
  for (const [index, { boot, slots }] of bySlots.entries()) {
    // Parts are computed from the smallest worker to the largest. A worker with few slots cannot use an equal part, so
    // the rest of its part is divided among the later workers. Among workers with equal slots, those whose ids sort first
    // come last and receive the remainder.
    const part = Math.min(slots, Math.floor(left / (bySlots.length - index)))
    parts.set(boot, part)
    left -= part
  }
  return parts
}
