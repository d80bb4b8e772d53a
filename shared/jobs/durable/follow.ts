import type { DurableEvent, DurableState } from '#schemas/durable-job.ts'
import type { DurableEnd } from '#schemas/event.ts'
import type { Broker, Closable } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { readEnd, readEvents } from '#shared/jobs/records.ts'
import { EVENT_PARTITIONS, EVENTS } from '#shared/jobs/topics.ts'
import { UnknownRecordLog } from '#shared/jobs/unknown-record-log.ts'
import type { Log } from '#shared/log/log.ts'
import type { JobReads, Scope } from '#shared/store/store.ts'

/** Events read from the store at once. */
const PAGE = 200
/** Live events kept for one follower who does not read; beyond that it goes on from the store. */
const BUFFERED_MAX = 500
/** Longest silence of the live events after which the store is asked; it grows while nothing happens. */
export const POLL_MS = { min: 500, max: 5_000 }

/** States that never change again. */
export const TERMINAL: ReadonlySet<DurableState> = new Set(['completed', 'failed', 'cancelled', 'expired'])

const TERMINAL_EVENTS: ReadonlySet<string> = new Set(['job.completed', 'job.failed', 'job.cancelled', 'job.expired'])

/** Whether a job says nothing more after an event. */
export function isLast(event: DurableEvent): boolean {
  return TERMINAL_EVENTS.has(event.type)
}

/** Receives the events of durable jobs, and hands them to those who follow the job in this process. */
export class LiveEvents {
  readonly #skipped: UnknownRecordLog
  readonly #subscriptions = new Map<string, Set<Subscription>>()
  #receiver: Closable | undefined

  private constructor(log: Log) {
    this.#skipped = new UnknownRecordLog(log)
  }

  /** Starts to receive. */
  static async open(broker: Broker, log: Log): Promise<LiveEvents> {
    const live = new LiveEvents(log)
    const partitions = Array.from({ length: EVENT_PARTITIONS }, (_, partition) => partition)
    live.#receiver = await broker.receive(EVENTS, partitions, ({ key, value }) => {
      // Most records are of jobs nobody follows here: the key tells without parsing.
      const subscriptions = live.#subscriptions.get(key)
      if (subscriptions) live.#onRecord(value, subscriptions)
    })
    return live
  }

  /** Hears of a job from now on. The caller closes it. */
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

  #onRecord(value: Buffer, subscriptions: Set<Subscription>): void {
    const record = readEvents(value)
    if (!record) return this.#skipped.note('events not understood')
    for (const type of record.skipped) this.#skipped.note('event not understood', type)
    for (const subscription of subscriptions) subscription.push(record.events, record.end)
  }
}

/** The live events of one job, for one follower. */
export class Subscription {
  readonly #onClose: () => void
  #events: DurableEvent[] = []
  #isNews = false
  /** As it was sent. */
  #end: unknown
  #wake: (() => void) | undefined

  constructor(onClose: () => void) {
    this.#onClose = onClose
  }

  /** @param events None: there is something in the store. @param end How the job ended, where they tell that */
  push(events: readonly DurableEvent[] = [], end?: unknown): void {
    this.#isNews = true
    this.#end ??= end
    this.#events.push(...events)
    // What is dropped here is in the store; the gap sends the follower there.
    if (this.#events.length > BUFFERED_MAX) this.#events = []
    this.#wake?.()
  }

  /** Events that follow `seq` without a gap; what came before is dropped. */
  takeAfter(seq: number): DurableEvent[] {
    const taken: DurableEvent[] = []
    for (const event of this.#events) if (event.seq === seq + taken.length + 1) taken.push(event)
    // One of them is missing: no need to wait before the store is asked for it.
    if (this.#events.some((event) => event.seq > seq + taken.length)) this.#isNews = true
    this.#events = []
    return taken
  }

  /** How the job ended; undefined while it was not told. */
  get end(): DurableEnd | undefined {
    return readEnd(this.#end)
  }

  /** All events that were pushed since the last call; none of them that only said that there is something in the store. */
  takeAll(): DurableEvent[] {
    const taken = this.#events
    this.#events = []
    return taken
  }

  /** Resolves when something was pushed since the last call; at the latest after `ms`, or when `signal` aborts. */
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

  close(): void {
    this.#onClose()
  }
}

/** What {@link follow} needs. */
export interface FollowOptions {
  readonly live: LiveEvents
  readonly store: JobReads
  readonly scope: Scope
  readonly id: string
  /** Number of the last event the caller has; 0: none. */
  readonly after: number
  readonly signal: AbortSignal
  /** Longest silence after which the store is asked; default: a few seconds, for callers who wait. */
  readonly pollMsMax?: number | undefined
}

/**
 * Follows the events of one durable job until its last one, or until `signal` aborts, or the job is gone.
 *
 * Gives them in order without gaps or repeats: subscribes first, then reads what is stored, then goes on live, and asks the
 * store whenever something is missing or it was quiet for long, since a live event may get lost on its way. While the store
 * cannot be reached, live events go on.
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
      isStoreDue = events.length === PAGE
      idleMs = POLL_MS.min
      yield events
      const last = events.at(-1)
      if (!last || isLast(last)) return
      seq = last.seq
    }
  } finally {
    subscription.close()
  }
}

/** None while the store cannot say: what happens then is heard live or found later. */
async function readStore(store: JobReads, scope: Scope, id: string, after: number): Promise<DurableEvent[]> {
  return await store.listEvents(scope, id, after, PAGE).catch(ignoreOutage<DurableEvent[]>([]))
}

/** Purged, or erased: nothing will come any more. A store that cannot say leaves it open. */
async function isGone(store: JobReads, scope: Scope, id: string): Promise<boolean> {
  const find = async () => {
    const job = await store.find(scope, id)
    return job === undefined || job.erased_at_ms !== null
  }
  return await find().catch(ignoreOutage(false))
}

/** What is given in the place of a read while the store cannot be reached. */
export function ignoreOutage<T>(instead: T): (error: unknown) => T {
  return (error) => {
    if (ServiceError.from(error).code !== 'overloaded') throw error
    return instead
  }
}

/** How a job ended, as one would say it. */
export function pastOf(state: DurableState): string {
  return state === 'completed' || state === 'failed' || state === 'expired' ? state : 'ended'
}
