/**
 * Tests that every broker adapter must pass. The tests check each guarantee that `broker.ts` documents. Failures of a real Kafka (restarts,
 * killed processes) are tested in `kafka.test.ts`.
 */
import { afterEach, describe, expect, inject, it } from 'vitest'
import type { Broker, Delivery, HistoryRecord, QueueConsumer, Topic } from '#shared/broker/broker.ts'
import { openKafkaBroker } from '#shared/broker/kafka/kafka.ts'
import { openMemoryBroker } from '#shared/broker/memory.ts'
import { newId } from '#shared/lib/id.ts'
import { until } from '../../support/stack.ts'

const HOUR_MS = 3_600_000
const TOPICS: readonly Topic[] = [
  { name: 'jobs', partitions: 2, retentionMs: HOUR_MS, kind: 'queue' },
  { name: 'replies', partitions: 4, retentionMs: HOUR_MS, kind: 'channel' },
  { name: 'kept', partitions: 2, retentionMs: HOUR_MS, kind: 'channel', historyMax: 10 },
  { name: 'wide', partitions: 20, retentionMs: HOUR_MS, kind: 'channel', historyMax: 10 },
]
const WITHIN = { withinMs: 20_000 }
const never = new AbortController().signal
const kafka = inject('kafka')

/** Returns a function that opens brokers on one transport, one for each simulated process of a fleet. */
type OpenFleet = () => () => Promise<Broker>

const ADAPTERS: { name: string; isKafka: boolean; fleet: OpenFleet }[] = [
  { name: 'memory', isKafka: false, fleet: memoryFleet },
  { name: 'kafka, share groups', isKafka: true, fleet: () => kafkaFleet('share') },
  { name: 'kafka, classic groups', isKafka: true, fleet: () => kafkaFleet('classic') },
]

const opened: Broker[] = []
let ended = new AbortController()
afterEach(async () => {
  ended.abort()
  ended = new AbortController()
  await Promise.all(opened.splice(0).map((broker) => broker.close()))
})

function memoryFleet() {
  const shared = openMemoryBroker({ topics: TOPICS })
  return async () => {
    const broker = await shared
    opened.push(broker)
    return broker
  }
}

function kafkaFleet(client: 'share' | 'classic', prefix = `${newId('t', 8)}.`) {
  return async () => {
    const broker = await openKafkaBroker({
      brokers: [kafka ?? ''],
      client,
      prefix,
      topics: TOPICS,
      clientId: 'test',
      onProblem: () => undefined,
    })
    opened.push(broker)
    return broker
  }
}

