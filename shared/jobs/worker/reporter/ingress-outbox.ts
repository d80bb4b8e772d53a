import type { JobEvent } from '#schemas/event.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Maximum record size in bytes; Kafka rejects 1 MiB by default. A record is split only between two events. */
const RECORD_BYTES_MAX = 896 * 1024
/** Unsent bytes to one ingress at which senders have to wait. */
const BACKLOG_BYTES = 1024 * 1024
const RESEND_MS = 250

interface WaitingEvent {
  make(): JobEvent | undefined
  /** Called if the broker rejected the event as too large. Returns a replacement; undefined: drop the event. */
  refuse(event: JobEvent, cause: unknown): JobEvent | undefined
}

export interface WrittenEvent {
  readonly event: JobEvent
  readonly text: string
  readonly source: WaitingEvent
}

/** Events that wait for one ingress. Each event is made when it is sent, so output can still be merged into it. */
export class IngressOutbox {
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
      const flushed = this.#flushed
      this.#flushed = undefined
      const events = this.#pending
      this.#pending = []
      this.#bytes = 0
      for (const record of recordsOf(events)) await this.#sendWithRetry(record)
      flushed?.resolve()
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
        // The error is not logged here, because the sender has logged it.
        if (ServiceError.from(error).code === 'request_too_large') return await this.#sendParts(record, error)
        // Retries without limit: the broker may be unreachable for minutes, and the jobs continue meanwhile.
        await new Promise((resolve) => setTimeout(resolve, RESEND_MS))
      }
    }
  }

  /** Bisects a rejected record. An event that is rejected alone is replaced by a smaller one. */
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
