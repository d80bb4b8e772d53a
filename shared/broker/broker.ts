/**
 * The broker port: queues of jobs and channels of events. Adapters: memory by default, and Kafka for several processes.
 *
 * A **queue** delivers each record to one of many consumers, at least once, and redelivers unacknowledged records. A **channel** delivers every
 * record of a partition to all current receivers, in the order of each sender, without acknowledgements.
 *
 * Guarantees of every adapter (test/shared/broker/broker.test.ts):
 * 1. `submit` resolves only after the record is durable on the broker, and rejects within `sendTimeoutMs`.
 * 2. A record that was neither acknowledged nor released is redelivered after its consumer dies or closes.
 * 3. `send` preserves the order of one sender on one partition.
 * 4. Buffers are bounded. If a buffer is full, then `submit` and `send` reject with `overloaded`.
 * 5. While the broker is unreachable (`isReachable` is false), `submit` rejects at once with `overloaded`. `send` buffers records up to its bound, so
 *    that events of running jobs survive a restart of the broker. Consumers and receivers retry forever with bounded delay.
 */
export interface Broker {
  /** Name of the adapter for logs and `/readyz`, such as `kafka (share groups)` or `memory`. */
  readonly name: string
  /** False from the detection of an outage until a broker answers again. While false, `submit` rejects at once (guarantee 5). */
  readonly isReachable: boolean
  /** Duration of the current outage, in ms. 0 while a broker answers, and undefined if outages cannot occur. */
  readonly unreachableMs?: number

  /**
   * Queues and channels that the broker lacks, because this process could not create them. Records for a missing queue are refused, and records for a
   * missing channel wait. Undefined if topics cannot be missing.
   */
  readonly missing?: readonly string[]

  /**
   * Calls `onLoss` with the name of each queue or channel that was deleted and recreated, because its undelivered records are then lost. Undefined if
   * this cannot occur.
   *
   * @returns A function that unsubscribes.
   */
  onLoss?(onLoss: (name: string) => void): () => void

  /**
   * Adds one record to a queue.
   *
   * @param withinMs Time limit if shorter than `sendTimeoutMs`, such as the remaining time of the job.
   * @throws ServiceError `overloaded`, or `request_too_large` for a record that exceeds the broker's maximum
   */
  submit(queue: string, value: Buffer, withinMs?: number): Promise<void>

  /**
   * Adds an object to a queue without serialization. Undefined unless all consumers run in this process. The object must not be changed afterwards.
   * The queue stays bounded.
   *
   * @param bytes Approximate memory of the object.
   * @throws ServiceError `overloaded` if the queue is full
   */
  enqueueLocal?(queue: string, payload: object, bytes: number): void

  /** Opens a queue for consuming. Each call adds one member to the group that shares the queue. The caller must close the consumer. */
  openQueue(queue: string): Promise<QueueConsumer>

  /**
   * Sends one record to a partition of a channel.
   *
   * @throws ServiceError as {@link submit}
   */
  send(channel: string, partition: number, key: string, value: Buffer): Promise<void>

  /**
   * Sends an object to a channel without serialization. Undefined unless all receivers run in this process. The object must not be changed
   * afterwards. Delivery is asynchronous, in call order. A closed broker drops the object, because its receivers are closed too.
   */
  deliverLocal?(channel: string, partition: number, key: string, payload: object): void

  /**
   * Receives records of some partitions of a channel, beginning at their current ends. Every record that is sent after the promise has resolved is
   * received. `onRecord` must not block. An error that `onRecord` throws ends the process.
   */
  receive(channel: string, partitions: readonly number[], onRecord: (record: ChannelRecord) => void): Promise<Receiver>

  /**
   * Reads stored records of a partition again: up to `max` records before an offset, oldest first. Only for operators, because a read may take
   * seconds. The memory broker stores {@link Topic.historyMax} records.
   *
   * @returns Whether older records are stored
   * @throws ServiceError `overloaded` if reading takes longer than 15 s
   */
  history(
    channel: string,
    partition: number,
    range: { readonly before?: number | undefined; readonly max: number },
    onRecord: (record: HistoryRecord) => void,
  ): Promise<{ readonly hasMore: boolean }>

  /** Number of unacknowledged records in the queue. Undefined if the broker does not report the number. */
  lag(queue: string): Promise<number | undefined>

  /** Sends all buffered records, then releases all resources within `closeTimeoutMs`. May be called several times. */
  close(): Promise<void>
}

export interface Closable {
  close(): Promise<void>
}

export interface Receiver extends Closable {
  /**
   * Multiplies the minimum time between two fetches ({@link Topic.fetchGapMs}) by `times`, so that an idle process wakes less often. Undefined if the
   * channel has no such minimum.
   */
  stretch?(times: number): void
}

export interface QueueConsumer extends Closable {
  /**
   * Waits for records and returns 1 to `max` of them. Returns none if `signal` aborts, or if no record arrives within the adapter's poll time (at
   * most 1 s). Only one call at a time.
   */
  take(max: number, signal: AbortSignal): Promise<Delivery[]>
}

/** One record delivered to this member. The first call of `acknowledge` or `release` ends the delivery, and later calls have no effect. */
export interface Delivery {
  readonly value: Buffer
  /**
   * Object that was passed within this process, equal to the JSON in {@link value}. Read-only. The sender has the same version as the receiver, so
   * no migration is needed.
   */
  readonly payload?: object | undefined
  /** Number of deliveries of this record, from 1, if the broker counts them. */
  readonly deliveryCount: number
  /** Partition and offset, such as `jobs.inference/0@17`, for logs and to detect a redelivery. */
  readonly position: string
  /** Marks the record as processed, so that it is not redelivered. Returns without waiting for the broker. */
  acknowledge(): void
  /** Returns the record to the queue at once, where any member may receive it. */
  release(): void
}

export interface ChannelRecord {
  readonly key: string
  readonly value: Buffer
  /** Object that was passed without serialization, equal to the JSON in {@link value}. Read-only. */
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
  /**
   * Minimum number of partitions. With fewer than {@link partitions}, the topic works with less parallelism. Default:
   * {@link partitions}.
   */
  readonly partitionsMin?: number
  readonly retentionMs: number
  /** Minimum retention that the readers of the queue or channel require, in ms. Default: {@link retentionMs}. */
  readonly retentionMsMin?: number
  readonly kind: 'queue' | 'channel'
  /**
   * Minimum time between two fetches of a channel, in ms. Records that arrive in between are delivered together.
   * Default: none.
   */
  readonly fetchGapMs?: number
  /** Number of records of a channel that the memory broker stores for {@link Broker.history}. Default: none. */
  readonly historyMax?: number
}
