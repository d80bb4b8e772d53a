import type { ErrorBody } from '#schemas/error.ts'
import type { JobEvent, ReplyRecord } from '#schemas/event.ts'
import type { AttachedEnvelope } from '#schemas/job.ts'
import { EVENT_SIZE_MAX, refuseLarge } from '#shared/event-size.ts'
import { EventBuffer, type MergeEvents } from '#shared/jobs/event-buffer.ts'
import type { ReportedEvents } from '#shared/jobs/worker/sink.ts'

/**
 * Events of an attempt whose ingress is in the same process, numbered from 1.
 *
 * Events of one socket read are merged and passed on before the next socket is read. Thus a burst over many streams is delivered
 * in order, and no token waits for another. There is no backlog for slow readers here: the ingress buffers their output and
 * pauses the attempt.
 */
export class LocalEvents implements ReportedEvents {
  /** Another attempt would repeat output that the caller has received. */
  readonly canRestart = false
  readonly #job: Pick<AttachedEnvelope, 'id' | 'attempt'>
  readonly #worker: string
  readonly #deliver: (record: ReplyRecord) => void
  readonly #waiting: EventBuffer
  #isDue = false
  #seq = 0
  readonly #flush = () => {
    this.#isDue = false
    this.#sendWaiting()
  }

  /** @param pass Delivers a record within this process; records are immutable */
  constructor(
    job: Pick<AttachedEnvelope, 'id' | 'attempt'>,
    options: { merge: MergeEvents; worker: string; pass: (record: ReplyRecord) => void },
  ) {
    this.#job = job
    this.#worker = options.worker
    this.#deliver = options.pass
    this.#waiting = new EventBuffer(options.merge)
  }

  async started(): Promise<void> {
    this.#send({ ...this.#next(), type: 'started' })
  }

  /**
   * Returns a promise of the next event-loop iteration if the attempt sends much in this one.
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
    this.#send({ ...this.#next(), type: 'completed', deltas: this.#waiting.takeAll() })
  }

  async failed(error: ErrorBody): Promise<void> {
    this.#sendWaiting()
    this.#send({ ...this.#next(), type: 'failed', error })
  }

  async handedBack(): Promise<void> {
    this.#sendWaiting()
    this.#send({ ...this.#next(), type: 'handed_back' })
  }

  /** The ingress requested the cancel and needs no report. */
  async cancelled(): Promise<void> {}

  #sendWaiting(): void {
    if (!this.#waiting.isEmpty) this.#send({ ...this.#next(), type: 'delta', deltas: this.#waiting.takeAll() })
  }

  #send(event: JobEvent): void {
    this.#deliver({ worker: this.#worker, events: [event] })
  }

  #next(): { job_id: string; attempt: number; seq: number } {
    return { job_id: this.#job.id, attempt: this.#job.attempt, seq: ++this.#seq }
  }
}
