import { EVERY_TENANT, type Moved, type Store } from '#shared/store/store.ts'
import type { History } from './history.ts'

type Job = Moved['job']

/** Claims by which others may overtake a tenant, for each worker that ever was: where each begins its round is its own. */
const PASSES_MAX = 2

/**
 * I14: no tenant is passed over. While a job waits that may be claimed, each other tenant is given no more than a few claims of its
 * kind, model and lane at moments when it has at least as many running there (docs/internals/design.md, Fairness).
 */
export class TurnsCheck {
  readonly #history: History
  /** Claims by which one tenant overtook another that waits, by lane and both. */
  readonly #passes = new Map<string, number>()

  constructor(history: History) {
    this.#history = history
  }

  /** What one call claimed, before the history knows of it. */
  sawClaims(claims: readonly Moved[]): void {
    for (const lane of new Set(claims.map(({ job }) => laneOf(job)))) {
      this.#sawClaimsOf(
        lane,
        claims.filter(({ job }) => laneOf(job) === lane),
      )
    }
  }

  #sawClaimsOf(lane: string, claims: readonly Moved[]): void {
    const atMs = claims[0]?.events.at(-1)?.at_ms ?? 0
    const known = [...this.#history.jobs.values()].filter((job) => laneOf(job) === lane)
    const running = (tenant: string) =>
      known.filter((job) => job.tenant === tenant && job.state === 'in_progress').length
    const waits = (job: Job) => job.state === 'queued' && job.expires_at_ms > atMs
    const served = new Set(claims.map(({ job }) => job.tenant))
    const waiting = new Map(known.filter(waits).map((job) => [job.tenant, job.id]))
    for (const key of this.#passes.keys()) {
      const [of, tenant = ''] = key.split('|')
      if (of === lane && (served.has(tenant) || !waiting.has(tenant))) this.#passes.delete(key)
    }
    for (const [tenant, id] of waiting) {
      if (served.has(tenant)) continue
      for (const other of served) if (running(tenant) <= running(other)) this.#passed(`${lane}|${tenant}|${other}`, id)
    }
  }

  #passed(key: string, id: string): void {
    const count = (this.#passes.get(key) ?? 0) + 1
    this.#passes.set(key, count)
    const most = PASSES_MAX * this.#history.workers
    if (count === most + 1) this.#history.violated(id, `I14: it waits, and ${key} was served ${count} times meanwhile`)
  }
}

function laneOf({ pool, kind, model, priority }: Job): string {
  return `${pool} ${kind} ${model} ${priority}`
}

/** What a store does that gives out whatever has waited longest. */
export async function claimOldest(store: Store, ...[of, boot, limit]: Parameters<Store['claimNext']>) {
  const { jobs } = await store.list(EVERY_TENANT, { limit: 1_000, states: ['queued'], order: 'asc' })
  const same = jobs.filter((job) => laneOf(job) === laneOf({ ...job, ...of }))
  const claimed: Awaited<ReturnType<Store['claimNext']>> = []
  for (const { id } of same.slice(0, limit)) {
    const moved = await store.claim(id, boot)
    const content = moved && (await store.findContent(EVERY_TENANT, id))
    if (moved) claimed.push({ ...moved, request: content?.request })
  }
  return claimed
}
