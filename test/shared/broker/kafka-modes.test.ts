import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'
import { describe, expect, inject, it, vi } from 'vitest'
import type { Broker, QueueConsumer, Topic } from '#shared/broker/broker.ts'
import { assignAfter, createKafkaJs } from '#shared/broker/kafka/classic/client.ts'
import { openKafkaBroker } from '#shared/broker/kafka/kafka.ts'
import { newId } from '#shared/lib/id.ts'
import { Starvation } from '#shared/process/starvation.ts'
import { openFleet } from '../../support/processes/fleet.ts'
import { freePort } from '../../support/processes/free-ports.ts'
import { until } from '../../support/stack.ts'

const kafka = inject('kafka')
const HOUR_MS = 3_600_000
const JOBS: Topic = { name: 'jobs', partitions: 1, retentionMs: 72 * HOUR_MS, retentionMsMin: HOUR_MS, kind: 'queue' }
const WITHIN = { withinMs: 40_000 }
/** Number of records in the test in which members join and leave. Two members need about five seconds for them. */
const RECORDS = 2_000
const never = new AbortController().signal
type Client = 'share' | 'classic'

async function open(prefix: string, client: Client, said: string[] = []): Promise<Broker> {
  const onProblem = (message: string) => said.push(message)
  return await openKafkaBroker({ brokers: [kafka ?? ''], client, prefix, topics: [JOBS], clientId: 'test', onProblem })
}

/** Fetches and acknowledges records until `count` have arrived. */
async function takeAll(queue: QueueConsumer, count: number): Promise<string[]> {
  const taken: string[] = []
  await until(async () => {
    for (const delivery of await queue.take(100, never)) {
      taken.push(String(delivery.value))
      delivery.acknowledge()
    }
    return taken.length >= count
  }, WITHIN)
  return taken
}

describe.skipIf(!kafka)('a queue whose workers switch between share groups and classic groups', () => {
  it.each([
    ['share', 'classic'],
    ['classic', 'share'],
  ] as const)('delivers the unprocessed records after the switch (first %s, then %s)', async (before, after) => {
    const prefix = `${newId('t', 8)}.`
    const first = await open(prefix, before)
    const queue = await first.openQueue('jobs')
    await first.submit('jobs', Buffer.from('done'))
    expect(await takeAll(queue, 1)).toEqual(['done'])
    await until(async () => (await first.lag('jobs')) === 0, WITHIN)
    await first.close()
    const second = await open(prefix, after)
    await second.submit('jobs', Buffer.from('left'))
    // After the change of the client, Kafka also delivers earlier records that have not expired. The worker drops those whose calls have ended.
    expect(await takeAll(await second.openQueue('jobs'), 2)).toEqual(expect.arrayContaining(['left']))
    await second.close()
  })

  it.each(['share', 'classic'] as const)(
    'does not deliver records older than the minimum retention to a new group (%s)',
    async (client) => {
      const prefix = `${newId('t', 8)}.`
      await (await open(prefix, client)).close()
      await produceAt(`${prefix}jobs`, Date.now() - 48 * HOUR_MS, 500)
      const broker = await open(prefix, client)
      await broker.submit('jobs', Buffer.from('young'))
      const [first] = await takeAll(await broker.openQueue('jobs'), 1)
      expect(first).toBe('young')
      await broker.close()
    },
  )

  it('refuses a share group while the classic group of the same name has members', async () => {
    const prefix = `${newId('t', 8)}.`
    await (await open(prefix, 'share')).close()
    await withOldConsumer(prefix, async () => {
      const opening = open(prefix, 'share').then(async (broker) => broker.close())
      await expect(opening).rejects.toThrow(`Group ${prefix}jobs has members of a classic consumer group`)
    })
    const said: string[] = []
    const broker = await open(prefix, 'share', said)
    expect(said.join()).toContain('empty classic group deleted; its name is needed for a share group')
    await broker.submit('jobs', Buffer.from('taken'))
    expect(await takeAll(await broker.openQueue('jobs'), 1)).toContain('taken')
    await broker.close()
  })
})

describe.skipIf(!kafka)('a queue with three workers in a classic group', () => {
  it('delivers calls to each of the workers', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const settings = { KAFKA_CLIENT: 'classic' }
    const ingress = await fleet.start('ingress', settings)
    const workers: number[] = []
    for (let i = 0; i < 3; i++) {
      const port = await freePort()
      await fleet.start('inference', { ...settings, METRICS_PORT: String(port) })
      workers.push(port)
    }
    const call = async (index: number) => {
      const body = { model: 'echo-1', messages: [{ role: 'user', content: `call ${index}` }] }
      return (await fleet.post(ingress, '/v1/chat/completions', body)).status
    }
    let count = 0
    const served = async () => {
      const statuses = await Promise.all(Array.from({ length: 30 }, () => call(count++)))
      expect(new Set(statuses)).toEqual(new Set([200]))
      return await Promise.all(workers.map(attemptsOf))
    }
    // A new member receives partitions only after the other members have rejoined. The test therefore repeats the calls until each worker
    // has run some.
    const counts = await until(async () => {
      const each = await served()
      return each.every((attempts) => attempts > 0) ? each : undefined
    }, WITHIN)
    const before = counts
    await served()
    const after = await Promise.all(workers.map(attemptsOf))
    for (const [index, attempts] of after.entries()) expect(attempts - (before[index] ?? 0)).toBeGreaterThan(2)
  }, 120_000)
})

