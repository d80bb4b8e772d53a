import type { ErrorBody } from '#schemas/error.ts'
import type { JobEvent } from '#schemas/event.ts'
import type { AttachedEnvelope } from '#schemas/job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { EventBuffer, type MergeEvents, sizeOf } from '#shared/jobs/event-buffer.ts'
import { REPLIES } from '#shared/jobs/topics.ts'
import type { Log } from '#shared/log/log.ts'
import type { AttemptSink } from './sink.ts'

/** Largest record, in bytes; Kafka refuses 1 MiB by default. Records are cut between events. */
const RECORD_BYTES_MAX = 896 * 1024
/** Size (event-buffer.ts) at which an event takes no further output: even as six times as many bytes of JSON it fits. */
const EVENT_SIZE_MAX = 64 * 1024
/** Largest event of a kind, in bytes of JSON. A record that is too large would never be taken, and nothing behind it either. */
const OUTPUT_BYTES_MAX = 512 * 1024
/** Unsent bytes to one ingress at which emitters are made to wait. */
const BACKLOG_BYTES = 1024 * 1024
/** Wait before a record that could not be sent is sent again. */
const RESEND_MS = 250

/** What it takes to tell the events of a job. */
type ReportedJob = Pick<AttachedEnvelope, 'id' | 'attempt' | 'reply'>

/**
 * Sends the events of every job of this worker to their ingresses, batched across jobs.
 *
 * One record to an ingress is under way at a time; what comes meanwhile joins the next one, and events of one job merge.
 * So the first event of an idle worker goes out at once, and a busy one sends few, large records. While the broker is away a
 * record is sent again until it is taken: while the process lives nothing is lost, and emitters wait. What the broker will
 * never take costs the one attempt whose event it is.
 */
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

  /** Opens the events of one attempt. */
  open(job: ReportedJob, merge: MergeEvents): AttemptEvents {
    let outbox = this.#outboxes.get(job.reply.boot)
    if (!outbox) {
      outbox = new IngressOutbox((events) => this.#send(job.reply, events))
      this.#outboxes.set(job.reply.boot, outbox)
    }
    return new AttemptEvents(job, merge, outbox)
  }

  /** Forgets an ingress that is gone: what waits for it is dropped. */
  drop(boot: string): void {
    this.#outboxes.get(boot)?.close()
    this.#outboxes.delete(boot)
  }

  /** Drops everything that could not be sent. */
  close(): void {
    for (const boot of [...this.#outboxes.keys()]) this.drop(boot)
  }

  #send(to: AttachedEnvelope['reply'], events: readonly WrittenEvent[]): Promise<void> {
    const texts = events.map(({ text }) => text).join(',')
    const value = Buffer.from(`{"worker":"${this.#worker}","events":[${texts}]}`)
    return this.#broker.send(REPLIES, to.shard, to.boot, value).catch((error: unknown) => {
      this.#log.warn({ err: error, to: to.boot, bytes: value.length }, 'events not sent')
      throw error
    })
  }
}

/** The events of one attempt, numbered from 1 in the order they are sent. */
export class AttemptEvents implements AttemptSink {
  /** The caller would see its output twice. */
  readonly canRestart = false
  readonly #job: ReportedJob
  readonly #merge: MergeEvents
  readonly #outbox: IngressOutbox
  #seq = 0
  /** Why the broker would not take an event: the attempt has failed, and says no more. */
  #refusal: ServiceError | undefined
  /** Output that still waits to be sent: more of it joins. */
  #waiting: EventBuffer | undefined

  constructor(job: ReportedJob, merge: MergeEvents, outbox: IngressOutbox) {
    this.#job = job
    this.#merge = merge
    this.#outbox = outbox
  }

  /** Resolves when the broker has it. */
  started(): Promise<void> {
    this.#put(() => ({ ...this.#next(), type: 'started' }))
    return this.#outbox.flushed()
  }

