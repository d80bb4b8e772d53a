/*
 * Decides which durable jobs this worker claims from the store, and when.
 *
 * The invariant: each claim has a reserved slot, and a permit of its model's bulkhead.
 *
 * How it works: a record in the queue is only a hint that some job waits. The store decides which job is next, round robin over tenants. If
 * no slot is free, then the record is acknowledged and dropped, and no attempt is counted. A later claim on any worker takes the job.
 *
 * Fairness with attached calls: durable jobs may always fill half of the slots without delay. The other half is offered to attached calls for 25 ms
 * first. Durable jobs get the slots that no call takes (docs/internals/design.md, Fairness).
 *
 * Example: 8 slots, a backlog of durable jobs, and steady calls. Durable jobs claim 4 slots without delay. When a fifth slot is free, attached
 * calls have 25 ms to take it.
 */

import type { JobEnvelope, PoolName } from '#schemas/job.ts'
import type { Delivery } from '#shared/broker/broker.ts'
import type { ModelBulkhead, ModelBulkheads } from '#shared/capacity/bulkheads.ts'
import type { Pauses } from '#shared/capacity/capacity.ts'
import { workKey } from '#shared/capacity/fair-queue.ts'
import { fewestFirst } from '#shared/capacity/slots.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import type { Log } from '#shared/log/log.ts'
import type { QueuedOf } from '#shared/store/store.ts'
import { Attempt, type Attempts } from './attempt.ts'
import type { ClaimedJob, DurableRuns } from './durable-runs.ts'
import type { Lane, Poller } from './poller.ts'

/** Time in ms for which a durable job waits for a worker that has its model. After this time, any worker claims the job and fails it. */
const UNKNOWN_MODEL_MS = 300_000
/** Maximum number of jobs per claim statement. The bound limits memory, because each job may have a body of 64 KiB. */
const PULL_MAX = 64
/**
 * Maximum number of queues in `#held`. A queue is held if all its waiting tenants are at their concurrency limit. Jobs of further queues
 * wait until the scheduler announces them again.
 */
const HELD_QUEUES_MAX = 1_000
const PULL_MS = 1_000
/**
 * Time in ms for which free slots are offered to attached calls, while durable jobs use half of all slots. The value is several round trips
 * to the broker.
 */
const OFFER_MS = 25
/**
 * If no attached call arrived recently, then durable jobs may take all slots, although calls may wait in the queue. At most once per
 * second, durable jobs therefore leave half of the slots free for 100 ms. If no call waits, then half of the slots are idle for at
 * most a tenth of the time.
 */
const FIRST_OFFER_MS = 100
const FIRST_OFFER_EVERY_MS = 1_000

export interface ClaimsOptions {
  readonly pool: PoolName
  readonly kinds: Readonly<Record<string, Handler>>
  readonly log: Log
  readonly presence: Presence
  readonly runs: DurableRuns
  readonly bulkheads: ModelBulkheads
  readonly poller: Poller
  readonly attempts: Attempts
  readonly pauses?: Pauses | undefined
}

interface Pull {
  readonly lane: Lane
  readonly bulkhead: ModelBulkhead
  readonly kind: Handler
  count: number
}

/** Queue records of one kind, model and lane that arrived together. Each record has a reserved slot. */
interface Hints {
  readonly lane: Lane
  readonly bulkhead: ModelBulkhead
  readonly kind: Handler
  readonly deliveries: Delivery[]
}

export class Claims {
  readonly #options: ClaimsOptions
  readonly #stopPulling: () => void
  readonly #hints: Hints[] = []
  readonly #pulls: Pull[] = []
  /**
   * Queues in which jobs wait but no claim returned a job, because every waiting tenant is at its concurrency limit.
   */
  readonly #held = new Map<string, QueuedOf>()
  #offer: NodeJS.Timeout | undefined
  #offeredAtMs = Number.NEGATIVE_INFINITY
  #pulledLast: ModelBulkhead | undefined

  constructor(options: ClaimsOptions) {
    this.#options = options
    this.#stopPulling = atAlignedInterval(PULL_MS, () => this.#pullHeld())
  }

