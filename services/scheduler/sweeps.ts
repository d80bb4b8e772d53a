import type { DurableJob } from '#schemas/durable-job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import type { Log } from '#shared/log/log.ts'
import type { Metrics } from '#shared/metrics.ts'
import { type Dispatch, type Moved, REAPER_LEASE, type Store } from '#shared/store/store.ts'

/** Jobs one sweep moves at most: with bodies of up to 64 KiB they are held in memory until they are published. */
export const BATCH_MAX = 500
/** Jobs that are on their way to the broker at once. */
const SUBMITS_MAX = 64

/** When the reaper gives up on a job (docs/design.md, Moves and guards). */
const REAP_POLICY = { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 10_000 }

/** What sweeps work with. */
export interface SweepContext {
  readonly store: Store
  readonly broker: Broker
  readonly dispatcher: Dispatcher
  readonly log: Log
  readonly metrics: Metrics
}

/** Queues and publishes the jobs whose time has come. @returns Whether there may be more */
export async function startDue(context: SweepContext): Promise<boolean> {
  const moved = await context.store.startDue(BATCH_MAX)
  if (moved.length > 0) context.log.info({ count: moved.length }, 'due jobs queued')
  await publish(context, moved)
  return moved.length === BATCH_MAX
}

/** Ends the jobs that waited too long. @returns Whether there may be more */
export async function expire(context: SweepContext): Promise<boolean> {
  const moved = await context.store.expire(BATCH_MAX)
  if (moved.length > 0) context.log.info({ count: moved.length }, 'jobs expired')
  for (const { job } of moved) {
    context.metrics.expired.inc({ pool: job.pool })
    countEnd(context, job)
  }
  publishEvents(context, moved)
  return moved.length === BATCH_MAX
}

/**
 * Ends or requeues the jobs of lost workers, as the only scheduler that does so at the time.
 *
 * @param leaseMs How long others keep away should this process die.
 * @returns Whether there may be more
 */
export async function reap(context: SweepContext, holder: string, leaseMs: number): Promise<boolean> {
  if (!(await context.store.holdLease(REAPER_LEASE, holder, leaseMs))) return false
  const moved = await context.store.reap(holder, REAP_POLICY, BATCH_MAX)
  if (moved.length > 0) context.log.warn(countStates(moved), 'jobs of lost or silent workers reaped')
  for (const { job } of moved) {
    context.metrics.reaped.inc({ pool: job.pool, end: job.state })
    if (job.state === 'queued') context.metrics.retries.inc({ pool: job.pool, reason: 'worker_lost' })
    else countEnd(context, job)
  }
  await publish(context, moved)
  return moved.length === BATCH_MAX
}

/**
 * Publishes what moves have committed: their events, then the jobs they queued. What does not get through is published
 * again later, so the rest is left when the broker goes away.
 */
export async function publish(context: SweepContext, moved: readonly Dispatch[]): Promise<void> {
  publishEvents(context, moved)
  const queued = moved.filter(({ job }) => job.state === 'queued')
  for (let i = 0; i < queued.length && context.broker.isReachable; i += SUBMITS_MAX) {
    const some = queued.slice(i, i + SUBMITS_MAX)
    await Promise.all(some.map(({ job, request }) => context.dispatcher.publishJob(job, request)))
  }
}

function publishEvents(context: SweepContext, moved: readonly Moved[]): void {
  for (const { events } of moved) context.dispatcher.publishEvents(events)
}

/** The scheduler is the arbiter of these ends, so it counts them. */
function countEnd({ metrics }: SweepContext, job: DurableJob): void {
  metrics.jobs.inc({ pool: job.pool, end: job.state, code: job.error?.code ?? '' })
}

function countStates(moved: readonly Moved[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { job } of moved) counts[job.state] = (counts[job.state] ?? 0) + 1
  return counts
}