  /**
   * Gives a promise of room for more when there is none; one for each token would cost more than sending it.
   *
   * @throws ServiceError `internal_error` for an event over 512 KiB of JSON, or when the broker has refused one for good
   */
  event(event: unknown): Promise<void> | undefined {
    if (this.#refusal) throw this.#refusal
    const isLarge = sizeOf(event) > EVENT_SIZE_MAX
    if (isLarge && Buffer.byteLength(JSON.stringify(event)) > OUTPUT_BYTES_MAX) throw tooLarge()
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
    return this.#outbox.isFull ? this.#outbox.room() : undefined
  }

  completed(): Promise<void> {
    this.#put(() => ({ ...this.#next(), type: 'completed', deltas: [] }))
    return this.#outbox.flushed()
  }

  failed(error: ErrorBody): Promise<void> {
    this.#put(() => ({ ...this.#next(), type: 'failed', error }))
    return this.#outbox.flushed()
  }

  handedBack(): Promise<void> {
    this.#put(() => ({ ...this.#next(), type: 'handed_back' }))
    return this.#outbox.flushed()
  }

  /** The ingress knows: it asked for it. */
  async cancelled(): Promise<void> {}

  #put(make: () => JobEvent): void {
    this.#outbox.put({
      make: () => (this.#refusal ? undefined : make()),
      refuse: (event, cause) => this.#refuse(event, cause),
    })
  }

  /** What is said instead of an event that the broker will never take: that the attempt has failed, once. */
  #refuse({ job_id, attempt, seq, type }: JobEvent, cause: unknown): JobEvent | undefined {
    if (type === 'started' || type === 'failed') return undefined
    this.#refusal = new ServiceError(
      'internal_error',
      'A piece of the output is larger than Kafka is set up to take.',
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

/** An event that waits: what it says is decided when it is sent. */
interface WaitingEvent {
  /** Undefined when there is nothing more to say. */
  make(): JobEvent | undefined
  /** The broker will never take the event. Gives what is said instead; undefined: nothing can be. */
  refuse(event: JobEvent, cause: unknown): JobEvent | undefined
}

/** An event as it is sent. */
interface WrittenEvent {
  readonly event: JobEvent
  readonly text: string
  readonly source: WaitingEvent
}

/** What waits for one ingress. Events are made when they are sent, so that output may join them until then. */
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
    // Later in this turn of the loop, so that everything that is ready now shares the record.
    setImmediate(() => void this.#drain())
  }

  grow(bytes: number): void {
    this.#bytes += bytes
  }

  /** Resolves when everything put so far is with the broker, or dropped. */
  flushed(): Promise<void> {
    if (this.#isClosed || !this.#isSending) return Promise.resolve()
    this.#flushed ??= Promise.withResolvers<void>()
    return this.#flushed.promise
  }

  async room(): Promise<void> {
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
      const flushed = this.#flushed
      this.#flushed = undefined
      const events = this.#pending
      this.#pending = []
      this.#bytes = 0
      for (const record of recordsOf(events)) await this.#sendSurely(record)
      flushed?.resolve()
    }
    this.#isSending = false
    this.#flushed?.resolve()
    this.#flushed = undefined
  }

  async #sendSurely(record: readonly WrittenEvent[]): Promise<void> {
    while (!this.#isClosed) {
      try {
        return await this.#send(record)
      } catch (error) {
        // The sender has logged it.
        if (ServiceError.from(error).code === 'request_too_large') return await this.#sendParts(record, error)
        // The broker may be gone for minutes: our jobs outlive that.
        await new Promise((resolve) => setTimeout(resolve, RESEND_MS))
      }
    }
  }

  /** Refused for good: the events go in halves, until the one that is refused stands alone and gives way to a smaller one. */
  async #sendParts(record: readonly WrittenEvent[], cause: unknown): Promise<void> {
    const [first] = record
    if (!first) return
    if (record.length > 1) {
      const middle = Math.ceil(record.length / 2)
      await this.#sendSurely(record.slice(0, middle))
      return await this.#sendSurely(record.slice(middle))
    }
    const instead = first.source.refuse(first.event, cause)
    if (instead) await this.#sendSurely([{ ...first, event: instead, text: JSON.stringify(instead) }])
  }
}

function tooLarge(): ServiceError {
  return new ServiceError('internal_error', 'A single piece of the output is larger than the service can carry.')
}

/** Events put together to records of at most {@link RECORD_BYTES_MAX}, in order. */
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
