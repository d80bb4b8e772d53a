import type { DurableJob } from '#schemas/durable-job.ts'
import type { DurableEnd } from '#schemas/event.ts'
import { ignoreOutage, isLast, type LiveEvents, POLL_MS, TERMINAL } from './follow.ts'

export interface AwaitedJob {
  readonly job: DurableJob
  /** Result of a completed job, if the end event carried it; undefined: the store has it. */
  readonly result?: DurableEnd['result']
}

export interface WaitOptions {
  readonly live: LiveEvents
  readonly id: string
  readonly find: () => Promise<DurableJob>
  readonly signal: AbortSignal
  /** Called once if the job has not ended yet. An error that it throws ends the wait. */
  readonly onWait?: (() => void) | undefined
  /** Maximum interval without events after which the store is read; default: 5,000 ms. */
  readonly pollMsMax?: number | undefined
}

/**
 * Waits until a job has ended or `signal` aborts.
 *
 * Subscribes first, then reads the job once. The end event usually carries the job and its result, so no further read is needed.
 * The store is read if an end event lacks them, or after a long silence, because live events may be lost.
 *
 * @throws ServiceError `job_not_found`, also if the job is erased during the wait
 */
export async function waitForEnd(options: WaitOptions): Promise<AwaitedJob> {
  const { live, id, find, signal, onWait, pollMsMax = POLL_MS.max } = options
  const subscription = live.subscribe(id)
  try {
    const job = await find()
    if (TERMINAL.has(job.state)) return { job }
    onWait?.()
    for (let idleMs = POLL_MS.min; !signal.aborted; ) {
      await subscription.wait(idleMs, signal)
      const { end } = subscription
      if (end) return end.job.state === 'completed' ? end : { job: end.job }
      const events = subscription.takeAll()
      idleMs = events.length > 0 ? POLL_MS.min : Math.min(idleMs * 2, pollMsMax)
      if (signal.aborted || (events.length > 0 && !events.some(isLast))) continue
      // If the store is unreachable, then live events continue.
      const now = await find().catch(ignoreOutage(undefined))
      if (now && TERMINAL.has(now.state)) return { job: now }
    }
    return { job: await find() }
  } finally {
    subscription.close()
  }
}
