import { percentile } from '../figures/stats.ts'
import type { JobSystem } from './system.ts'

/**
 * What the callers do. `submit`: they submit one job after another, then the workers are let at what was submitted. `busy`: the
 * same while the workers run. `whole`: they submit a job and wait until it has been completed.
 */
export type DurableShape = 'submit' | 'busy' | 'whole'

/** A kind of load. */
export interface DurableCell {
  readonly shape: DurableShape
  readonly callers: number
}

/** One system under one load. Times in milliseconds. */
export interface DurableFigures {
  /** Submits, or whole jobs, a second. */
  readonly perSecond: number
  readonly p50: number
  readonly p99: number
  /** Jobs a second that the workers completed; from the first submit on where they run meanwhile. */
  readonly completedPerSecond: number
  /** Jobs that were submitted and completed. */
  readonly jobs: number
}

/** Puts a load on a system for so long, and leaves it without jobs. @throws Error when a job fails */
export async function measureCell(system: JobSystem, cell: DurableCell, seconds: number): Promise<DurableFigures> {
  const isWhole = cell.shape === 'whole'
  const worksMeanwhile = cell.shape !== 'submit'
  if (worksMeanwhile) await system.startWork(isWhole)
  const times: number[] = []
  const startedAt = performance.now()
  const until = startedAt + seconds * 1_000
  const caller = async () => {
    for (let at = performance.now(); at < until; at = performance.now()) {
      const id = await system.submit()
      if (isWhole) await system.completed(id)
      times.push(performance.now() - at)
    }
  }
  await Promise.all(Array.from({ length: cell.callers }, caller))
  const perSecond = (times.length / (performance.now() - startedAt)) * 1_000
  const workStartedAt = performance.now()
  if (!worksMeanwhile) await system.startWork(false)
  await system.drained()
  const workedMs = performance.now() - (worksMeanwhile ? startedAt : workStartedAt)
  await system.stopWork()
  return {
    perSecond,
    p50: percentile(times, 0.5),
    p99: percentile(times, 0.99),
    completedPerSecond: (times.length / workedMs) * 1_000,
    jobs: times.length,
  }
}