  /**
   * Claims the next job of the record's kind, model and priority, round robin over tenants. The claimed job may differ from the job in the record.
   *
   * The record is always acknowledged, so the broker never reaches its delivery limit. A job that stays in the store is claimed later or announced
   * again.
   */
  onDelivery(lane: Lane, delivery: Delivery, envelope: JobEnvelope, kind: Handler): void {
    const { presence, bulkheads } = this.#options
    const bulkhead = bulkheads.of(envelope)
    if (!this.#mustWait(lane, bulkhead)) return this.#hint({ lane, bulkhead, kind, deliveries: [delivery] })
    delivery.acknowledge()
    // Attached calls may follow this record in the queue, and the broker delivers them next. The time in which only attached calls may take the free
    // slots therefore starts again.
    if (this.#offer) this.#offerSlots()
    if (bulkhead.wait(lane.priority)) presence.publishCapacity()
    this.pull()
  }

  pull(): void {
    const { bulkheads, poller } = this.#options
    const [first] = bulkheads.waiting()
    if (!first || poller.stopped.aborted || !poller.hasFreeSlot) return
    const now = performance.now()
    const isOffered = this.#isOffered || now - this.#offeredAtMs >= FIRST_OFFER_EVERY_MS
    this.#pullAll(isOffered)
    if (!isOffered || this.#offer) return
    this.#offeredAtMs = now
    this.#offerSlots()
  }

  #pullHeld(): void {
    for (const { kind, model, priority } of this.#held.values())
      this.#options.bulkheads.of({ kind, model }).wait(priority)
    this.#held.clear()
    this.pull()
  }

  stop(): void {
    this.#stopPulling()
    clearTimeout(this.#offer)
  }

  get #isOffered(): boolean {
    return this.#offer !== undefined || this.#options.poller.isAttachedExpected
  }

  #offerSlots(): void {
    clearTimeout(this.#offer)
    const ms = this.#options.poller.isAttachedExpected ? OFFER_MS : FIRST_OFFER_MS
    this.#offer = setTimeout(() => {
      this.#offer = undefined
      this.#pullAll(false)
    }, ms)
  }

  #pullAll(isOffered: boolean): void {
    const { bulkheads, poller } = this.#options
    if (poller.stopped.aborted) return
    const waiting = [...bulkheads.waiting()]
    const next = this.#pulledLast ? waiting.indexOf(this.#pulledLast) + 1 : 0
    // Models that hold equally many slots alternate. Otherwise the first model would get every freed slot.
    for (const bulkhead of fewestFirst([...waiting.slice(next), ...waiting.slice(0, next)])) {
      for (const lane of poller.lanes) if (bulkhead.isWaiting(lane.priority)) this.#pullFor(lane, bulkhead, isOffered)
    }
  }

  /**
   * Whether this worker should not claim now, for one of three reasons:
   *
   * 1. No slot or no permit of the model is free.
   * 2. Jobs of this queue already wait, and a periodic claim serves them round robin.
   * 3. This worker does not have the model, but another worker may have it. If {@link UNKNOWN_MODEL_MS} have passed and no worker has the model, then
   *    the job is claimed, so that it fails with a reason.
   */
  #mustWait(lane: Lane, bulkhead: ModelBulkhead): boolean {
    const { pool, presence, bulkheads } = this.#options
    if (this.#claimable(lane, bulkhead, this.#isOffered) <= 0) return true
    if (bulkheads.hasModel(bulkhead.model)) return bulkhead.isWaiting(lane.priority)
    const isNew = bulkheads.unknownForMs(bulkhead.model) < UNKNOWN_MODEL_MS
    return isNew || presence.hasModel(pool, bulkhead.model)
  }

  #hint(hint: Hints): void {
    const { lane, bulkhead, deliveries } = hint
    this.#enter(lane, bulkhead)
    if (this.#hints.length === 0) {
      queueMicrotask(() => {
        for (const hints of this.#hints.splice(0)) void this.#claimFor(hints)
      })
    }
    const same = this.#hints.find((one) => one.lane === lane && one.bulkhead === bulkhead)
    if (same) same.deliveries.push(...deliveries)
    else this.#hints.push(hint)
  }