for (const { name, isKafka, fleet } of ADAPTERS) {
  describe.skipIf(isKafka && !kafka)(`the broker on ${name}`, () => {
    it('delivers a record to a consumer, and not again once the record is acknowledged', async () => {
      const broker = await fleet()()
      const first = await broker.openQueue('jobs')
      await broker.submit('jobs', Buffer.from('a'))
      const [delivery] = await takeSome(first, 1)
      expect(delivery).toMatchObject({ value: Buffer.from('a'), deliveryCount: 1 })
      expect(delivery?.position).toMatch(/^jobs\/\d@\d+$/)
      delivery?.acknowledge()
      await until(async () => (await broker.lag('jobs')) === 0, WITHIN)
      await first.close()
      await broker.submit('jobs', Buffer.from('b'))
      const second = await broker.openQueue('jobs')
      expect(await values(takeSome(second, 1))).toEqual(['b'])
    })

    it('delivers records that were submitted before the first consumer joined', async () => {
      const broker = await fleet()()
      await broker.submit('jobs', Buffer.from('early'))
      const queue = await broker.openQueue('jobs')
      expect(await values(takeSome(queue, 1))).toEqual(['early'])
    })

    it('delivers at most the requested number of records per fetch, and the rest in later fetches', async () => {
      const broker = await fleet()()
      const queue = await broker.openQueue('jobs')
      await submitAll(broker, 20)
      const seen: string[] = []
      while (seen.length < 20) {
        const deliveries = await queue.take(3, never)
        expect(deliveries.length).toBeLessThanOrEqual(3)
        for (const delivery of deliveries) {
          seen.push(String(delivery.value))
          delivery.acknowledge()
        }
      }
      expect(new Set(seen).size).toBe(20)
    })

    it('returns no records from an aborted fetch, and delivers later records to the next fetch', async () => {
      const broker = await fleet()()
      const queue = await broker.openQueue('jobs')
      await warmUp(broker, queue)
      const giveUp = new AbortController()
      const taking = queue.take(5, giveUp.signal)
      giveUp.abort()
      expect(await taking).toEqual([])
      await submitAll(broker, 5)
      expect((await values(takeSome(queue, 5))).toSorted()).toEqual(['0', '1', '2', '3', '4'])
    })

    it('redelivers the unacknowledged records of a closed consumer to another consumer', async () => {
      const open = fleet()
      const leaving = await (await open()).openQueue('jobs')
      const broker = await open()
      await broker.submit('jobs', Buffer.from('a'))
      await takeSome(leaving, 1)
      await leaving.close()
      const staying = await broker.openQueue('jobs')
      expect(await values(takeSome(staying, 1))).toEqual(['a'])
    })

    it('redelivers a released record with delivery count 2', async () => {
      const broker = await fleet()()
      const queue = await broker.openQueue('jobs')
      await broker.submit('jobs', Buffer.from('a'))
      const [first] = await takeSome(queue, 1)
      first?.release()
      const [second] = await takeSome(queue, 1)
      expect(String(second?.value)).toBe('a')
      expect(second?.deliveryCount).toBe(2)
      second?.acknowledge()
    })

    it('ignores a second acknowledgement or release of a record', async () => {
      const broker = await fleet()()
      const queue = await broker.openQueue('jobs')
      await broker.submit('jobs', Buffer.from('a'))
      const [delivery] = await takeSome(queue, 1)
      delivery?.acknowledge()
      delivery?.release()
      delivery?.acknowledge()
      await until(async () => (await broker.lag('jobs')) === 0, WITHIN)
      await broker.submit('jobs', Buffer.from('b'))
      expect(await values(takeSome(queue, 1))).toEqual(['b'])
    })

    it('delivers each of 300 records to exactly one of three consumers', async () => {
      const open = fleet()
      const broker = await open()
      const members = await Promise.all([open(), open(), open()].map(async (b) => (await b).openQueue('jobs')))
      const seen: string[] = []
      const working = members.map((member) => work(member, seen, ended.signal))
      // A classic group may redeliver records while members join. Before the measurement, the test therefore submits other records until all
      // members have joined.
      await until(() => submitAll(broker, 1).then(() => seen.length > 0), WITHIN)
      await until(async () => (await broker.lag('jobs')) === 0, WITHIN)
      seen.length = 0
      await submitAll(broker, 300)
      await until(() => seen.length >= 300, WITHIN)
      await until(async () => (await broker.lag('jobs')) === 0, WITHIN)
      ended.abort()
      await Promise.all(working)
      expect(seen.toSorted()).toEqual(Array.from({ length: 300 }, (_, i) => String(i)).toSorted())
    })

    it('reports the number of unacknowledged records as the lag of the queue', async () => {
      const broker = await fleet()()
      const queue = await broker.openQueue('jobs')
      await warmUp(broker, queue)
      await submitAll(broker, 3)
      await until(async () => (await broker.lag('jobs')) === 3, WITHIN)
      for (const delivery of await takeSome(queue, 3)) delivery.acknowledge()
      await until(async () => (await broker.lag('jobs')) === 0, WITHIN)
    })

    it('delivers all events since the subscription to every receiver, in the order of sending', async () => {
      const open = fleet()
      const sender = await open()
      await sender.send('replies', 1, 'before', Buffer.from('before'))
      const [here, there] = [[] as string[], [] as string[]]
      await sender.receive('replies', [1], ({ key, value }) => here.push(`${key}:${value}`))
      await (await open()).receive('replies', [1], ({ key, value }) => there.push(`${key}:${value}`))
      const sent = Array.from({ length: 500 }, (_, i) => `${i % 7}:${i}`)
      await Promise.all(sent.map((text) => sender.send('replies', 1, text.split(':')[0] ?? '', bufferAfterColon(text))))
      await until(() => here.length >= 500 && there.length >= 500, WITHIN)
      expect(here).toEqual(sent)
      expect(there).toEqual(sent)
    })

    it("delivers only the events of a receiver's partitions, and no events to a closed receiver", async () => {
      const broker = await fleet()()
      const mine: string[] = []
      const others: string[] = []
      const receiver = await broker.receive('replies', [0], ({ value }) => mine.push(String(value)))
      await broker.receive('replies', [2, 3], ({ value }) => others.push(String(value)))
      await Promise.all([0, 1, 2, 3].map((p) => broker.send('replies', p, 'k', Buffer.from(`to ${p}`))))
      await until(() => mine.length > 0 && others.length > 1, WITHIN)
      await receiver.close()
      await broker.send('replies', 0, 'k', Buffer.from('late'))
      await broker.send('replies', 2, 'k', Buffer.from('last'))
      await until(() => others.includes('last'), WITHIN)
      expect(mine).toEqual(['to 0'])
      expect(others.toSorted()).toEqual(['last', 'to 2', 'to 3'])
    })

    it('reads the history of a channel backwards from an offset, in pages', async () => {
      const broker = await fleet()()
      const read = async (range: { before?: number; max: number }) => {
        const records: HistoryRecord[] = []
        const { hasMore } = await broker.history('kept', 1, range, (record) => records.push(record))
        return { hasMore, records, texts: records.map(({ key, value }) => `${key}:${value}`) }
      }
      expect(await read({ max: 5 })).toMatchObject({ hasMore: false, texts: [] })
      for (let i = 0; i < 7; i++) await broker.send('kept', 1, `k${i}`, Buffer.from(`to ${i}`))
      const last = await read({ max: 3 })
      expect(last).toMatchObject({ hasMore: true, texts: ['k4:to 4', 'k5:to 5', 'k6:to 6'] })
      expect(Math.abs(Date.now() - (last.records[0]?.sentAtMs ?? 0))).toBeLessThan(60_000)
      const before = last.records[0]?.offset ?? 0
      expect((await read({ before, max: 3 })).texts).toEqual(['k1:to 1', 'k2:to 2', 'k3:to 3'])
      expect(await read({ before: before - 3, max: 3 })).toMatchObject({ hasMore: false, texts: ['k0:to 0'] })
      expect((await read({ before: 0, max: 3 })).texts).toEqual([])
    })

    it('reads an empty history from a new channel, even if a partition has no leader yet', async () => {
      const broker = await fleet()()
      const reads = Array.from({ length: 20 }, (_, at) => broker.history('wide', at, { max: 1 }, () => undefined))
      for (const read of await Promise.all(reads)) expect(read).toEqual({ hasMore: false })
    })

    it('can be closed twice, and then refuses records with overloaded', async () => {
      const broker = await fleet()()
      const queue = await broker.openQueue('jobs')
      const receiver = await broker.receive('replies', [0], () => undefined)
      for (const closable of [queue, queue, receiver, receiver, broker, broker]) await closable.close()
      expect(await queue.take(1, never)).toEqual([])
      await expect(broker.submit('jobs', Buffer.from('a'))).rejects.toMatchObject({ code: 'overloaded' })
      await expect(broker.send('replies', 0, 'k', Buffer.from('a'))).rejects.toMatchObject({ code: 'overloaded' })
      expect(broker.isReachable).toBe(false)
    })

    it('refuses records with overloaded once its send buffer is full', async () => {
      const broker = await fleet()()
      const piece = Buffer.alloc(500_000)
      const submits = await Promise.allSettled(Array.from({ length: 600 }, () => broker.submit('jobs', piece)))
      const refused = submits.filter((result) => result.status === 'rejected')
      expect(refused.length).toBeGreaterThan(0)
      for (const { reason } of refused) expect(reason).toMatchObject({ code: 'overloaded' })
    })
  })
}

