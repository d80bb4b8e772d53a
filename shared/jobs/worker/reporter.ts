/*
 * Sends the events of all jobs of this worker to their ingresses, batched across jobs.
 *
 * The problem: one record per token would overload the broker, and a fixed batch interval would delay the first token.
 *
 * How it works: at most one record per ingress is in flight. Events that arrive in the meantime go into the next record, and events of one
 * job are merged. The batch size therefore follows the load, as in Nagle's algorithm. Each record costs worker, broker and ingress about 2 ms
 * of CPU time together, even if the record is small. After a record of many events, the next record is therefore sent at least 6 ms later.
 *
 * The invariant: events of an attempt arrive in order and without gaps, or the ingress detects the gap by `seq`. A record is resent until
 * the broker accepts it, and senders wait meanwhile (backpressure). An event that the broker rejects as too large fails its own attempt
 * only.
 *
 * Example: an idle worker sends its first token at once. If 100 streams produce 50 tokens per second each, and a round trip takes less than
 * 6 ms, then a record carries about 30 events.
 *
 * If ingress and worker share a process, then events are passed as objects (`LocalEvents`).
 */

import type { ErrorBody } from '#schemas/error.ts'
import type { JobEvent, ReplyRecord } from '#schemas/event.ts'
import type { AttachedEnvelope } from '#schemas/job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { REPLIES } from '#shared/jobs/records.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import type { Progress } from '#shared/kinds/kind.ts'
import { EVENT_SIZE_MAX, EventBuffer, type MergeEvents, refuseLarge } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'

/**
 * Receiver of an attempt's output and end: the ingress, or the store. Exactly one end method is called, and its promise resolves
 * when the end is sent or committed.
 */
export interface AttemptSink {
  readonly canRestart: boolean
  /** Time at which the attempt could first run, in Unix ms. Undefined if unknown. */
  readonly queuedAtMs?: number | undefined
  /**
   * Adds an event. If the buffer is full, then the result is a promise, and the caller must wait for it before it adds another event.
   *
   * @throws ServiceError `answer_too_large`. `internal_error` if the event does not fit into any record
   */
  event(event: unknown): Promise<void> | undefined
  /** Sets the upstream server that runs the attempt. The event at the end of the attempt contains the server. */
  ranOn(server: string): void
  readonly onProgress?: ((progress: Progress) => void) | undefined
  /**
   * Ends the attempt as completed.
   *
   * @throws ServiceError if the output is incomplete. In this case nothing is published
   */
  completed(): Promise<void>
  /**
   * Ends the attempt as failed.
   *
   * @param isInfrastructure True if a store of the service failed instead of the job. A durable job is then retried without counting a try
   */
  failed(error: ErrorBody, isInfrastructure?: boolean): Promise<void>
  handedBack(): Promise<void>
  cancelled(): Promise<void>
  /**
   * Returns steps and child jobs for the handler. Undefined for jobs without a store.
   *
   * @param onPark Called when the handler must stop, and the attempt must end with {@link AttemptSink.parked}
   */
  compose?(signal: AbortSignal, onPark: () => void): Composition
  parked?(): Promise<void>
  /** Requests the partial result of a cancelled job. Undefined if no partial result is possible. A second call has no effect. */
  wrapUp?(): void
  readonly isWrappingUp?: boolean
}

export interface ReportedEvents extends AttemptSink {
  /** Reports the start, with the id of this worker (`boot`). Resolves when the broker has the event. */
  started(): Promise<void>
}

type ReportedJob = Pick<AttachedEnvelope, 'id' | 'attempt' | 'reply'>

export class Reporter {
  readonly #broker: Broker
  readonly #worker: string
  readonly #log: Log
  readonly #outboxes = new Map<string, IngressOutbox>()

  constructor(broker: Broker, worker: string, log: Log) {
    this.#broker = broker
    this.#worker = worker
    this.#log = log
  }

