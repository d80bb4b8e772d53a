/*
 * Follows a durable job: delivers its events up to the last event, or waits for its end.
 *
 * The problem: live events arrive fast but may be lost. The store has all events but is expensive to poll.
 *
 * The invariant: events are returned in order of `seq`, without gaps or repetitions.
 *
 * How it works:
 * 1. Subscribe to live events, then read the stored events after `after`. This order leaves no gap in between.
 * 2. Return live events as long as each has the next sequence number.
 * 3. After a gap, or after a silence of 500 ms that doubles up to 5 s, read the store.
 *
 * Example: events 1 to 3 come from the store, and 4 arrives live. If 6 arrives next, then 5 was lost, and one read returns 5 and 6. If the store is
 * unreachable, then live events continue.
 */

import type { DurableEvent, DurableJob, DurableState } from '#schemas/durable-job.ts'
import type { DurableEnd } from '#schemas/event.ts'
import type { Broker, Closable } from '#shared/broker/broker.ts'
import { EVENT_PARTITIONS, EVENTS, readEnd, readEvents, UnknownRecordLog } from '#shared/jobs/records.ts'
import { sizeOf } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { yieldToEventLoop } from '#shared/lib/yielding.ts'
import type { Log } from '#shared/log/log.ts'
import { EVENTS_BYTES_MAX, type JobReads, type Scope } from '#shared/store/store.ts'

const PAGE = 200
/**
 * Maximum number of live events buffered for a slow subscriber. Beyond this maximum, the subscriber continues from the
 * store.
 */
const BUFFERED_MAX = 500
const POLL_MS = { min: 500, max: 5_000 }

export const TERMINAL: ReadonlySet<DurableState> = new Set(['completed', 'failed', 'cancelled', 'expired'])

const TERMINAL_EVENTS: ReadonlySet<string> = new Set(['job.completed', 'job.failed', 'job.cancelled', 'job.expired'])

export function isLast(event: DurableEvent): boolean {
  return TERMINAL_EVENTS.has(event.type)
}

export class LiveEvents {
  readonly #skipped: UnknownRecordLog
  readonly #subscriptions = new Map<string, Set<Subscription>>()
  #receiver: Closable | undefined

  private constructor(log: Log) {
    this.#skipped = new UnknownRecordLog(log)
  }

  static async open(broker: Broker, log: Log): Promise<LiveEvents> {
    const live = new LiveEvents(log)
    const partitions = Array.from({ length: EVENT_PARTITIONS }, (_, partition) => partition)
    live.#receiver = await broker.receive(EVENTS, partitions, ({ key, value }) => {
      // Most records belong to jobs without a subscription in this process. The key identifies the job without parsing the record.
      const subscriptions = live.#subscriptions.get(key)
      if (!subscriptions) return
      const record = readEvents(value)
      if (!record) return live.#skipped.note('unreadable events record ignored')
      for (const type of record.skipped) live.#skipped.note('event of unknown type ignored', type)
      for (const subscription of subscriptions) subscription.push(record.events, record.end)
    })
    return live
  }

  subscribe(jobId: string): Subscription {
    const all = this.#subscriptions.get(jobId) ?? new Set()
    this.#subscriptions.set(jobId, all)
    const subscription = new Subscription(() => {
      all.delete(subscription)
      if (all.size === 0) this.#subscriptions.delete(jobId)
    })
    all.add(subscription)
    return subscription
  }

  async close(): Promise<void> {
    await this.#receiver?.close()
  }
}

class Subscription {
  readonly close: () => void
  #events: DurableEvent[] = []
  #isNews = false
  #end: unknown
  #wake: (() => void) | undefined

  constructor(close: () => void) {
    this.close = close
  }