/** Fetches from the queue as often as needed to get `count` records. */
async function takeSome(queue: QueueConsumer, count: number): Promise<Delivery[]> {
  const deliveries: Delivery[] = []
  await until(async () => {
    deliveries.push(...(await queue.take(count - deliveries.length, never)))
    return deliveries.length >= count
  }, WITHIN)
  return deliveries
}

/** Sends one record through the queue and receives it. Afterwards the consumer group has assigned partitions to this member. */
async function warmUp(broker: Broker, queue: QueueConsumer): Promise<void> {
  await broker.submit('jobs', Buffer.from('warm'))
  for (const delivery of await takeSome(queue, 1)) delivery.acknowledge()
  await until(async () => (await broker.lag('jobs')) === 0, WITHIN)
}

/**
 * Fetches and acknowledges records until the signal aborts. Each test must abort the signal. Otherwise, the loop would continue after the
 * member is closed, and use all CPU time.
 */
async function work(member: QueueConsumer, seen: string[], signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    for (const delivery of await member.take(5, signal)) {
      seen.push(String(delivery.value))
      delivery.acknowledge()
    }
  }
}

async function submitAll(broker: Broker, count: number): Promise<void> {
  await Promise.all(Array.from({ length: count }, (_, i) => broker.submit('jobs', Buffer.from(String(i)))))
}

async function values(deliveries: Promise<Delivery[]>): Promise<string[]> {
  return (await deliveries).map(({ value }) => String(value))
}

function bufferAfterColon(text: string): Buffer {
  return Buffer.from(text.slice(text.indexOf(':') + 1))
}
