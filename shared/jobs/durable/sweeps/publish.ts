import type { Broker } from '#shared/broker/broker.ts'
import type { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import type { Log } from '#shared/log/log.ts'
import type { Metrics } from '#shared/metrics.ts'
import type { Dispatch, Moved, Store } from '#shared/store/store.ts'

/** Jobs one sweep moves at most: with bodies of up to 64 KiB they are held in memory until they are published. */
export const BATCH_MAX = 500
/** Jobs that are on their way to the broker at once. */
const SUBMITS_MAX = 64

/** What sweeps work with. */
export interface SweepContext {
  readonly store: Store
  readonly broker: Broker
  readonly dispatcher: Dispatcher
  readonly log: Log
  readonly metrics: Metrics
}

/**
 * Publishes what moves have committed: their events, then the jobs they queued. What does not get through is published
 * again later, so the rest is left when the broker goes away.
 */
export async function publish({ broker, dispatcher }: SweepContext, moved: readonly Dispatch[]): Promise<void> {
  publishEvents(dispatcher, moved)
  const queued = moved.filter(({ job }) => job.state === 'queued')
  for (let i = 0; i < queued.length && broker.isReachable; i += SUBMITS_MAX) {
    const some = queued.slice(i, i + SUBMITS_MAX)
    await Promise.all(some.map(({ job, request }) => dispatcher.publishJob(job, request)))
  }
}

/** Publishes the events alone, of jobs that have ended. */
export function publishEvents(dispatcher: Dispatcher, moved: readonly Moved[]): void {
  for (const one of moved) dispatcher.publishMoved(one)
}