  /**
   * Adds live events. If a record only announces events that are in the store, then `events` is empty.
   *
   * @param events Events of the record
   * @param end End of the job, if the record contains it
   */
  push(events: readonly DurableEvent[] = [], end?: unknown): void {
    this.#isNews = true
    this.#end ??= end
    this.#events.push(...events)
    // If the subscriber is too slow, then the buffered events are dropped. The store has these events, and the gap in
    // the sequence makes the subscriber read them.
    if (this.#events.length > BUFFERED_MAX) this.#events = []
    this.#wake?.()
  }

  /** Returns the buffered events after `seq` up to the first gap. All other buffered events are dropped, because the store has them. */
  takeAfter(seq: number): DurableEvent[] {
    const taken: DurableEvent[] = []
    for (const event of this.#events) if (event.seq === seq + taken.length + 1) taken.push(event)
    // After a gap in the sequence, the missing event is read from the store without waiting.
    if (this.#events.some((event) => event.seq > seq + taken.length)) this.#isNews = true
    this.#events = []
    return taken
  }

  get end(): DurableEnd | undefined {
    return readEnd(this.#end)
  }

  takeAll(): DurableEvent[] {
    const taken = this.#events
    this.#events = []
    return taken
  }

  /** Resolves when {@link push} was called since the last wait, when `ms` have passed, or when `signal` aborts. */
  async wait(ms: number, signal: AbortSignal): Promise<void> {
    if (!this.#isNews && !signal.aborted) {
      const { promise, resolve } = Promise.withResolvers<void>()
      const timer = setTimeout(resolve, ms)
      const onAbort = () => resolve()
      signal.addEventListener('abort', onAbort, { once: true })
      this.#wake = resolve
      await promise
      this.#wake = undefined
      clearTimeout(timer)
      signal.removeEventListener('abort', onAbort)
    }
    this.#isNews = false
  }
}

interface FollowOptions {
  readonly live: LiveEvents
  readonly store: JobReads
  readonly scope: Scope
  readonly id: string
  /** Sequence number of the last event that the caller has received. 0 if none. */
  readonly after: number
  readonly signal: AbortSignal
  /** Maximum time in ms without events after which the store is read. Default: 5,000. */
  readonly pollMsMax?: number | undefined
}

/**
 * Yields the events of a job in order. Ends after the last event, when `signal` aborts, or when the job was erased or
 * purged.
 */
export async function* follow(options: FollowOptions): AsyncGenerator<DurableEvent[]> {
  const { live, store, scope, id, signal, pollMsMax = POLL_MS.max } = options
  const subscription = live.subscribe(id)
  let seq = options.after
  let idleMs = POLL_MS.min
  let isStoreDue = true
  try {
    while (!signal.aborted) {
      const events: DurableEvent[] = isStoreDue ? await readStore(store, scope, id, seq) : subscription.takeAfter(seq)
      if (events.length === 0) {
        if (isStoreDue && (await isGone(store, scope, id))) return
        await subscription.wait(idleMs, signal)
        const next = subscription.takeAfter(seq)
        if (next.length === 0) {
          isStoreDue = true
          idleMs = Math.min(idleMs * 2, pollMsMax)
          continue
        }
        events.push(...next)
      }
      isStoreDue = isStoreDue && isPageFull(events)
      idleMs = POLL_MS.min
      yield events
      if (isStoreDue) await yieldToEventLoop()
      const last = events.at(-1)
      if (!last || isLast(last)) return
      seq = last.seq
    }
  } finally {
    subscription.close()
  }
}

/**
 * Whether the store may have more events after this page, because a page ends at a maximum number of events or bytes. A character that
 * `sizeOf` counts takes at most six bytes of JSON. A page may therefore be full above a sixth of the maximum.
 */
function isPageFull(events: readonly DurableEvent[]): boolean {
  return events.length === PAGE || sizeOf(events, EVENTS_BYTES_MAX / 6) > EVENTS_BYTES_MAX / 6
}

/** Reads events from the store. If the store is unreachable, then no events are returned, and the next read returns the missing ones. */
async function readStore(store: JobReads, scope: Scope, id: string, after: number): Promise<DurableEvent[]> {
  return await store.listEvents(scope, id, after, PAGE).catch(ignoreOutage<DurableEvent[]>([]))
}

async function isGone(store: JobReads, scope: Scope, id: string): Promise<boolean> {
  const find = async () => {
    const job = await store.find(scope, id)
    return job === undefined || job.erased_at_ms !== null
  }
  return await find().catch(ignoreOutage(false))
}

/** Returns an error handler that replaces the result of a read during an outage of the store, and rethrows other errors. */
function ignoreOutage<T>(instead: T): (error: unknown) => T {
  return (error) => {
    if (ServiceError.from(error).code !== 'overloaded') throw error
    return instead
  }
}

export function pastOf(state: DurableState): string {
  return state === 'completed' || state === 'failed' || state === 'expired' ? state : 'ended'
}

export interface AwaitedJob {
  readonly job: DurableJob
  /**
   * Result of a completed job, if the end event contained the result. If undefined, then the result is in the store.
   */
  readonly result?: DurableEnd['result']
}

export interface WaitOptions {
  readonly live: LiveEvents
  readonly id: string
  readonly find: () => Promise<DurableJob>
  readonly signal: AbortSignal
  /** Called once if the job has not ended yet. An error that the callback throws ends the wait. */
  readonly onWait?: (() => void) | undefined
  /** Maximum time in ms without events after which the store is read. Default: 5,000. */
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
      // If the store is unreachable, then the wait continues with live events only.
      const now = await find().catch(ignoreOutage(undefined))
      if (now && TERMINAL.has(now.state)) return { job: now }
    }
    return { job: await find() }
  } finally {
    subscription.close()
  }
}
