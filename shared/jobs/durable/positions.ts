import type { DurableJob } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'
import type { QueuedPosition } from '#shared/store/records.ts'
import type { StoreView } from '#shared/store/store.ts'

/** Minimum lifetime of cached positions. Kept short, because the jobs of a short queue start soon. */
const CACHE_TTL_MS_MIN = 100
/** A cached read stays valid for this multiple of its own duration, because reading a long queue is slow. */
const CACHE_TTL_FACTOR = 50
const CACHED_MAX = 1_000

interface CachedRead<T> {
  readonly value: Promise<T>
  freshUntilMs: number
}

/**
 * Queue positions of waiting durable jobs: the number of jobs that start earlier, in tenant order, among those of the same kind,
 * model and priority. Calls that wait for the pool are included. For each other tenant, only the jobs that the round robin starts
 * earlier are counted. Thus a long backlog of one tenant does not change the position of others (docs/internals/design.md,
 * Fairness).
 *
 * The position is an upper bound, because only the workers hold the current position of the round robin.
 */
export class Positions {
  readonly #store: StoreView
  readonly #callsWaiting: (pool: PoolName) => number
  readonly #tenants = new Map<string, CachedRead<Map<string, number>>>()
  readonly #places = new Map<string, CachedRead<QueuedPosition[]>>()

  constructor(store: StoreView, callsWaiting: (pool: PoolName) => number) {
    this.#store = store
    this.#callsWaiting = callsWaiting
  }

  async of(job: DurableJob): Promise<number | null> {
    if (job.state !== 'queued') return null
    try {
      const [tenants, places] = await Promise.all([
        cachedRead(this.#tenants, queueOf(job), () => this.#readTenants(job)),
        cachedRead(this.#places, `${queueOf(job)} ${job.tenant}`, () => this.#store.tenants.positions(job, job.tenant)),
      ])
      return this.#count(job, tenants, places)
    } catch {
      // The position is reported as unknown. A request for a job must not fail because its position cannot be read.
      return null
    }
  }

  async added(job: DurableJob): Promise<void> {
    const tenants = await this.#tenants.get(queueOf(job))?.value.catch(() => undefined)
    tenants?.set(job.tenant, (tenants.get(job.tenant) ?? 0) + 1)
    const places = await this.#places.get(`${queueOf(job)} ${job.tenant}`)?.value.catch(() => undefined)
    if (!places) return
    // The new job is nearly always the last one, because ids begin with their creation time.
    const at = indexOf(job.id, places)
    const after = places.slice(at).map(({ id, nth }) => ({ id, nth: nth + 1 }))
    places.splice(at, after.length, { id: job.id, nth: (places[at - 1]?.nth ?? 0) + 1 }, ...after)
  }

  #count(job: DurableJob, tenants: ReadonlyMap<string, number>, places: readonly QueuedPosition[]): number {
    // Ids are ordered by time. The cached position of the previous id is thus the number of own jobs that start earlier.
    const own = places[indexOf(job.id, places) - 1]?.nth ?? 0
    let before = own
    // Round robin: each other tenant starts at most as many jobs as this tenant, plus one.
    for (const [tenant, count] of tenants) if (tenant !== job.tenant) before += Math.min(count, own + 1)
    return before + Math.min(this.#callsWaiting(job.pool), before + 1)
  }

  async #readTenants(job: DurableJob): Promise<Map<string, number>> {
    return new Map((await this.#store.tenants.queued(job)).map(({ tenant, count }) => [tenant, count]))
  }
}

function indexOf(id: string, places: readonly QueuedPosition[]): number {
  let [from, to] = [0, places.length]
  while (from < to) {
    const middle = (from + to) >>> 1
    if ((places[middle]?.id ?? '') < id) from = middle + 1
    else to = middle
  }
  return from
}

function queueOf({ pool, kind, model, priority }: DurableJob): string {
  return JSON.stringify([pool, kind, model, priority])
}

async function cachedRead<T>(all: Map<string, CachedRead<T>>, key: string, read: () => Promise<T>): Promise<T> {
  const known = all.get(key)
  const now = Date.now()
  if (known && now < known.freshUntilMs) return await known.value
  if (all.size >= CACHED_MAX) all.clear()
  // A read in progress is shared by all callers until it has ended.
  const entry = { value: read(), freshUntilMs: Number.POSITIVE_INFINITY }
  all.set(key, entry)
  try {
    return await entry.value
  } finally {
    const tookMs = Date.now() - now
    entry.freshUntilMs = now + Math.max(CACHE_TTL_MS_MIN, CACHE_TTL_FACTOR * tookMs)
  }
}
