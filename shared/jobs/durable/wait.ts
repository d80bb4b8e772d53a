import type { DurableJob } from '#schemas/durable-job.ts'
import type { DurableEnd } from '#schemas/event.ts'
import { ignoreOutage, isLast, type LiveEvents, POLL_MS, TERMINAL } from './follow.ts'

/** A job as it ended, or as it is when the wait is over. */
export interface AwaitedJob {
  readonly job: DurableJob
  /** Of a completed job, where it came along with its end; undefined: the store has it. */
  readonly result?: DurableEnd['result']
}

/** What {@link waitForEnd} needs. */
export interface WaitOptions {
  readonly live: LiveEvents
  readonly id: string
  /** Reads the job. @throws ServiceError `job_not_found` */
  readonly find: () => Promise<DurableJob>
  readonly signal: AbortSignal
  /** Called once where there is something to wait for. What it throws ends the wait. */
  readonly onWait?: (() => void) | undefined
  /** Longest silence after which the store is asked; default: a few seconds, for callers who wait. */
  readonly pollMsMax?: number | undefined
}

/**
 * Waits until a job has ended, or `signal` aborts.
 *
 * Listens first, then reads the job once: an end that follows is heard, with the job and its result, and nothing is read for it. The
 * store is asked where an end was told without them, and when it was quiet for long, since what is told may get lost.
 *
 * @throws ServiceError `job_not_found`, also for what is gone meanwhile
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
      const heard = subscription.takeAll()
      idleMs = heard.length > 0 ? POLL_MS.min : Math.min(idleMs * 2, pollMsMax)
      if (signal.aborted || (heard.length > 0 && !heard.some(isLast))) continue
      // While the store cannot say, live events go on.
      const now = await find().catch(ignoreOutage(undefined))
      if (now && TERMINAL.has(now.state)) return { job: now }
    }
    return { job: await find() }
  } finally {
    subscription.close()
  }
}
