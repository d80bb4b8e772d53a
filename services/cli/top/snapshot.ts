import type { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import { ApiError } from '#services/cli/client/api-error.ts'
import type { JobView } from '#services/cli/client/job.ts'
import type { JobsApi } from '#services/cli/client/jobs-api.ts'

/**
 * Maximum running jobs, and maximum queued jobs, per snapshot. One more job is requested, to detect whether there are more; a page has at
 * most 100 jobs.
 */
export const JOBS_MAX = 99
const RUNNING = ['in_progress', 'cancelling']
const WAITING = ['queued']

export interface ModelView {
  readonly id: string
  /** Number of workers that serve the model; null without the admin scope. */
  readonly workers: number | null
  /** Maximum concurrent jobs on these workers; null without the admin scope. */
  readonly capacity: number | null
  readonly running: number
  readonly waiting: number
  readonly paused: boolean
}

/** The state of the service as visible to a key. `sluice top --once` prints this object as JSON. */
export interface Snapshot {
  readonly object: 'top'
  readonly created_at: number
  /** `all`: all projects, with the scope `admin`. `own`: the project of the key. */
  readonly sees: 'all' | 'own'
  /** null without the admin scope. */
  readonly pools: readonly PoolView[] | null
  /** null without the admin scope. */
  readonly workers: readonly WorkerView[] | null
  readonly models: readonly ModelView[]
  /** Running durable jobs, then queued ones, each newest first; null if the service has no job store. */
  readonly jobs: readonly JobView[] | null
  readonly has_more_jobs: boolean
}

/** Reads snapshots. The first one determines whether the key has the admin scope. */
export class Reader {
  readonly #api: JobsApi
  #sees: Snapshot['sees'] | undefined

  constructor(api: JobsApi) {
    this.#api = api
  }

  /** @throws CommandError if the service rejects the key or is unreachable */
  async read(): Promise<Snapshot> {
    const fleet = this.#sees === 'own' ? undefined : await this.#findFleet()
    this.#sees ??= fleet ? 'all' : 'own'
    const [names, running, waiting] = await Promise.all([
      undefinedIfRefused([403], () => this.#api.models()),
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

  /** Pools and workers; undefined if the key lacks the admin scope, or if the service has no admin API. */
  async #findFleet(): Promise<Fleet | undefined> {
    const { admin } = this.#api
    // After a successful read, a 403 means that the key has changed. The error is thrown, because the view must not switch to `own`
    // silently.
    const expected = this.#sees === undefined ? [403, 404] : []
    return await undefinedIfRefused(expected, async () => {
      const [pools, workers] = await Promise.all([admin.pools(), admin.workers()])
      return { pools, workers }
    })
  }

  async #findJobs(statuses: readonly string[]): Promise<{ jobs: JobView[]; hasMore: boolean } | undefined> {
    const filter = { statuses }
    const list =
      this.#sees === 'all' ? this.#api.admin.list(filter, JOBS_MAX + 1) : this.#api.list(filter, JOBS_MAX + 1)
    const jobs = await undefinedIfRefused(['jobs_unavailable'], () => Array.fromAsync(list))
    return jobs && { jobs: jobs.slice(0, JOBS_MAX), hasMore: jobs.length > JOBS_MAX }
  }
}

interface Fleet {
  readonly pools: readonly PoolView[]
  readonly workers: readonly WorkerView[]
}

/** The result of `read`, or undefined for an error response with one of these HTTP statuses or error codes. */
async function undefinedIfRefused<T>(
  expected: readonly (number | string)[],
  read: () => Promise<T>,
): Promise<T | undefined> {
  try {
    return await read()
  } catch (error) {
    if (error instanceof ApiError && (expected.includes(error.status) || expected.includes(error.code)))
      return undefined
    throw error
  }
}

/** The models that the key can call, and those that any worker serves, sorted by name. */
function modelsOf(names: readonly string[], jobs: readonly JobView[], fleet: Fleet | undefined): ModelView[] {
  const known = new Set([...names, ...(fleet?.workers ?? []).flatMap(({ models }) => models ?? [])])
  const paused = new Set(fleet?.pools.flatMap((pool) => pool.paused.map(({ target, id }) => `${target} ${id}`)))
  return [...known].toSorted().map((id) => {
    const own = jobs.filter(({ model }) => model === id)
    const serving = fleet?.workers.filter(({ models }) => models?.includes(id))
    return {
      id,
      workers: serving?.length ?? null,
      capacity: serving ? capacityOf(id, serving) : null,
      running: own.filter(({ status }) => RUNNING.includes(status)).length,
      waiting: own.filter(({ status }) => WAITING.includes(status)).length,
      paused: paused.has(`model ${id}`),
    }
  })
}

/** Maximum concurrent jobs of a model: per worker the minimum of its slots and its largest concurrency limit for the model. */
function capacityOf(model: string, workers: readonly WorkerView[]): number {
  return workers.reduce((sum, { slots, draining, concurrency_limits: bounds }) => {
    const own = bounds?.filter((bound) => bound.model === model).map(({ capacity }) => capacity) ?? []
    return draining ? sum : sum + Math.min(slots, own.length > 0 ? Math.max(...own) : slots)
  }, 0)
}
