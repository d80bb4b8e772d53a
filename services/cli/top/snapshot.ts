import type { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import type { JobView } from '#services/cli/client/job.ts'
import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import { Refusal } from '#services/cli/client/refusal.ts'

/** Jobs that run, and jobs that wait, that one reading takes: with the one that tells of more a page of the service. */
const JOBS_MAX = 99
const RUNNING = ['in_progress', 'cancelling']
const WAITING = ['queued']

/** A model, what works for it, and its durable jobs among those that were read. */
export interface ModelView {
  readonly id: string
  /** Workers that have it; null where the key may not see workers. */
  readonly workers: number | null
  /** How many of its jobs these can have running at once; null where that is not known. */
  readonly capacity: number | null
  readonly running: number
  readonly waiting: number
  readonly paused: boolean
}

/** What a key may see of a service at one moment. On the wire of `sluice top` as it is. */
export interface Snapshot {
  readonly object: 'top'
  /** Unix seconds. */
  readonly created_at: number
  /** `all`: every project, by the operator's door; `own`: the project of the key. */
  readonly sees: 'all' | 'own'
  /** null where the key may not see them. */
  readonly pools: readonly PoolView[] | null
  /** null where the key may not see them. */
  readonly workers: readonly WorkerView[] | null
  readonly models: readonly ModelView[]
  /** Durable jobs that run, then those that wait, each newest first; null where the service keeps none. */
  readonly jobs: readonly JobView[] | null
  /** Whether there are more jobs than these. */
  readonly has_more_jobs: boolean
}

/** Reads a snapshot, again and again. Whether the key opens the operator's door is asked once. */
export class Reader {
  readonly #api: JobsApi
  #sees: Snapshot['sees'] | undefined

  constructor(api: JobsApi) {
    this.#api = api
  }

  /** @throws CommandError when the service refuses the key, or is away */
  async read(): Promise<Snapshot> {
    const fleet = this.#sees === 'own' ? undefined : await this.#findFleet()
    this.#sees ??= fleet ? 'all' : 'own'
    const [names, running, waiting] = await Promise.all([
      orWhere([403], () => this.#api.models()),
      this.#findJobs(RUNNING),
      this.#findJobs(WAITING),
    ])
    const jobs = running && waiting && [...running.jobs, ...waiting.jobs]
    return {
      object: 'top',
      created_at: Math.floor(Date.now() / 1_000),
      sees: this.#sees,
      pools: fleet?.pools ?? null,
      workers: fleet?.workers ?? null,
      models: modelsOf(names ?? [], jobs ?? [], fleet),
      jobs: jobs ?? null,
      has_more_jobs: running?.hasMore === true || waiting?.hasMore === true,
    }
  }

  /** Pools and workers; undefined where the key is not for operators, or the service has no door for them. */
  async #findFleet(): Promise<Fleet | undefined> {
    const { admin } = this.#api
    // Once it was open, a shut door is no other view of the same, but the end of a key.
    const shut = this.#sees === undefined ? [403, 404] : []
    return await orWhere(shut, async () => {
      const [pools, workers] = await Promise.all([admin.pools(), admin.workers()])
      return { pools, workers }
    })
  }

  async #findJobs(statuses: readonly string[]): Promise<{ jobs: JobView[]; hasMore: boolean } | undefined> {
    const filter = { statuses }
    const list =
      this.#sees === 'all' ? this.#api.admin.list(filter, JOBS_MAX + 1) : this.#api.list(filter, JOBS_MAX + 1)
    const jobs = await orWhere(['jobs_unavailable'], () => Array.fromAsync(list))
    return jobs && { jobs: jobs.slice(0, JOBS_MAX), hasMore: jobs.length > JOBS_MAX }
  }
}

interface Fleet {
  readonly pools: readonly PoolView[]
  readonly workers: readonly WorkerView[]
}

/** What is read, or undefined where the service refuses with one of these statuses or codes. */
async function orWhere<T>(refusals: readonly (number | string)[], read: () => Promise<T>): Promise<T | undefined> {
  try {
    return await read()
  } catch (error) {
    if (error instanceof Refusal && (refusals.includes(error.status) || refusals.includes(error.code))) return undefined
    throw error
  }
}

/** The models that the key may call or that some worker has, by name. */
function modelsOf(names: readonly string[], jobs: readonly JobView[], fleet: Fleet | undefined): ModelView[] {
  const known = new Set([...names, ...(fleet?.workers ?? []).flatMap(({ models }) => models ?? [])])
  const paused = new Set(fleet?.pools.flatMap((pool) => pool.paused.map(({ what, id }) => `${what} ${id}`)))
  return [...known].toSorted().map((id) => {
    const own = jobs.filter(({ model }) => model === id)
    const having = fleet?.workers.filter(({ models }) => models?.includes(id))
    return {
      id,
      workers: having?.length ?? null,
      capacity: having ? capacityOf(id, having) : null,
      running: own.filter(({ status }) => RUNNING.includes(status)).length,
      waiting: own.filter(({ status }) => WAITING.includes(status)).length,
      paused: paused.has(`model ${id}`),
    }
  })
}

/** Jobs of a model that workers can have running at once: as many as their widest bound of it and their slots let. */
function capacityOf(model: string, workers: readonly WorkerView[]): number {
  return workers.reduce((sum, { slots, draining, bounds }) => {
    const own = bounds?.filter((bound) => bound.model === model).map(({ capacity }) => capacity) ?? []
    return draining ? sum : sum + Math.min(slots, own.length > 0 ? Math.max(...own) : slots)
  }, 0)
}
