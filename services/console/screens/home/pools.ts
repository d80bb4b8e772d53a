import type { Pool } from '#services/console/api/client.ts'
import { serviceNow } from '#services/console/api/clock.ts'
import {
  earlierScrape,
  type Latency,
  latencyOf,
  loadProgressOf,
  type Metrics,
  type Scrape,
} from '#services/console/api/metrics.ts'

/** Samples per plot: five minutes at 2 s. */
const SAMPLES_MAX = 150

export interface PoolSample {
  readonly waiting: number
  readonly running: number
  readonly oldestSeconds: number
  readonly p50: number
  readonly p95: number
  /** Failed runs of the last five minutes. */
  readonly failed: number
}

interface Runs {
  /** Time from the acceptance of a request to its first output. If no request of the pool has such a time, as with durable jobs, then the duration of attempts. */
  readonly latency: Latency & { readonly isOfAttempts: boolean }
  readonly ended: number
  readonly failed: number
  /** Whether the values cover the last five minutes or less. Otherwise they cover the time since the process started. */
  readonly isRecent: boolean
}

export interface ModelStats extends Runs {
  readonly id: string
  readonly waiting: number
  /** Progress of loading the model, 0 to 1. Undefined if this process does not run the pool of the model. */
  readonly loadProgress: number | undefined
}

export interface PoolState extends Runs {
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
  /** Length in seconds of the time that recent values cover. */
  readonly windowSeconds: number
  readonly isPaused: boolean
  /** Models that run as many calls as they can while more calls wait. Empty unless the key has the scope `admin`. */
  readonly fullModels: Pool['models']
  readonly samples: readonly PoolSample[]
  /** Models of the pool, sorted by queued calls, then by latency, both descending. */
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
  // All models of the pool use the same window. Otherwise a table would mix recent values with values since the start.
  const before = recentScrape(id, now)
  const runs = runsOf(id, { pool: id }, now, before)
  const { p50 = 0, p95 = 0 } = runs.latency
  const failed = runs.isRecent ? runs.failed : 0
  const sample = { waiting, running, oldestSeconds: oldestSeconds ?? 0, p50, p95, failed }
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
    windowSeconds: before ? before.ageMs / 1_000 : 0,
    ...runs,
    fullModels: pool?.models.filter(({ full }) => full) ?? [],
    isPaused: pool?.paused.some(({ target }) => target === 'pool') ?? false,
    samples: history,
    models: modelStatsOf(id, now, before),
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
export const PARENTS_TEXT = 'Jobs wait for their child jobs, without a slot'

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

function modelStatsOf(pool: string, now: Metrics, before: Scrape | undefined): readonly ModelStats[] {
  const named = ['sluice_waiting_calls', 'sluice_attempts_total'].flatMap((name) => now.all(name, { pool }))
  const ids = new Set(named.flatMap(({ labels }) => labels.model || []))
  const stats = [...ids].map((id) => {
    const labels = { pool, model: id }
    const waiting = now.sum('sluice_waiting_calls', labels) + now.sum('sluice_waiting_jobs', labels)
    return { id, waiting, loadProgress: loadProgressOf(id, pool, now), ...runsOf(pool, labels, now, before) }
  })
  return stats.toSorted(
    (a, b) => b.waiting - a.waiting || (b.latency.p95 ?? 0) - (a.latency.p95 ?? 0) || (a.id < b.id ? -1 : 1),
  )
}

const ATTEMPTS = 'sluice_attempts_total'
const FIRST_OUTPUT = 'sluice_job_first_output_seconds'

/** Returns the scrape with which the recent values of a pool begin. Undefined if no attempt has ended since then. */
function recentScrape(pool: string, now: Metrics): Scrape | undefined {
  const before = earlierScrape(now)
  return before && now.sum(ATTEMPTS, { pool }) > before.metrics.sum(ATTEMPTS, { pool }) ? before : undefined
}

function runsOf(pool: string, labels: Readonly<Record<string, string>>, now: Metrics, before?: Scrape): Runs {
  const countOf = (more: Readonly<Record<string, string>> = {}) =>
    now.sum(ATTEMPTS, { ...labels, ...more }) - (before?.metrics.sum(ATTEMPTS, { ...labels, ...more }) ?? 0)
  // All models of a pool are measured in the same way, because they are rows of one table.
  const outputs = (metrics: Metrics | undefined) => metrics?.sum(`${FIRST_OUTPUT}_count`, { pool }) ?? 0
  const isOfAttempts = outputs(now) === outputs(before?.metrics)
  const seconds = isOfAttempts ? 'sluice_attempt_duration_seconds' : FIRST_OUTPUT
  return {
    latency: { ...latencyOf(seconds, labels, now, before?.metrics), isOfAttempts },
    ended: countOf(),
    failed: countOf({ outcome: 'failed' }),
    isRecent: before !== undefined,
  }
}