  async #claimFor({ lane, bulkhead, kind, deliveries }: Hints): Promise<void> {
    const { length: count } = deliveries
    const claimed = await this.#claim(lane, bulkhead, kind, count)
    for (const delivery of deliveries) delivery.acknowledge()
    // If the claim failed, then jobs of this queue still wait. The periodic claim tries again.
    if (claimed === undefined) bulkhead.wait(lane.priority)
    if (claimed !== count) this.#options.poller.free()
  }

  /**
   * Reserves slots at once, and sends the claim in a later event-loop iteration. Slots that become free in one
   * iteration therefore share one claim statement.
   */
  #pullFor(lane: Lane, bulkhead: ModelBulkhead, isOffered: boolean): void {
    const kind = this.#options.kinds[bulkhead.kind]
    const same = this.#pulls.find((pull) => pull.lane === lane && pull.bulkhead === bulkhead)
    const count = Math.min(this.#claimable(lane, bulkhead, isOffered), PULL_MAX - (same?.count ?? 0))
    if (!kind || count <= 0 || bulkhead.isPulling(lane.priority)) return
    this.#pulledLast = bulkhead
    this.#enter(lane, bulkhead, count)
    if (same) same.count += count
    else if (this.#pulls.push({ lane, bulkhead, kind, count }) === 1)
      setImmediate(() => {
        for (const pull of this.#pulls.splice(0)) void this.#claimPull(pull)
      })
  }

  async #claimPull({ lane, bulkhead, kind, count }: Pull): Promise<void> {
    bulkhead.beginPull(lane.priority)
    const claimed = await this.#claim(lane, bulkhead, kind, count)
    bulkhead.endPull(lane.priority, claimed === undefined || claimed === count)
    // After a failed claim, the freed slots are not offered at once, because an immediate claim would fail too. The periodic claim retries. A drain,
    // however, waits for these slots, so they are offered.
    if (claimed !== undefined || this.#options.poller.stopped.aborted) this.#options.poller.free()
  }

  async #claim(lane: Lane, bulkhead: ModelBulkhead, kind: Handler, count: number): Promise<number | undefined> {
    const { pool, runs } = this.#options
    const { priority } = lane
    const of = { pool, kind: bulkhead.kind, model: bulkhead.model, priority }
    const claimed = await runs.claimNext(of, kind, count)
    if (claimed && claimed.length < count) void this.#noteHeld(of)
    this.#leave(lane, bulkhead, count)
    for (const job of claimed ?? []) void this.#run(lane, kind, job)
    // The lane counts as busy, because jobs that were claimed from the store use its slots like jobs from the queue.
    if (claimed && claimed.length > 0) lane.busyAtMs = Date.now()
    return claimed?.length
  }

  /**
   * Called if fewer jobs were claimed than slots were reserved. If jobs still wait, then their tenants are at their concurrency limits. No
   * event reports when a tenant is below its limit again, so the queue is retried periodically.
   */
  async #noteHeld(of: QueuedOf): Promise<void> {
    if (this.#held.size < HELD_QUEUES_MAX && (await this.#options.runs.isWaiting(of))) {
      this.#held.set(`${of.priority} ${workKey(of)}`, of)
    }
  }

  async #run(lane: Lane, kind: Handler, { job, sink }: ClaimedJob): Promise<void> {
    const { attempts, log, runs } = this.#options
    const attempt = new Attempt(job, kind, sink, log)
    sink.onStop = (reason) => {
      if (reason === 'lost') attempt.lose()
      else if (reason === 'cancelled' || reason === 'partial') attempt.cancel(reason === 'partial')
      else attempt.handBack()
    }
    if (runs.isLapsed) attempt.handBack()
    // A cancel may arrive before the response of the claim. At that time no attempt exists, so the cancel was stored
    // and is applied now.
    const cancel = attempts.wasCancelled(job)
    if (cancel) attempt.cancel(cancel === 'partial')
    await attempts.run(lane, attempt)
    runs.release(job)
    // The tenant of the ended job may be below its concurrency limit again, so its other jobs may be claimed.
    if (this.#held.size > 0) this.#pullHeld()
  }

  #claimable(lane: Lane, bulkhead: ModelBulkhead, isOffered: boolean): number {
    const { pauses, pool, bulkheads, runs, poller } = this.#options
    if (runs.isLapsed || pauses?.of({ pool, model: bulkhead.model })) return 0
    const share = isOffered ? poller.durableShare : Number.POSITIVE_INFINITY
    return Math.min(share, bulkheads.slotsFor(bulkhead, poller.freeOf(lane)), bulkhead.free(lane.priority))
  }

  #enter(lane: Lane, bulkhead: ModelBulkhead, count = 1): void {
    bulkhead.enter(lane.priority, count)
    this.#options.poller.enter(lane, count)
  }

  #leave(lane: Lane, bulkhead: ModelBulkhead, count = 1): void {
    this.#options.poller.leave(lane, count)
    bulkhead.leave(lane.priority, count)
  }
}
