import type { Broker, ChannelRecord, Closable, Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { SimulatedProcess } from '../simulated-process.ts'
import type { Surroundings } from './store.ts'

/** Time after which the broker releases the records of a dead consumer. */
const SESSION_MS = 2_000
/** Timeout of a fetch while the broker is down. */
const OUTAGE_TAKE_MS = 500

/**
 * The broker as one process uses it, with faults. Records are lost, duplicated and delayed, but never reordered, because the interface `Broker`
 * guarantees their order.
 */
export class FaultyBroker implements Broker {
  readonly name = 'faulty'
  readonly #broker: Broker
  readonly #process: SimulatedProcess
  readonly #around: Surroundings
  readonly #consumers: QueueConsumer[] = []
  readonly #lanes = new Map<string, number>()

  constructor(broker: Broker, process: SimulatedProcess, around: Surroundings) {
    this.#broker = broker
    this.#process = process
    this.#around = around
  }

  get isReachable(): boolean {
    return !this.#around.faults.isDown('broker') && !this.#process.isBrokerCut
  }

  async submit(queue: string, value: Buffer): Promise<void> {
    await this.#put(queue, () => this.#broker.submit(queue, value))
  }

  async send(channel: string, partition: number, key: string, value: Buffer): Promise<void> {
    await this.#put(`${channel}/${partition}`, () => this.#broker.send(channel, partition, key, value))
  }

  async receive(
    channel: string,
    partitions: readonly number[],
    onRecord: (record: ChannelRecord) => void,
  ): Promise<Closable> {
    await this.#process.alive()
    const receivers = await Promise.all(
      partitions.map((partition) => {
        const inbox = new Inbox(this.#process, this.#around, onRecord)
        return this.#broker.receive(channel, [partition], (record) => inbox.put(record))
      }),
    )
    return {
      close: async () => {
        for (const receiver of receivers) await receiver.close()
      },
    }
  }

  async openQueue(queue: string): Promise<QueueConsumer> {
    await this.#process.alive()
    const consumer = await this.#broker.openQueue(queue)
    this.#consumers.push(consumer)
    return { take: (max, signal) => this.#take(queue, consumer, max, signal), close: () => consumer.close() }
  }

  async lag(queue: string): Promise<number | undefined> {
    await this.#process.alive()
    return this.isReachable ? await this.#broker.lag(queue) : undefined
  }

  async history(...given: Parameters<Broker['history']>): Promise<{ hasMore: boolean }> {
    await this.#process.alive()
    if (!this.isReachable) throw overloaded()
    return await this.#broker.history(...given)
  }

  async close(): Promise<void> {}

  /**
   * Called when the process dies. After the session timeout, the consumers of the process are closed, so that the broker delivers their
   * unacknowledged records to other processes.
   */
  forget(): void {
    const { clock } = this.#around
    clock.at(clock.nowMs + SESSION_MS, () => {
      for (const consumer of this.#consumers) void consumer.close()
    })
  }

  async #put(lane: string, put: () => Promise<void>): Promise<void> {
    const { faults } = this.#around
    if (faults.isCrash) this.#process.kill()
    await this.#process.alive()
    if (!this.isReachable) throw overloaded()
    const fate = faults.sendFate()
    if (fate === 'refused') throw overloaded()
    const ms = faults.sendMs()
    if (fate !== 'lost') this.#later(lane, ms, put)
    if (fate === 'doubled') this.#later(lane, ms, put)
    await this.#process.alive(ms)
    if (fate === 'unanswered') throw overloaded()
  }

  /**
   * Runs `put` after a delay, but only after all earlier calls with the same `lane`. The records of one queue or partition are thus not
   * reordered.
   */
  #later(lane: string, ms: number, put: () => Promise<void>): void {
    const { clock } = this.#around
    const atMs = Math.max(this.#lanes.get(lane) ?? 0, clock.nowMs + ms)
    this.#lanes.set(lane, atMs)
    clock.at(atMs, () => void put())
  }

  async #take(queue: string, consumer: QueueConsumer, max: number, signal: AbortSignal): Promise<Delivery[]> {
    await this.#process.alive()
    const { clock, faults } = this.#around
    if (!this.isReachable) {
      await this.#process.alive(OUTAGE_TAKE_MS)
      return []
    }
    const taken = await consumer.take(max, signal)
    await this.#process.alive(taken.length > 0 ? faults.sendMs() : 0)
    const fates = taken.map(() => faults.deliveryFate())
    for (const [index, delivery] of taken.entries()) {
      if (fates[index] === 'doubled') {
        clock.at(clock.nowMs + faults.random.between(0, 5_000), () => void this.#broker.submit(queue, delivery.value))
      }
      if (fates[index] === 'released') delivery.release()
    }
    return taken.filter((_, index) => fates[index] !== 'released')
  }
}

/** Records of one partition that were sent to one process and have not arrived. */
class Inbox {
  readonly #process: SimulatedProcess
  readonly #around: Surroundings
  readonly #onRecord: (record: ChannelRecord) => void
  readonly #waiting: { atMs: number; record: ChannelRecord }[] = []
  #lastMs = 0

  constructor(process: SimulatedProcess, around: Surroundings, onRecord: (record: ChannelRecord) => void) {
    this.#process = process
    this.#around = around
    this.#onRecord = onRecord
  }

  put(record: ChannelRecord): void {
    const { clock, faults } = this.#around
    if (this.#process.isDead || this.#process.isBrokerCut || faults.isRecordMissed) return
    const ms = faults.sendMs()
    if (ms === 0 && this.#waiting.length === 0 && !this.#process.isPaused) {
      return this.#process.run(() => this.#onRecord(record))
    }
    this.#lastMs = Math.max(this.#lastMs, clock.nowMs + ms)
    this.#waiting.push({ atMs: this.#lastMs, record })
    const waitMs = this.#lastMs - clock.nowMs
    this.#process.run(() => setTimeout(() => this.#deliver(), waitMs))
  }

  #deliver(): void {
    while ((this.#waiting[0]?.atMs ?? Number.POSITIVE_INFINITY) <= this.#around.clock.nowMs) {
      const next = this.#waiting.shift()
      if (next) this.#onRecord(next.record)
    }
  }
}

function overloaded(): ServiceError {
  return new ServiceError('overloaded', 'The simulated broker did not accept the record.')
}
