import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Delivery, QueueConsumer } from './broker.ts'

const QUEUE_BYTES_MAX = 256 * 1024 * 1024
/** Maximum wait of `take` without records. Also limits the delay that a lost wakeup would cause. */
const TAKE_WAIT_MS = 1_000

/** A record that is queued or delivered. An object passed without serialization is serialized only if its bytes are read. */
export class QueuedRecord {
  readonly bytes: number
  readonly payload: object | undefined
  offset = 0
  deliveryCount = 0
  readonly #value: Buffer | undefined

  constructor(bytes: number, value: Buffer | undefined, payload?: object) {
    this.bytes = bytes
    this.#value = value
    this.payload = payload
  }

  get value(): Buffer {
    return this.#value ?? Buffer.from(JSON.stringify(this.payload))
  }
}

class MemoryDelivery implements Delivery {
  readonly #record: QueuedRecord
  readonly #queue: string
  readonly acknowledge: () => void
  readonly release: () => void

  constructor(record: QueuedRecord, queue: string, ends: Pick<Delivery, 'acknowledge' | 'release'>) {
    this.#record = record
    this.#queue = queue
    this.acknowledge = ends.acknowledge
    this.release = ends.release
  }

  get value(): Buffer {
    return this.#record.value
  }

  get payload(): object | undefined {
    return this.#record.payload
  }

  get deliveryCount(): number {
    return this.#record.deliveryCount
  }

  get position(): string {
    return `${this.#queue}/0@${this.#record.offset}`
  }
}

export class MemoryQueue {
  readonly name: string
  readonly #waiting: QueuedRecord[] = []
  readonly #wakeups = new Set<() => void>()
  #head = 0
  #bytes = 0
  #out = 0
  #nextOffset = 0

  constructor(name: string) {
    this.name = name
  }

  get unacknowledged(): number {
    return this.#waiting.length - this.#head + this.#out
  }

  put(record: QueuedRecord): void {
    if (this.#bytes + record.bytes > QUEUE_BYTES_MAX) {
      throw new ServiceError('overloaded', 'The queue is full. Try again later.', { retryAfterMs: 5_000 })
    }
    this.#bytes += record.bytes
    record.offset = this.#nextOffset++
    this.#waiting.push(record)
    this.#wake()
  }

  take(max: number): QueuedRecord[] {
    const taken = this.#waiting.slice(this.#head, this.#head + max)
    this.#head += taken.length
    // The consumed prefix is dropped only occasionally, so that take and put have constant cost on average.
    if (this.#head > 1_024 && this.#head * 2 > this.#waiting.length) {
      this.#waiting.splice(0, this.#head)
      this.#head = 0
    }
    if (this.#head === this.#waiting.length) {
      this.#waiting.length = 0
      this.#head = 0
    }
    for (const record of taken) record.deliveryCount++
    this.#out += taken.length
    return taken
  }

  settle(record: QueuedRecord): void {
    this.#out--
    this.#bytes -= record.bytes
  }

  putBack(record: QueuedRecord): void {
    this.#out--
    this.#waiting.splice(this.#head, 0, record)
    this.#wake()
  }

  onPut(wakeup: () => void): () => void {
    this.#wakeups.add(wakeup)
    return () => this.#wakeups.delete(wakeup)
  }

  #wake(): void {
    for (const wakeup of [...this.#wakeups]) wakeup()
  }
}

export class MemoryConsumer implements QueueConsumer {
  readonly #queue: MemoryQueue
  readonly #held = new Set<QueuedRecord>()
  /** Stops the timer that ends expired waits. The first wait starts this timer. */
  #stopTicking: (() => void) | undefined
  #isClosed = false
  /** Signal of the last call, cached because consumers pass one signal to many calls. */
  #signal: AbortSignal | undefined
  #resolveWait: (() => void) | undefined
  readonly #wakeUp = () => {
    this.#forget?.()
    this.#forget = undefined
    this.#resolveWait?.()
    this.#resolveWait = undefined
  }
  #forget: (() => void) | undefined

  constructor(queue: MemoryQueue) {
    this.#queue = queue
  }

  async take(max: number, signal: AbortSignal): Promise<Delivery[]> {
    if (signal.aborted || this.#isClosed) return []
    let taken = this.#queue.take(max)
    if (taken.length === 0) {
      await this.#waitForRecord(signal)
      if (signal.aborted || this.#isClosed) return []
      taken = this.#queue.take(max)
    }
    return taken.map((record) => this.#deliver(record))
  }

  async close(): Promise<void> {
    this.#isClosed = true
    this.#stopTicking?.()
    this.#wakeUp()
    for (const record of [...this.#held].reverse()) this.#release(record)
  }

  #waitForRecord(signal: AbortSignal): Promise<void> {
    if (signal !== this.#signal) {
      this.#signal?.removeEventListener('abort', this.#wakeUp)
      this.#signal = signal
      signal.addEventListener('abort', this.#wakeUp, { once: true })
    }
    this.#stopTicking ??= atAlignedInterval(TAKE_WAIT_MS, this.#wakeUp)
    // Waiting members are woken in the order of their waits.
    this.#forget = this.#queue.onPut(this.#wakeUp)
    return new Promise((resolve) => {
      this.#resolveWait = resolve
    })
  }

  #deliver(record: QueuedRecord): Delivery {
    this.#held.add(record)
    return new MemoryDelivery(record, this.#queue.name, {
      acknowledge: () => {
        if (this.#held.delete(record)) this.#queue.settle(record)
      },
      release: () => this.#release(record),
    })
  }

  #release(record: QueuedRecord): void {
    if (this.#held.delete(record)) this.#queue.putBack(record)
  }
}
