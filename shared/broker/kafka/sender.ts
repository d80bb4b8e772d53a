/**
 * The coalescing sender makes one produce call at a time to each leading broker. Records that arrive during a call are sent together in the next
 * call. A broker that does not answer therefore delays no records for other brokers.
 *
 * With one call per record, every JavaScript client reaches at most 4,400 records/s. Coalescing reaches 14,000 to 21,000 records/s. At 10,000
 * tokens/s, a token takes 0.5 ms from sender to receiver with coalescing, and 59 to 913 ms without. One call in flight is better than four, because
 * batches are larger and the p99 latency is half.
 *
 * Records wait in one queue per partition, which preserves their order. A call sends one batch of each queue.
 * 1. A batch that fails temporarily stays at the head of its queue and is retried forever. Other queues proceed.
 * 2. A batch that is refused for its content is split in halves, until the refused record is alone. Only that record fails.
 * 3. Waiting records are bounded in bytes. A record with a deadline fails when the deadline passes.
 */
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { ServiceError } from '#shared/lib/error.ts'

const RETRY: Backoff = { baseMs: 20, maxMs: 500 }
const SWEEP_INTERVAL_MS = 100
/** Duration of a produce call in ms after which the call is reported as slow. */
const SLOW_CALL_MS = 1_000
const RECORD_OVERHEAD_BYTES = 100
const RETRY_AFTER_MS = 1_000
/**
 * Initial and maximum value of `countMax`. The value is so large that batches normally end at their maximum of bytes.
 * Only a refused batch lowers the count.
 */
const COUNT_MAX = 2 ** 20

/**
 * Maximum bytes of a batch. The limit for channels is below the broker's default limit of 1 MiB. The limit for queues is low, because the
 * response to a consumer that requests one record contains the whole batch.
 */
export const batchBytesMax = { queue: 64 * 1024, channel: 900 * 1024 } as const

export interface OutgoingRecord {
  readonly key: Buffer | undefined
  readonly value: Buffer
}

export interface OutgoingBatch {
  readonly topic: string
  readonly partition: number
  readonly records: readonly OutgoingRecord[]
}

/**
 * Reason why a batch is not durable. Undefined if the batch is durable. `isOfRecord` means that the broker permanently refused the content, possibly
 * because of a single record.
 */
export type BatchFailure =
  | { readonly error: unknown; readonly canRetry: boolean; readonly isOfRecord?: boolean }
  | undefined

/** Tries once to make the batches durable. Returns one result per batch, in order. Never rejects. */
export type Produce = (batches: readonly OutgoingBatch[]) => Promise<readonly BatchFailure[]>

export interface SendOptions {
  /** Time in ms after which the promise rejects. A record in flight may still arrive. Default: never. */
  readonly timeoutMs?: number
  /** Maximum bytes of a batch. A larger record is sent in a batch of its own. */
  readonly batchBytesMax: number
}

interface Entry extends OutgoingRecord {
  readonly bytes: number
  readonly batchBytesMax: number
  readonly deadline: number
  readonly resolve: () => void
  readonly reject: (error: ServiceError) => void
  isSettled: boolean
}

interface PartitionQueue {
  readonly topic: string
  readonly partition: number
  readonly waiting: Entry[]
  /** Records of the call in flight, or of a failed call that will be retried. */
  batch: Entry[]
  tries: number
  retryAt: number
  isInFlight: boolean
  /** Maximum records of a batch. Halved after a refusal, and doubled after each success. */
  countMax: number
}

/** Returns a number that identifies the broker that leads a partition. */
export type LeaderOf = (topic: string, partition: number) => number

export class CoalescingSender {
  readonly #produce: Produce
  readonly #leaderOf: LeaderOf
  readonly #bytesMax: number
  readonly #onSlow: () => void
  readonly #queues = new Map<string, PartitionQueue>()
  /** Timer for the deadlines of records. Runs only while records wait, so that an idle process does not wake. */
  #sweeper: NodeJS.Timeout | undefined
  #bytes = 0
  #isScheduled = false
  #retryTimer: NodeJS.Timeout | undefined
  /** Start time of the call in flight to each leading broker. */
  readonly #callSince = new Map<number, number>()
  #onEmpty: (() => void) | undefined
  #isClosed = false