  open(job: ReportedJob, merge: MergeEvents): ReportedEvents {
    if (this.#broker.deliverLocal) return new LocalEvents(job, merge, this.#broker, this.#worker)
    let outbox = this.#outboxes.get(job.reply.boot)
    if (!outbox) {
      outbox = new IngressOutbox((events) => this.#send(job.reply, events))
      this.#outboxes.set(job.reply.boot, outbox)
    }
    return new AttemptEvents(job, merge, outbox)
  }

  drop(boot: string): void {
    this.#outboxes.get(boot)?.close()
    this.#outboxes.delete(boot)
  }

  close(): void {
    for (const boot of [...this.#outboxes.keys()]) this.drop(boot)
  }

  #send(to: AttachedEnvelope['reply'], events: readonly WrittenEvent[]): Promise<void> {
    const texts = events.map(({ text }) => text).join(',')
    const value = Buffer.from(`{"worker":"${this.#worker}","events":[${texts}]}`)
    return this.#broker.send(REPLIES, to.shard, to.boot, value).catch((error: unknown) => {
      this.#log.warn(
        { err: error, ingress: to.boot, bytes: value.length },
        'job events could not be sent to the ingress; retrying',
      )
      throw error
    })
  }
}

class AttemptEvents implements ReportedEvents {
  readonly canRestart = false
  readonly #job: ReportedJob
  readonly #merge: MergeEvents
  readonly #outbox: IngressOutbox
  #seq = 0
  #server: string | undefined
  /** Reason for which the broker rejected an event. If set, then the attempt has failed and sends nothing more. */
  #refusal: ServiceError | undefined
  #waiting: EventBuffer | undefined

  constructor(job: ReportedJob, merge: MergeEvents, outbox: IngressOutbox) {
    this.#job = job
    this.#merge = merge
    this.#outbox = outbox
  }

  ranOn(server: string): void {
    this.#server = server
  }

  started(): Promise<void> {
    this.#put(() => ({ ...this.#next(), type: 'started' }))
    return this.#outbox.flushed()
  }

  /**
   * Adds an event. Returns a promise to wait for if the outbox is full, and otherwise undefined. A promise per token would cost more than sending the
   * token.
   *
   * @throws ServiceError `internal_error` for an event over 512 KiB of JSON, or after the broker rejected an event as too large
   */
  event(event: unknown): Promise<void> | undefined {
    if (this.#refusal) throw this.#refusal
    const isLarge = refuseLarge(event)
    if (!this.#waiting || isLarge || this.#waiting.bytes > EVENT_SIZE_MAX) {
      const buffer = new EventBuffer(this.#merge)
      this.#waiting = buffer
      this.#put(() => {
        if (this.#waiting === buffer) this.#waiting = undefined
        return { ...this.#next(), type: 'delta', deltas: buffer.takeAll() }
      })
    }
    const before = this.#waiting.bytes
    this.#waiting.push(event)
    this.#outbox.grow(this.#waiting.bytes - before)
    return this.#outbox.isFull ? this.#outbox.waitForSpace() : undefined
  }

  completed(): Promise<void> {
    this.#put(() => ({ ...this.#next(), type: 'completed', deltas: [], server: this.#server }))
    return this.#outbox.flushed()
  }

  failed(error: ErrorBody): Promise<void> {
    this.#put(() => ({ ...this.#next(), type: 'failed', error, server: this.#server }))
    return this.#outbox.flushed()
  }

  handedBack(): Promise<void> {
    this.#put(() => ({ ...this.#next(), type: 'handed_back' }))
    return this.#outbox.flushed()
  }

  async cancelled(): Promise<void> {}

  #put(make: () => JobEvent): void {
    this.#outbox.put({
      make: () => (this.#refusal ? undefined : make()),
      refuse: (event, cause) => this.#refuse(event, cause),
    })
  }

  /** The first rejected event is replaced with a `failed` event, which ends the attempt. Later events of the attempt are dropped. */
  #refuse({ job_id, attempt, seq, type }: JobEvent, cause: unknown): JobEvent | undefined {
    if (type === 'started' || type === 'failed') return undefined
    this.#refusal = new ServiceError(
      'internal_error',
      'A piece of the output is larger than the maximum record size of Kafka.',
      {
        cause,
      },
    )
    return { job_id, attempt, seq, type: 'failed', error: this.#refusal.toBody() }
  }

  #next(): { job_id: string; attempt: number; seq: number } {
    return { job_id: this.#job.id, attempt: this.#job.attempt, seq: ++this.#seq }
  }
}

