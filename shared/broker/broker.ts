/**
 * The broker port: queues of jobs and channels of events. Kafka in production, memory by default.
 *
 * The two have opposite semantics. A **queue** delivers each record to one of many consumers, at least once, and redelivers unacknowledged
 * records. A
 * **channel** delivers every record of a partition to all present receivers, in the order of each sender, without acknowledgements.
 *
 * Guarantees of every adapter (test/shared/broker/broker.test.ts):
 * 1. `submit` resolves only after the record is durable on the broker, and rejects within `sendTimeoutMs`.
 * 2. A record that was neither acknowledged nor released is redelivered after its consumer dies or closes.
 * 3. `send` preserves the order of one sender on one partition.
 * 4. Buffers are bounded: at the bound, `submit` and `send` reject with `overloaded`.
 * 5. While the broker is unreachable (`isReachable` is false), `submit` rejects at once with `overloaded`. `send` buffers up to its bound,
 *   so that
 *    events of running jobs survive a restart of the broker. Consumers and receivers retry forever with bounded delay.
 */
export interface Broker {
  /** Name of the adapter for logs and `/readyz`, such as `kafka (share groups)` or `memory`. */
  readonly name: string
  /** False from the detection of an outage until the broker answers again. */
  readonly isReachable: boolean
  /** Duration of the current outage, in ms; 0 while a broker answers. Absent if outages cannot occur. */
  readonly unreachableMs?: number

  /**
   * Queues and channels that are missing at the broker and that this process could not create. Records for a missing queue are refused; records for a
   * missing channel wait. Absent if this cannot occur.
   */
  readonly missing?: readonly string[]

  /**
   * Calls `onLoss` with the name of each queue or channel that was deleted and recreated: its undelivered records are lost. Absent if this cannot
   * occur.
   *
   * @returns A function that unsubscribes.
   */
  onLoss?(onLoss: (name: string) => void): () => void

  /**
   * Adds one record to a queue.
   *
   * @param withinMs Time limit if shorter than `sendTimeoutMs`, such as the remaining time of the job.
   * @throws ServiceError `overloaded`; `request_too_large` for a record that the broker never accepts
   */
  submit(queue: string, value: Buffer, withinMs?: number): Promise<void>

  /**
   * Like {@link submit}, without serialization; only if all consumers run in this process, otherwise undefined. The object must not be changed
   * afterwards. The queue stays bounded.
   *
   * @param bytes Approximate memory of the object. @throws ServiceError `overloaded`
   */
  enqueueLocal?(queue: string, payload: object, bytes: number): void

  /** Opens a queue for consuming. Each call adds one member to the group that shares the queue. The caller closes it. */
  openQueue(queue: string): Promise<QueueConsumer>

  /** Sends one record to a partition of a channel. @throws ServiceError as {@link submit} */
  send(channel: string, partition: number, key: string, value: Buffer): Promise<void>

  /**
   * Like {@link send}, without serialization; only if all receivers run in this process, otherwise undefined. The object must not be changed
   * afterwards. Delivery is asynchronous, in call order. A closed broker drops the object, because its receivers are gone too.
   */
  deliverLocal?(channel: string, partition: number, key: string, payload: object): void

  /**
   * Receives records of some partitions of a channel, beginning at their current ends. All records that are sent after the promise has
   * resolved are received. `onRecord` must not block; an error that it throws ends the process.
   */
  receive(channel: string, partitions: readonly number[], onRecord: (record: ChannelRecord) => void): Promise<Receiver>

  /**
   * Reads stored records of a partition again: up to `max` before an offset, oldest first. May take seconds, so it is for operators, not for calls.
   * The embedded broker stores {@link Topic.historyMax} records.
   *
   * @returns Whether older records are stored @throws ServiceError `overloaded` if reading takes longer than 15 s
   */
  history(
    channel: string,
    partition: number,
    range: { readonly before?: number | undefined; readonly max: number },
    onRecord: (record: HistoryRecord) => void,
  ): Promise<{ readonly hasMore: boolean }>

  /** Number of unacknowledged records in the queue; undefined if the broker does not report it. */
  lag(queue: string): Promise<number | undefined>

  /** Flushes sent records, then releases all resources within `closeTimeoutMs`. Idempotent. */
  close(): Promise<void>
}

export interface Closable {
  close(): Promise<void>
}

export interface Receiver extends Closable {
  /** Multiplies the {@link Topic.fetchGapMs} of the channel by `times`. Absent if the receiver has no such gap. */
  stretch?(times: number): void
}

export interface QueueConsumer extends Closable {
  /**
   * Waits for records and returns 1 to `max` records. Returns none if `signal` aborts, or after `waitMs` without any (chosen by
   * the adapter, ≤ 1 s). One call at a time.
   */
  take(max: number, signal: AbortSignal): Promise<Delivery[]>
}

/** One record delivered to this member. The first call of `acknowledge` or `release` ends the delivery; later calls do nothing. */
export interface Delivery {
  readonly value: Buffer
  /** The object passed within this process, equal to the JSON in {@link value}. Read-only, and valid for this version. */
  readonly payload?: object | undefined
  /** Number of deliveries of this record, from 1, if the broker counts them. */
  readonly deliveryCount: number
  /** Partition and offset, for logs and to detect a redelivery. Example: `jobs.inference/0@17`. */
  readonly position: string
  /** Marks the record as processed, so that it is not redelivered. Does not wait for the broker. */
  acknowledge(): void
  /** Returns the record to the queue, for any member, at once. */
  release(): void
}

export interface ChannelRecord {
  readonly key: string
  readonly value: Buffer
  /** The object passed without serialization, equal to the JSON in {@link value}. Read-only. */
  readonly payload?: object
}

export interface HistoryRecord extends ChannelRecord {
  readonly offset: number
  readonly sentAtMs: number
}

/** A queue or channel that must exist, with its settings (docs/internals/protocol.md, Records). */
export interface Topic {
  readonly name: string
  readonly partitions: number
  /** Number of partitions with which the topic still works, with less parallelism; default: {@link partitions}. */
  readonly partitionsMin?: number
  readonly retentionMs: number
  /** Minimum retention, in ms, that readers of the channel need. Default: {@link retentionMs}. */
  readonly retentionMsMin?: number
  readonly kind: 'queue' | 'channel'
  /** Minimum time between two fetches of a channel, in ms: records of that time arrive together. Default: none. */
  readonly fetchGapMs?: number
  /** Number of records of a channel that the embedded broker stores for {@link Broker.history}. Default: none. */
  readonly historyMax?: number
}
