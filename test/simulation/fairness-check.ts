import { ALL_TENANTS, type Store, type TransitionResult } from '#shared/store/store.ts'
import type { History } from './history.ts'

type Job = TransitionResult['job']

/**
 * While a tenant waits, another tenant may get at most this number of claims, times the number of started worker processes. The bound depends on
 * the processes, because each one starts its round robin at a random tenant.
 */
const PASSES_MAX = 2

/**
 * Invariant I14: no tenant starves. While a claimable job of a tenant waits, any other tenant gets only a few claims of the same kind, model and
 * priority. A claim counts only if the other tenant has at least as many running jobs as the waiting one (docs/internals/design.md, Fairness).
 */
export class FairnessCheck {
  readonly #history: History
  /** Number of claims that another tenant got while a tenant waited. The key consists of the queue, the waiting tenant and the other tenant. */
  readonly #passes = new Map<string, number>()

  constructor(history: History) {
    this.#history = history
  }

  /** Checks the jobs that one call has claimed. Must be called before the history records these claims. */
  sawClaims(claims: readonly TransitionResult[]): void {
    for (const lane of new Set(claims.map(({ job }) => laneOf(job)))) {
      this.#sawClaimsOf(
        lane,
        claims.filter(({ job }) => laneOf(job) === lane),
      )
    }
  }

  #sawClaimsOf(lane: string, claims: readonly TransitionResult[]): void {
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
    if (count === most + 1) this.#history.violated(id, `I14: waiting, while ${key} was served ${count} times`)
  }
}

function laneOf({ pool, kind, model, priority }: Job): string {
  return `${pool} ${kind} ${model} ${priority}`
}

/** Claims the oldest jobs, whatever their tenant: an unfair replacement of `claimNext`, which the check must detect. */
export async function claimOldest(store: Store, ...[of, boot, limit]: Parameters<Store['claimNext']>) {
  const { jobs } = await store.list(ALL_TENANTS, { limit: 1_000, states: ['queued'], order: 'asc' })
  const same = jobs.filter((job) => laneOf(job) === laneOf({ ...job, ...of }))
  const claimed: Awaited<ReturnType<Store['claimNext']>> = []
  for (const { id } of same.slice(0, limit)) {
    const moved = await store.claim(id, boot)
    const content = moved && (await store.findContent(ALL_TENANTS, id))
    if (moved) claimed.push({ ...moved, request: content?.request })
  }
  return claimed
}
