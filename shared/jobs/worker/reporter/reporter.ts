import type { ErrorBody } from '#schemas/error.ts'
import type { JobEvent, ReplyRecord } from '#schemas/event.ts'
import type { AttachedEnvelope } from '#schemas/job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { EVENT_SIZE_MAX, refuseLarge } from '#shared/event-size.ts'
import { EventBuffer, type MergeEvents } from '#shared/jobs/event-buffer.ts'
import { REPLIES } from '#shared/jobs/topics.ts'
import type { ReportedEvents } from '#shared/jobs/worker/sink.ts'
import type { Log } from '#shared/log/log.ts'
import { IngressOutbox, type WrittenEvent } from './ingress-outbox.ts'
import { LocalEvents } from './local-events.ts'

/** What it takes to tell the events of a job. */
type ReportedJob = Pick<AttachedEnvelope, 'id' | 'attempt' | 'reply'>

/**
 * Sends the events of every job of this worker to their ingresses, batched across jobs.
 *
 * One record to an ingress is under way at a time; what comes meanwhile joins the next one, and events of one job merge.
 * So the first event of an idle worker goes out at once, and a busy one sends few, large records. While the broker is away a
 * record is sent again until it is taken: while the process lives nothing is lost, and emitters wait. What the broker will
 * never take costs the one attempt whose event it is. Where no process lies in between, events are passed on as they are
 * (`local-events.ts`).
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
  open(job: ReportedJob, merge: MergeEvents): ReportedEvents {
    if (this.#broker.deliverLocal) return this.#openPassed(job, merge)
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

  #openPassed(job: ReportedJob, merge: MergeEvents): ReportedEvents {
    const { boot, shard } = job.reply
    const pass = (record: ReplyRecord) => this.#broker.deliverLocal?.(REPLIES, shard, boot, record)
    return new LocalEvents(job, { merge, pass, worker: this.#worker })
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
class AttemptEvents implements ReportedEvents {
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