  /** @param onSlow Called while a call takes longer than a second. */
  constructor(produce: Produce, leaderOf: LeaderOf, bytesMax: number, onSlow: () => void) {
    this.#produce = produce
    this.#leaderOf = leaderOf
    this.#bytesMax = bytesMax
    this.#onSlow = onSlow
  }

  /**
   * Resolves when the record is durable.
   *
   * @throws ServiceError `overloaded` if the buffer is full, after `timeoutMs`, or if the sender is closed first. `request_too_large` if the broker
   * accepts no record of that size.
   */
  send(topic: string, partition: number, record: OutgoingRecord, options: SendOptions): Promise<void> {
    const bytes = record.value.length + (record.key?.length ?? 0) + RECORD_OVERHEAD_BYTES
    if (this.#isClosed) return Promise.reject(overloaded('The connection to Kafka is closed.'))
    if (this.#bytes + bytes > this.#bytesMax) return Promise.reject(overloaded('The send buffer for Kafka is full.'))
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const deadline = options.timeoutMs === undefined ? Number.POSITIVE_INFINITY : performance.now() + options.timeoutMs
    const { batchBytesMax } = options
    this.#bytes += bytes
    const queue = this.#queueOf(topic, partition)
    queue.waiting.push({ ...record, bytes, batchBytesMax, deadline, resolve, reject, isSettled: false })
    this.#sweeper ??= setInterval(() => this.#sweep(), SWEEP_INTERVAL_MS).unref()
    this.#schedule()
    return promise
  }

  async close(timeoutMs: number): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    if (this.#queues.size > 0) {
      const { promise, resolve } = Promise.withResolvers<void>()
      this.#onEmpty = resolve
      const timer = setTimeout(resolve, timeoutMs)
      await promise
      clearTimeout(timer)
    }
    this.#stopSweeping()
    clearTimeout(this.#retryTimer)
    for (const queue of this.#queues.values()) {
      for (const entry of [...queue.batch, ...queue.waiting])
        this.#settle(entry, overloaded('The connection to Kafka was closed first.'))
    }
    this.#queues.clear()
  }

  #queueOf(topic: string, partition: number): PartitionQueue {
    const key = `${topic}:${partition}`
    const existing = this.#queues.get(key)
    if (existing) return existing
    const queue: PartitionQueue = {
      topic,
      partition,
      waiting: [],
      batch: [],
      tries: 0,
      retryAt: 0,
      isInFlight: false,
      countMax: COUNT_MAX,
    }
    this.#queues.set(key, queue)
    return queue
  }

  /** Starts calls at the end of the event-loop iteration, so that all records of the iteration are sent together. */
  #schedule(): void {
    if (this.#isScheduled) return
    this.#isScheduled = true
    setImmediate(() => {
      this.#isScheduled = false
      for (const [leader, queues] of this.#dueQueues()) void this.#call(leader, queues)
      this.#scheduleRetry()
    })
  }

  /** Sets a timer for the earliest retry. The timer only triggers a check of all batches, because it may fire early. */
  #scheduleRetry(): void {
    clearTimeout(this.#retryTimer)
    const idle = [...this.#queues.values()].filter((queue) => !queue.isInFlight && !this.#isBusy(queue))
    const retryAt = Math.min(...idle.map((queue) => queue.retryAt))
    if (retryAt === Number.POSITIVE_INFINITY) return
    this.#retryTimer = setTimeout(() => this.#schedule(), Math.max(1, retryAt - performance.now())).unref()
  }

  #isBusy({ topic, partition }: PartitionQueue): boolean {
    return this.#callSince.has(this.#leaderOf(topic, partition))
  }

  async #call(leader: number, queues: readonly PartitionQueue[]): Promise<void> {
    this.#callSince.set(leader, performance.now())
    for (const queue of queues) queue.isInFlight = true
    const outcomes = await this.#produce(
      queues.map(({ topic, partition, batch }) => ({ topic, partition, records: batch })),
    )
    this.#callSince.delete(leader)
    for (const [index, queue] of queues.entries()) {
      queue.isInFlight = false
      this.#finish(queue, outcomes[index])
    }
    if (this.#queues.size > 0) return this.#schedule()
    this.#stopSweeping()
    this.#onEmpty?.()
  }

  /**
   * Returns the partitions with a batch to send, by leading broker. A leader with a call in flight is omitted, because it gets one call at a time.
   */
  #dueQueues(): Map<number, PartitionQueue[]> {
    const now = performance.now()
    const due = new Map<number, PartitionQueue[]>()
    for (const [key, queue] of this.#queues) {
      if (queue.retryAt > now || queue.isInFlight) continue
      queue.batch = queue.batch.filter((entry) => !entry.isSettled)
      if (queue.batch.length === 0 && queue.waiting.length === 0) this.#queues.delete(key)
      const leader = this.#leaderOf(queue.topic, queue.partition)
      if (!this.#queues.has(key) || this.#callSince.has(leader)) continue
      if (queue.batch.length === 0) queue.batch = nextBatch(queue.waiting, queue.countMax)
      due.set(leader, [...(due.get(leader) ?? []), queue])
    }
    return due
  }

  #finish(queue: PartitionQueue, failure: BatchFailure): void {
    if (failure?.canRetry) {
      queue.retryAt = performance.now() + backoffMs(++queue.tries, RETRY, Math.random())
      return
    }
    if (failure?.isOfRecord && queue.batch.length > 1) return this.#halve(queue)
    if (!failure) queue.countMax = Math.min(queue.countMax * 2, COUNT_MAX)
    const error = failure && refused(failure.error)
    for (const entry of queue.batch) this.#settle(entry, error)
    queue.batch = []
    queue.tries = 0
    if (queue.waiting.length === 0) this.#queues.delete(`${queue.topic}:${queue.partition}`)
  }

