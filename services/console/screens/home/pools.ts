import type { Pool } from '#services/console/api/client.ts'
import { serviceNow } from '#services/console/api/clock.ts'
import { loadProgressOf, type Metrics } from '#services/console/api/metrics.ts'

/** Samples per plot: five minutes at 2 s. */
const SAMPLES_MAX = 150

export interface PoolSample {
  readonly waiting: number
  readonly running: number
  readonly oldestSeconds: number
}

export interface ModelStats {
  readonly id: string
  readonly waiting: number
  /** Progress of loading the model, 0 to 1. Undefined if this process does not run the pool of the model. */
  readonly loadProgress: number | undefined
}

export interface PoolState {
  readonly id: string
  readonly slots: number
  readonly workers: number | undefined
  readonly running: number
  readonly waiting: number
  /** Durable jobs among the running and the waiting work. */
  readonly durable: { readonly running: number; readonly waiting: number }
  /** Jobs without a slot that wait for their child jobs, such as running batches. */
  readonly parents: number
  readonly oldestSeconds: number | undefined
  /** Attempts that ended since the service started. */
  readonly ended: number
  readonly isPaused: boolean
  /** Models that run as many calls as they can while more calls wait. Empty unless the key has the scope `admin`. */
  readonly fullModels: Pool['models']
  readonly samples: readonly PoolSample[]
  /** Models of the pool, those with the most queued calls first. */
  readonly models: readonly ModelStats[]
}

const samples = new Map<string, PoolSample[]>()

/**
 * Returns the current state of a pool, and records a sample for its plots.
 *
 * @param pool The pool from the admin API. Undefined if the key lacks the scope `admin` or the store is unreachable
 */
export function stateOf(id: string, now: Metrics, pool: Pool | undefined): PoolState {
  const queued = pool?.jobs?.queued
  const durable = { running: pool?.jobs?.in_progress ?? 0, waiting: queued ? queued.normal + queued.low : 0 }
  const waiting = pool
    ? pool.calls.queued + durable.waiting
    : now.sum('sluice_attached_jobs', { pool: id, state: 'queued' }) + now.sum('sluice_waiting_jobs', { pool: id })
  const running = pool?.running ?? now.sum('sluice_pool_running', { pool: id })
  const oldestSeconds = pool ? ageOf(pool.oldest_queued_at) : oldestIn(now, id)
  const sample = { waiting, running, oldestSeconds: oldestSeconds ?? 0 }
  const history = [...(samples.get(id) ?? []), sample].slice(-SAMPLES_MAX)
  samples.set(id, history)
  return {
    id,
    slots: pool?.slots ?? now.sum('sluice_pool_slots', { pool: id }),
    workers: pool?.workers,
    running,
    waiting,
    durable,
    parents: pool?.jobs?.waiting ?? 0,
    oldestSeconds,
    ended: now.sum(ATTEMPTS, { pool: id }),
    fullModels: pool?.models.filter(({ full }) => full) ?? [],
    isPaused: pool?.paused.some(({ target }) => target === 'pool') ?? false,
    samples: history,
    models: modelStatsOf(id, now),
  }
}

/** @param parents Jobs that wait for their child jobs. A pool with such jobs is active, although the jobs have no slot */
export function poolStatus({
  isPaused,
  slots,
  running,
  parents,
}: Pick<PoolState, 'isPaused' | 'slots' | 'running' | 'parents'>): string {
  if (isPaused) return 'paused'
  if (slots === 0) return 'no worker'
  return running + parents > 0 ? 'active' : 'idle'
}

/**
 * Text for a pool with jobs that wait for their child jobs. The text has no number, because the store also counts the jobs that only divide a batch
 * into parts.
 */
export const PARENTS_TEXT = 'Some jobs wait for their child jobs and use no slot'

function ageOf(at: number | null): number | undefined {
  return at === null ? undefined : Math.max(0, serviceNow() - at)
}

/**
 * Returns the age of the oldest queued job in seconds, from the metrics. This age is used only if the admin API did not return the pool,
 * because the metric is updated less often.
 */
function oldestIn(now: Metrics, pool: string): number | undefined {
  const ages = now.all('sluice_jobs_oldest_seconds', { pool, state: 'queued' }).map(({ value }) => value)
  const oldest = Math.max(0, ...ages)
  return oldest > 0 ? oldest : undefined
}

const ATTEMPTS = 'sluice_attempts_total'

function modelStatsOf(pool: string, now: Metrics): readonly ModelStats[] {
  const named = ['sluice_waiting_calls', ATTEMPTS].flatMap((name) => now.all(name, { pool }))
  const ids = new Set(named.flatMap(({ labels }) => labels.model || []))
  const stats = [...ids].map((id) => {
    const labels = { pool, model: id }
    const waiting = now.sum('sluice_waiting_calls', labels) + now.sum('sluice_waiting_jobs', labels)
    return { id, waiting, loadProgress: loadProgressOf(id, pool, now) }
  })
  return stats.toSorted((a, b) => b.waiting - a.waiting || (a.id < b.id ? -1 : 1))
}
