import type { ErrorBody } from '#schemas/error.ts'
import type { JobEvent, ReplyRecord } from '#schemas/event.ts'
import type { AttachedEnvelope } from '#schemas/job.ts'
import { EVENT_SIZE_MAX, refuseLarge } from '#shared/event-size.ts'
import { EventBuffer, type MergeEvents } from '#shared/jobs/event-buffer.ts'
import type { ReportedEvents } from '#shared/jobs/worker/sink.ts'

/**
 * The events of one attempt whose ingress lives in the same process, numbered from 1 in the order they are passed.
 *
 * What one read of the upstream brings is joined and passed on before the next socket is read: so a burst over many
 * streams drains in the order it came, and a token waits for no other. A slow reader's output is joined by its ingress,
 * which pauses the attempt; nothing waits here for a reader.
 */
export class LocalEvents implements ReportedEvents {
  /** The caller would see its output twice. */
  readonly canRestart = false
  readonly #job: Pick<AttachedEnvelope, 'id' | 'attempt'>
  readonly #worker: string
  readonly #pass: (record: ReplyRecord) => void
  readonly #waiting: EventBuffer
  #isDue = false
  #seq = 0
  readonly #flush = () => {
    this.#isDue = false
    this.#sayWaiting()
  }

  /** @param pass Hands a record on in this process: nobody changes what it says. */
  constructor(
    job: Pick<AttachedEnvelope, 'id' | 'attempt'>,
    options: { merge: MergeEvents; worker: string; pass: (record: ReplyRecord) => void },
  ) {
    this.#job = job
    this.#worker = options.worker
    this.#pass = options.pass
    this.#waiting = new EventBuffer(options.merge)
  }

  async started(): Promise<void> {
    this.#say({ ...this.#next(), type: 'started' })
  }

  /**
   * Gives a promise of the next turn of the loop to whoever says much in this one.
   *
   * @throws ServiceError `internal_error` for an event over 512 KiB of JSON, as where a broker takes it
   */
  event(event: unknown): Promise<void> | undefined {
    refuseLarge(event)
    this.#waiting.push(event)
    if (!this.#isDue) {
      this.#isDue = true
      // After all promises that this read of a socket settles, and before the next one.
      process.nextTick(this.#flush)
    }
    return this.#waiting.bytes > EVENT_SIZE_MAX ? new Promise((resolve) => setImmediate(resolve)) : undefined
  }

  async completed(): Promise<void> {
    this.#say({ ...this.#next(), type: 'completed', deltas: this.#waiting.takeAll() })
  }

  async failed(error: ErrorBody): Promise<void> {
    this.#sayWaiting()
    this.#say({ ...this.#next(), type: 'failed', error })
  }

  async handedBack(): Promise<void> {
    this.#sayWaiting()
    this.#say({ ...this.#next(), type: 'handed_back' })
  }

  /** The ingress knows: it asked for it. */
  async cancelled(): Promise<void> {}

  #sayWaiting(): void {
    if (!this.#waiting.isEmpty) this.#say({ ...this.#next(), type: 'delta', deltas: this.#waiting.takeAll() })
  }

  #say(event: JobEvent): void {
    this.#pass({ worker: this.#worker, events: [event] })
  }

  #next(): { job_id: string; attempt: number; seq: number } {
    return { job_id: this.#job.id, attempt: this.#job.attempt, seq: ++this.#seq }
  }
}
