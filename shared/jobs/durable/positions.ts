import type { DurableJob } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'
import type { StoreView } from '#shared/store/store.ts'
import type { QueuedPlace } from '#shared/store/tenants.ts'

/** How old what is known of a queue may be: jobs of a short one may have started in that time. */
const AGE_MS = 100
/** Reading a very long queue takes long: it rests for as many times as long. */
const RESTS = 50
/** Queues, and tenants of queues, that are remembered at once. */
const REMEMBERED_MAX = 1_000

/** What was read once. */
interface Remembered<T> {
  readonly value: Promise<T>
  freshUntilMs: number
}

/**
 * Where durable jobs stand that wait for a worker: how many jobs would be started before them, of those for the same kind, model
 * and priority, in turn of tenants, and with them the calls that wait for the pool. No tenant's queue counts for more than what
 * comes before in its turns, so a job is no further behind for one that has very many (docs/design.md, Turns).
 *
 * It is what may come before at most: whose turn is first in a round only the workers know.
 */
export class Positions {
  readonly #store: StoreView
  readonly #callsWaiting: (pool: PoolName) => number
  /** By queue. */
  readonly #tenants = new Map<string, Remembered<Map<string, number>>>()
  /** By queue and tenant. */
  readonly #places = new Map<string, Remembered<QueuedPlace[]>>()

  /** @param callsWaiting Calls that wait for a pool, of all ingresses as far as they are known. */
  constructor(store: StoreView, callsWaiting: (pool: PoolName) => number) {
    this.#store = store
    this.#callsWaiting = callsWaiting
  }

  /** Jobs that would be started before this one; null where it does not wait for a worker, or nobody knows now. */
  async of(job: DurableJob): Promise<number | null> {
    if (job.state !== 'queued') return null
    try {
      const [tenants, places] = await Promise.all([
        remembered(this.#tenants, queueOf(job), () => this.#readTenants(job)),
        remembered(this.#places, `${queueOf(job)} ${job.tenant}`, () => this.#store.tenants.places(job, job.tenant)),
      ])
      return this.#count(job, tenants, places)
    } catch {
      // The job itself was read: nobody is refused that for want of this.
      return null
    }
  }

  /** A job was queued: what is remembered has it from now on. */
  async added(job: DurableJob): Promise<void> {
    const tenants = await this.#tenants.get(queueOf(job))?.value.catch(() => undefined)
    tenants?.set(job.tenant, (tenants.get(job.tenant) ?? 0) + 1)
    const places = await this.#places.get(`${queueOf(job)} ${job.tenant}`)?.value.catch(() => undefined)
    if (!places) return
    // Nearly always at the end: ids begin with their time.
    const at = indexOf(job.id, places)
    const after = places.slice(at).map(({ id, nth }) => ({ id, nth: nth + 1 }))
    places.splice(at, after.length, { id: job.id, nth: (places[at - 1]?.nth ?? 0) + 1 }, ...after)
  }

  #count(job: DurableJob, tenants: ReadonlyMap<string, number>, places: readonly QueuedPlace[]): number {
    // Its id says so also where it was not among those that were read.
    const own = places[indexOf(job.id, places) - 1]?.nth ?? 0
    let before = own
    // One of each other for each of ours, and one more where it comes first in the round.
    for (const [tenant, count] of tenants) if (tenant !== job.tenant) before += Math.min(count, own + 1)
    return before + Math.min(this.#callsWaiting(job.pool), before + 1)
  }

  async #readTenants(job: DurableJob): Promise<Map<string, number>> {
    return new Map((await this.#store.tenants.queued(job)).map(({ tenant, count }) => [tenant, count]))
  }
}

/** How many of the places are before that of an id. */
function indexOf(id: string, places: readonly QueuedPlace[]): number {
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

/** What was read of late, or is being read; else reads it. */
async function remembered<T>(all: Map<string, Remembered<T>>, key: string, read: () => Promise<T>): Promise<T> {
  const known = all.get(key)
  const now = Date.now()
  if (known && now < known.freshUntilMs) return await known.value
  if (all.size >= REMEMBERED_MAX) all.clear()
  // While it is being read it is fresh.
  const entry = { value: read(), freshUntilMs: Number.POSITIVE_INFINITY }
  all.set(key, entry)
  try {
    return await entry.value
  } finally {
    const tookMs = Date.now() - now
    entry.freshUntilMs = now + Math.max(AGE_MS, RESTS * tookMs)
  }
}
