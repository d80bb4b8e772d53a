import type { Broker } from '#shared/broker/broker.ts'
import type { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import type { Log } from '#shared/log/log.ts'
import type { Metrics } from '#shared/metrics.ts'
import type { Dispatch, Moved, Store } from '#shared/store/store.ts'

/** Maximum jobs per sweep. Their bodies (up to 64 KiB each) stay in memory until they are published. */
export const BATCH_MAX = 500
const SUBMITS_MAX = 64

export interface SweepContext {
  readonly store: Store
  readonly broker: Broker
  readonly dispatcher: Dispatcher
  readonly log: Log
  readonly metrics: Metrics
}

/**
 * Publishes committed state transitions: their events, then the queued jobs. Unpublished jobs are republished later, so the loop
 * ends if the broker becomes unreachable.
 */
export async function publish({ broker, dispatcher }: SweepContext, moved: readonly Dispatch[]): Promise<void> {
  publishEvents(dispatcher, moved)
  const queued = moved.filter(({ job }) => job.state === 'queued')
  for (let i = 0; i < queued.length && broker.isReachable; i += SUBMITS_MAX) {
    const some = queued.slice(i, i + SUBMITS_MAX)
    await Promise.all(some.map(({ job, request }) => dispatcher.publishJob(job, request)))
  }
}

export function publishEvents(dispatcher: Dispatcher, moved: readonly Moved[]): void {
  for (const one of moved) dispatcher.publishMoved(one)
}