  #halve(queue: PartitionQueue): void {
    queue.countMax = Math.ceil(queue.batch.length / 2)
    queue.waiting.unshift(...queue.batch)
    queue.batch = []
    queue.tries = 0
  }

  #settle(entry: Entry, error?: ServiceError): void {
    if (entry.isSettled) return
    entry.isSettled = true
    this.#bytes -= entry.bytes
    if (error) entry.reject(error)
    else entry.resolve()
  }

  #stopSweeping(): void {
    clearInterval(this.#sweeper)
    this.#sweeper = undefined
  }

  #sweep(): void {
    const now = performance.now()
    if (Math.min(...this.#callSince.values()) < now - SLOW_CALL_MS) this.#onSlow()
    for (const queue of this.#queues.values()) {
      const late = [...queue.batch, ...queue.waiting].filter((entry) => entry.deadline <= now)
      if (late.length === 0) continue
      for (const entry of late) this.#settle(entry, overloaded('Kafka did not accept the job in time.'))
      queue.waiting.splice(0, queue.waiting.length, ...queue.waiting.filter((entry) => !entry.isSettled))
    }
  }
}

function nextBatch(waiting: Entry[], countMax: number): Entry[] {
  let bytes = 0
  let count = 0
  for (const entry of waiting) {
    bytes += entry.bytes
    if (count > 0 && (bytes > entry.batchBytesMax || count === countMax)) break
    count++
  }
  return waiting.splice(0, count)
}

/** Creates the error for a record whose size or form permanently conflicts with the settings of its topic. */
export function refusedRecord(cause: unknown): ServiceError {
  return new ServiceError('request_too_large', 'The request is larger than the maximum record size of Kafka.', {
    cause,
  })
}

export function overloaded(message: string, cause?: unknown): ServiceError {
  return new ServiceError('overloaded', message, { cause, retryAfterMs: RETRY_AFTER_MS, reason: 'kafka' })
}

function refused(error: unknown): ServiceError {
  return error instanceof ServiceError ? error : overloaded('Kafka refused the record.', error)
}
