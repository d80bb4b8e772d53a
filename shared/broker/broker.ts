/**
 * The broker port: a queue of jobs, and channels of events. Kafka in production, memory by default.
 *
 * The two halves want opposite things. A **queue** hands each record to one of many takers, at least once, and remembers
 * what was not acknowledged. A **channel** hands every record of a partition to everyone who receives it, in the order in
 * which one sender sent it, from now on; nobody acknowledges.
 *
 * Promises every adapter keeps (test/shared/broker/broker.test.ts):
 * - `submit` resolves once the record is durable on the broker, and only then; it rejects within `sendTimeoutMs`.
 * - A record taken but neither acknowledged nor released comes back when its taker dies or closes.
 * - `send` keeps the order of one sender on one partition.
 * - Buffers are bounded: at the bound `submit` and `send` reject with `overloaded`.
 * - While the broker cannot be reached (`isReachable` is false): `submit` rejects with `overloaded` at once; `send` keeps what
 *   it is given, so that the events of running jobs outlive a restart of the broker, and rejects at its bound; takers and
 *   receivers wait, retry with bounded delay for ever, and go on by themselves when it returns.
 */
export interface Broker {
  /** For logs and `/readyz`, such as `kafka (share groups)` or `memory`. */
  readonly name: string
  /** False from the moment the broker is known to be gone until it answers again. */
  readonly isReachable: boolean
  /** Milliseconds since when no broker answers; 0 while one does. Absent where that cannot happen. */
  readonly unreachableMs?: number

  /**
   * Queues and channels that do not exist at the broker and that this process could not make. Records for a missing queue are
   * refused; those for a missing channel wait. Absent where that cannot happen.
   */
  readonly missing?: readonly string[]

  /**
   * Calls `onLoss` with the name of each queue or channel that was deleted and made again: records in it that were not yet taken or
   * received are lost. Absent where that cannot happen.
   *
   * @returns Ends it.
   */
  onLoss?(onLoss: (name: string) => void): () => void

  /**
   * Puts one record into a queue.
   *
   * @param withinMs Shorter bound than `sendTimeoutMs`, such as the time that its job has left.
   * @throws ServiceError `overloaded`; `request_too_large` for what it will never take
   */
  submit(queue: string, value: Buffer, withinMs?: number): Promise<void>

  /**
   * The same with no bytes in between, where all takers live in this very process; undefined where they need not. Nobody changes
   * what is said from then on. What the queue holds is bounded as before.
   *
   * @param bytes What it takes of the memory, about. @throws ServiceError `overloaded`
   */
  enqueueLocal?(queue: string, said: object, bytes: number): void

  /** Opens a queue for taking. Each call is one member of the group that shares the queue. The caller closes it. */
  openQueue(queue: string): Promise<QueueConsumer>

  /** Sends one record to a partition of a channel. @throws ServiceError as `submit` does */
  send(channel: string, partition: number, key: string, value: Buffer): Promise<void>

  /**
   * The same with no bytes in between, where all receivers live in this very process; undefined where they need not. Nobody
   * changes what is said from then on. Delivers after the caller's own steps, in the order of the calls; a closed broker
   * drops it, since with it all receivers are gone.
   */
  deliverLocal?(channel: string, partition: number, key: string, said: object): void

  /**
   * Receives the records of some partitions of a channel from their ends. Resolves when the positions are fixed: what is sent
   * after that is received. `onRecord` must not block; what it throws ends the process.
   */
  receive(channel: string, partitions: readonly number[], onRecord: (record: ChannelRecord) => void): Promise<Receiver>

  /**
   * Reads again what a partition of a channel keeps: up to `max` records before an offset, the oldest of them first. For people, not
   * for the road: it may take seconds. The embedded broker keeps what {@link Topic.keptMax} says.
   *
   * @returns Whether older ones are kept @throws ServiceError `overloaded` when it cannot be read within 15 s
   */
  history(
    channel: string,
    partition: number,
    range: { readonly before?: number | undefined; readonly max: number },
    onRecord: (record: KeptRecord) => void,
  ): Promise<{ readonly hasMore: boolean }>

  /** Records in the queue that nobody acknowledged yet, as far as the broker tells; undefined where it cannot. */
  lag(queue: string): Promise<number | undefined>

  /** Flushes what was sent, then lets go of everything. Tolerates a second call. Bounded by `closeTimeoutMs`. */
  close(): Promise<void>
}

/** Something to close; a second call does nothing. */
export interface Closable {
  close(): Promise<void>
}

/** What receives partitions of a channel until it is closed. */
export interface Receiver extends Closable {
  /**
   * So many times as long passes between two fetches of a channel that has a {@link Topic.fetchGapMs}. Absent where nothing is
   * fetched, or as often as the broker likes.
   */
  stretch?(times: number): void
}

/** One member's view of a queue. */
export interface QueueConsumer extends Closable {
  /**
   * Waits for records and gives 1 to `max` of them; gives none when `signal` aborts or after `waitMs` (adapters choose,
   * ≤ 1 s) without any. One call at a time.
   */
  take(max: number, signal: AbortSignal): Promise<Delivery[]>
}

/** One record handed to this member. Exactly one of the two calls ends it; a later one does nothing. */
export interface Delivery {
  readonly value: Buffer
  /** What was handed over with no bytes in between, and what {@link value} would say; not to be changed. */
  readonly payload?: object | undefined
  /** Which time this record is handed out, from 1, as far as the broker counts. */
  readonly deliveryCount: number
  /** Partition and offset, for logs and for recognising a redelivery: `jobs.inference/0@17`. */
  readonly position: string
  /** The record is dealt with and never comes back. Resolves without waiting for the broker. */
  acknowledge(): void
  /** Somebody else may have it, at once. */
  release(): void
}

/** One record of a channel. */
export interface ChannelRecord {
  readonly key: string
  readonly value: Buffer
  /** What was passed with no bytes in between, and what {@link value} would say; not to be changed. */
  readonly payload?: object
}

/** One record of a channel, read again. */
export interface KeptRecord extends ChannelRecord {
  readonly offset: number
  /** When it was sent; unix milliseconds. */
  readonly sentAtMs: number
}

/** A queue or channel that must exist, with its settings (docs/design.md, Topics and records). */
export interface Topic {
  readonly name: string
  readonly partitions: number
  /** Partitions that it works with, only worse; default: {@link partitions}. */
  readonly partitionsMin?: number
  readonly retentionMs: number
  /** Retention below which somebody still waits for what is deleted; default: {@link retentionMs}. */
  readonly retentionMsMin?: number
  readonly kind: 'queue' | 'channel'
  /** Least time between two fetches of a channel, in milliseconds: what comes meanwhile comes together. Default: none. */
  readonly fetchGapMs?: number
  /** Records of a channel that are kept where nothing else keeps them, inside one process. Default: none. */
  readonly keptMax?: number
}