/**
 * Events of an attempt whose ingress is in the same process, numbered from 1.
 *
 * Events that arrive in one read from the socket of an upstream are merged, and delivered before the next socket is read. A burst over many
 * streams is therefore delivered in order, and no token waits for tokens of another stream. Slow readers cause no backlog here, because the
 * ingress buffers their output and pauses the attempt.
 */
class LocalEvents implements ReportedEvents {
  readonly canRestart = false
  readonly #job: ReportedJob
  readonly #worker: string
  readonly #broker: Pick<Broker, 'deliverLocal'>
  readonly #waiting: EventBuffer
  #isDue = false
  #seq = 0
  #server: string | undefined
  readonly #flush = () => {
    this.#isDue = false
    if (!this.#waiting.isEmpty) this.#send({ type: 'delta', deltas: this.#waiting.takeAll() })
  }

  constructor(job: ReportedJob, merge: MergeEvents, broker: Pick<Broker, 'deliverLocal'>, worker: string) {
    this.#job = job
    this.#worker = worker
    this.#broker = broker
    this.#waiting = new EventBuffer(merge)
  }

  ranOn(server: string): void {
    this.#server = server
  }

  async started(): Promise<void> {
    this.#send({ type: 'started' })
  }

  /**
   * Adds an event. If the output of this event-loop iteration exceeds {@link EVENT_SIZE_MAX}, then a promise to wait for is returned.
   *
   * @throws ServiceError `internal_error` for an event over 512 KiB of JSON, the same limit as with a broker
   */
  event(event: unknown): Promise<void> | undefined {
    refuseLarge(event)
    this.#waiting.push(event)
    if (!this.#isDue) {
      this.#isDue = true
      process.nextTick(this.#flush)
    }
    return this.#waiting.bytes > EVENT_SIZE_MAX ? new Promise((resolve) => setImmediate(resolve)) : undefined
  }

  async completed(): Promise<void> {
    this.#send({ type: 'completed', deltas: this.#waiting.takeAll(), server: this.#server })
  }

  async failed(error: ErrorBody): Promise<void> {
    this.#flush()
    this.#send({ type: 'failed', error, server: this.#server })
  }

  async handedBack(): Promise<void> {
    this.#flush()
    this.#send({ type: 'handed_back' })
  }

  /** Sends nothing: the ingress requested the cancel, so it needs no report. */
  async cancelled(): Promise<void> {}

  #send(output: LocalOutput): void {
    const { id: job_id, attempt, reply } = this.#job
    const event: JobEvent = { job_id, attempt, seq: ++this.#seq, ...output }
    const record: ReplyRecord = { worker: this.#worker, events: [event] }
    this.#broker.deliverLocal?.(REPLIES, reply.shard, reply.boot, record)
  }
}

type LocalOutput =
  | { type: 'started' | 'handed_back' }
  | { type: 'delta'; deltas: unknown[] }
  | { type: 'completed'; deltas: unknown[]; server: string | undefined }
  | { type: 'failed'; error: ErrorBody; server: string | undefined }

/** Maximum record size in bytes, because Kafka rejects 1 MiB by default. A record is split only between two events. */
const RECORD_BYTES_MAX = 896 * 1024
/** Number of unsent bytes to one ingress at which senders must wait. */
const BACKLOG_BYTES = 1024 * 1024
const RESEND_MS = 250
/** If a record has at least this number of events, then the next record to the same ingress is sent at least {@link PACE_MS} later. */
const PACED_EVENTS_MIN = 8
/** Minimum time in ms from the sending of a record with {@link PACED_EVENTS_MIN} or more events to the sending of the next record. */
const PACE_MS = 6

interface WaitingEvent {
  make(): JobEvent | undefined
  /** Called if the broker rejected the event as too large. Returns a replacement, or undefined to drop the event. */
  refuse(event: JobEvent, cause: unknown): JobEvent | undefined
}

interface WrittenEvent {
  readonly event: JobEvent
  readonly text: string
  readonly source: WaitingEvent
}

/**
 * Events that wait for one ingress. Each event is created when it is sent, so that output can be merged into it until
 * then.
 */
class IngressOutbox {
  readonly #send: (events: readonly WrittenEvent[]) => Promise<void>
  #pending: WaitingEvent[] = []
  #bytes = 0
  #isSending = false
  #isClosed = false
  #flushed: PromiseWithResolvers<void> | undefined

  constructor(send: (events: readonly WrittenEvent[]) => Promise<void>) {
    this.#send = send
  }

  get isFull(): boolean {
    return this.#bytes > BACKLOG_BYTES
  }

  put(event: WaitingEvent): void {
    if (this.#isClosed) return
    this.#pending.push(event)
    if (this.#isSending) return
    this.#isSending = true
    // Sending is deferred to the end of this event-loop iteration, so that all ready events share one record.
    setImmediate(() => void this.#drain())
  }

  grow(bytes: number): void {
    this.#bytes += bytes
  }

  flushed(): Promise<void> {
    if (this.#isClosed || !this.#isSending) return Promise.resolve()
    this.#flushed ??= Promise.withResolvers<void>()
    return this.#flushed.promise
  }

  async waitForSpace(): Promise<void> {
    while (this.isFull && !this.#isClosed) await this.flushed()
  }

  close(): void {
    this.#isClosed = true
    this.#pending = []
    this.#bytes = 0
    this.#flushed?.resolve()
  }

  async #drain(): Promise<void> {
    while (this.#pending.length > 0) {
      const startedAt = performance.now()
      const flushed = this.#flushed
      this.#flushed = undefined
      const events = this.#pending
      this.#pending = []
      this.#bytes = 0
      for (const record of recordsOf(events)) await this.#sendWithRetry(record)
      flushed?.resolve()
      const restMs = events.length < PACED_EVENTS_MIN ? 0 : PACE_MS - (performance.now() - startedAt)
      if (restMs > 0) await new Promise((resolve) => setTimeout(resolve, restMs))
    }
    this.#isSending = false
    this.#flushed?.resolve()
    this.#flushed = undefined
  }

  async #sendWithRetry(record: readonly WrittenEvent[]): Promise<void> {
    while (!this.#isClosed) {
      try {
        return await this.#send(record)
      } catch (error) {
        if (ServiceError.from(error).code === 'request_too_large') return await this.#sendParts(record, error)
        // Sending is retried without limit. The broker may be unreachable for minutes, and the jobs continue in the
        // meantime.
        await new Promise((resolve) => setTimeout(resolve, RESEND_MS))
      }
    }
  }

  /** Splits a rejected record in halves. An event that is rejected alone is replaced with a smaller one. */
  async #sendParts(record: readonly WrittenEvent[], cause: unknown): Promise<void> {
    const [first] = record
    if (!first) return
    if (record.length > 1) {
      const middle = Math.ceil(record.length / 2)
      await this.#sendWithRetry(record.slice(0, middle))
      return await this.#sendWithRetry(record.slice(middle))
    }
    const instead = first.source.refuse(first.event, cause)
    if (instead) await this.#sendWithRetry([{ ...first, event: instead, text: JSON.stringify(instead) }])
  }
}

function* recordsOf(events: readonly WaitingEvent[]): Generator<WrittenEvent[]> {
  let record: WrittenEvent[] = []
  let bytes = 0
  for (const source of events) {
    const event = source.make()
    if (!event) continue
    const text = JSON.stringify(event)
    const textBytes = Buffer.byteLength(text)
    if (bytes + textBytes > RECORD_BYTES_MAX && record.length > 0) {
      yield record
      record = []
      bytes = 0
    }
    record.push({ event, text, source })
    bytes += textBytes
  }
  if (record.length > 0) yield record
}