describe.skipIf(!kafka)('a classic group whose members join and leave', () => {
  it('delivers each record once if the consumer acknowledges the record immediately', async () => {
    const broker = await open(`${newId('t', 8)}.`, 'classic')
    const counts = new Map<string, number>()
    /** Starts a member that takes one record at a time. Further records therefore wait inside the member when a rebalance begins. */
    const startMember = async () => {
      const queue = await broker.openQueue('jobs')
      const closing = new AbortController()
      const working = (async () => {
        while (!closing.signal.aborted) {
          for (const delivery of await queue.take(1, closing.signal)) {
            const text = String(delivery.value)
            counts.set(text, (counts.get(text) ?? 0) + 1)
            delivery.acknowledge()
          }
          await sleep(4)
        }
        await queue.close()
      })()
      return {
        async stop() {
          closing.abort()
          await working
        },
      }
    }
    const [first, second] = await Promise.all([startMember(), startMember()])
    await broker.submit('jobs', Buffer.from('0'))
    await until(() => counts.size === 1, WITHIN)
    const texts = Array.from({ length: RECORDS }, (_, index) => String(index + 1))
    await Promise.all(texts.map((text) => broker.submit('jobs', Buffer.from(text))))
    await until(() => counts.size > RECORDS / 8, WITHIN)
    const third = await startMember()
    await until(() => counts.size > RECORDS / 2, WITHIN)
    await first.stop()
    await until(() => counts.size === RECORDS + 1, WITHIN)
    await until(async () => (await broker.lag('jobs')) === 0, WITHIN)
    expect([...counts].filter(([, count]) => count > 1)).toEqual([])
    await Promise.all([second.stop(), third.stop()])
    await broker.close()
  }, 120_000)

  it('gives a new consumer the membership of an earlier consumer that failed to leave', async () => {
    const prefix = `${newId('t', 8)}.`
    const broker = await open(prefix, 'classic')
    const membership = { id: null }
    const join = async () => {
      const consumer = createKafkaJs({ ...CLIENT, brokers: [kafka ?? ''] }).consumer({
        groupId: `${prefix}group`,
        partitionAssigners: [assignAfter(async () => undefined, membership)],
      })
      const joined = new Promise<string>((resolve) =>
        consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => resolve(payload.memberId)),
      )
      await consumer.connect()
      await consumer.subscribe({ topics: [`${prefix}jobs`], fromBeginning: true })
      await consumer.run({ eachMessage: async () => undefined })
      return { consumer, id: await joined }
    }
    const first = await join()
    const Group = createRequire(import.meta.url)('kafkajs/src/consumer/consumerGroup')
    const leave = vi.spyOn(Group.prototype, 'leave').mockRejectedValue(new Error('the coordinator is dead'))
    await first.consumer.disconnect()
    leave.mockRestore()
    const second = await join()
    expect(second.id).toBe(first.id)
    await second.consumer.disconnect()
    await broker.close()
  }, 120_000)
})

describe('the readiness check of a worker without jobs', () => {
  it('fails while jobs are queued and slots are free, and recovers when the worker receives a job', async () => {
    vi.useFakeTimers()
    const taker = { taken: 7, running: 0 }
    let lag = 0
    const starvation = new Starvation(taker, 4, async () => lag)
    try {
      await vi.advanceTimersByTimeAsync(60_000)
      expect(starvation.problems('code')).toEqual([])
      lag = 12
      await vi.advanceTimersByTimeAsync(10_000)
      expect(starvation.problems('code')).toEqual([])
      await vi.advanceTimersByTimeAsync(10_000)
      expect(starvation.problems('code').join()).toMatch(/free slots but received none of the 12 queued jobs for 1\d s/)
      taker.running = 4
      await vi.advanceTimersByTimeAsync(5_000)
      expect(starvation.problems('code')).toEqual([])
      taker.running = 0
      await vi.advanceTimersByTimeAsync(20_000)
      expect(starvation.problems('code')).toHaveLength(1)
      taker.taken++
      await vi.advanceTimersByTimeAsync(5_000)
      expect(starvation.problems('code')).toEqual([])
    } finally {
      starvation.close()
      vi.useRealTimers()
    }
  })
})

/** Number of attempts that a worker has run, read from its metrics. */
async function attemptsOf(port: number): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text()
  return Number(/^sluice_attempts_total\{.*outcome="completed".*\} (\d+)$/m.exec(text)?.[1] ?? 0)
}

const CLIENT = { client: 'classic', prefix: '', topics: [], clientId: 'test', onProblem: () => undefined } as const

/** Writes records with old timestamps into a topic. */
async function produceAt(topic: string, ms: number, count: number): Promise<void> {
  // A broker refuses records for some milliseconds after the creation of a topic.
  const producer = createKafkaJs({ ...CLIENT, brokers: [kafka ?? ''] }).producer({ retry: { retries: 10 } })
  await producer.connect()
  const messages = Array.from({ length: count }, (_, i) => ({ value: `old ${i}`, timestamp: String(ms), partition: 0 }))
  await producer.send({ topic, messages })
  await producer.disconnect()
}

/** Runs `during` while a member of the old classic group is connected. Earlier versions used this group, whose name is the name of the topic. */
async function withOldConsumer(prefix: string, during: () => Promise<void>): Promise<void> {
  const name = `${prefix}jobs`
  const consumer = createKafkaJs({ ...CLIENT, brokers: [kafka ?? ''] }).consumer({
    groupId: name,
    partitionAssigners: [kafkajs.PartitionAssigners.roundRobin],
  })
  const joined = new Promise((resolve) => consumer.on(consumer.events.GROUP_JOIN, resolve))
  await consumer.connect()
  await consumer.subscribe({ topics: [name], fromBeginning: true })
  await consumer.run({ eachMessage: async () => undefined })
  await joined
  await during()
  await consumer.disconnect()
}
