/** Tests of failures that only a real Kafka can have: outage, restart, crash, lost consumer, wrong settings. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, inject, it, vi } from 'vitest'
import type { Broker, Delivery, QueueConsumer, Topic } from '#shared/broker/broker.ts'
import { type KafkaOptions, openKafkaBroker } from '#shared/broker/kafka/kafka.ts'
import { newId } from '#shared/lib/id.ts'
import {
  alterTopic,
  type LocalKafka,
  startLocalKafka,
  topicSettings,
  whyNoLocalKafka,
} from '../../support/processes/kafka.ts'
import { until } from '../../support/stack.ts'

const HOUR_MS = 3_600_000
const JOBS: Topic = { name: 'jobs', partitions: 1, retentionMs: HOUR_MS, kind: 'queue' }
const REPLIES: Topic = { name: 'replies', partitions: 2, retentionMs: HOUR_MS, kind: 'channel' }
const HOLDER = join(import.meta.dirname, '../../support/jobs/hold-records.ts')
const WITHIN = { withinMs: 25_000 }
/** Heartbeat interval of members of a share group: Kafka's default. */
const HEARTBEAT_MS = 5_000
const never = new AbortController().signal

const kafka = inject('kafka')
const noLocal = kafka ? await whyNoLocalKafka() : 'no Kafka'
if (noLocal && process.env.CI === 'true') throw new Error(`The restart tests cannot run: ${noLocal}`)

const opened: Broker[] = []
let ended = new AbortController()
afterEach(async () => {
  ended.abort()
  ended = new AbortController()
  await Promise.all(opened.splice(0).map((broker) => broker.close()))
})

async function open(options: Partial<KafkaOptions> = {}): Promise<Broker> {
  const broker = await openKafkaBroker({
    brokers: [kafka ?? ''],
    client: 'share',
    prefix: `${newId('t', 8)}.`,
    topics: [JOBS, REPLIES],
    clientId: 'test',
    onProblem: () => undefined,
    ...options,
  })
  opened.push(broker)
  return broker
}

describe.skipIf(!kafka)('a share group', () => {
  it('delivers records to more consumers than the queue has partitions', async () => {
    const broker = await open()
    const members = await Promise.all(Array.from({ length: 4 }, () => broker.openQueue('jobs')))
    const servedBy = new Set<number>()
    // Each of the four members must receive one of the four records, because a member with an unacknowledged record gets no other one.
    const working = members.map((member, index) => takeOne(member).then(() => servedBy.add(index)))
    await Promise.all(Array.from({ length: 4 }, (_, i) => broker.submit('jobs', Buffer.from(String(i)))))
    await Promise.all(working)
    expect(servedBy.size).toBe(4)
  })

  it('redelivers the records of a killed process within 15 s, long before their locks expire', async () => {
    const prefix = `${newId('t', 8)}.`
    const broker = await open({ prefix })
    const survivor = await broker.openQueue('jobs')
    await warmUp(broker, survivor)
    const args = [HOLDER, kafka ?? '', prefix, 'share', '3']
    const holder = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
    try {
      const held = once(holder.stdout, 'data')
      for (const text of ['a', 'b', 'c']) await broker.submit('jobs', Buffer.from(text))
      await held
    } finally {
      holder.kill('SIGKILL')
    }
    const taken: string[] = []
    await until(
      async () => {
        for (const delivery of await survivor.take(3, never)) {
          taken.push(String(delivery.value))
          expect(delivery.deliveryCount).toBe(2)
          delivery.acknowledge()
        }
        return taken.length === 3
      },
      { withinMs: 15_000 },
    )
    expect(taken.toSorted()).toEqual(['a', 'b', 'c'])
  })

  it('does not deliver records in progress to consumers that join', async () => {
    const topics = [{ ...JOBS, partitions: 4 }, REPLIES]
    const broker = await open({ topics })
    const first = await broker.openQueue('jobs')
    await warmUp(broker, first)
    await Promise.all(Array.from({ length: 20 }, (_, i) => broker.submit('jobs', Buffer.from(`early ${i}`))))
    const early: Delivery[] = []
    await until(async () => early.push(...(await first.take(20 - early.length, never))) && early.length === 20, WITHIN)
    const seen = new Set<string>()
    const joined = [new Set<string>(), new Set<string>(), new Set<string>()]
    const working = joined.map(async (served) => work(await broker.openQueue('jobs'), seen, served))
    const traffic = submitSteadily(broker)
    await until(() => joined.every((served) => served.size > 0), WITHIN)
    // The test waits for the first member's next heartbeat. The response to it reassigns some of the member's partitions to the other members.
    const heardAt = Date.now() + HEARTBEAT_MS + 500
    await until(() => Date.now() > heardAt, WITHIN)
    for (const delivery of early) delivery.acknowledge()
    traffic.stop()
    const draining = work(first, seen)
    await until(async () => (await broker.lag('jobs')) === 0, WITHIN)
    ended.abort()
    await Promise.all([...working, draining])
    expect([...seen].filter((text) => text.startsWith('early'))).toEqual([])
  })

  it('delivers the first record of an unused queue to a new group, without OFFSET_NOT_AVAILABLE errors', async () => {
    const onProblem = vi.fn()
    const broker = await open({ topics: [{ ...JOBS, retentionMsMin: HOUR_MS }, REPLIES], onProblem })
    const member = await broker.openQueue('jobs')
    const taken = takeOne(member)
    // The member polls its empty partition many times in this interval. No poll may report OFFSET_NOT_AVAILABLE.
    const lookedUntil = Date.now() + HEARTBEAT_MS
    await until(() => Date.now() > lookedUntil, WITHIN)
    const failures = onProblem.mock.calls.filter(([, fields]) => /OFFSET_NOT_AVAILABLE/.test(fields?.error))
    expect(failures).toEqual([])
    await broker.submit('jobs', Buffer.from('the first'))
    await taken
  })

  it('is used if KAFKA_CLIENT is auto and the broker supports share groups', async () => {
    expect((await open({ client: 'auto' })).name).toBe('kafka (share groups)')
  })
})

describe.skipIf(!kafka).each(['share', 'classic'] as const)(
  'a record that Kafka refuses as too large, client %s',
  (client) => {
    it('fails with request_too_large, while all other records of its batch are stored', async () => {
      const prefix = `${newId('t', 8)}.`
      const broker = await open({ client, prefix })
      const seen: string[] = []
      await broker.receive('replies', [0], ({ value }) => seen.push(`${value[0]}:${value.length}`))
      await alterTopic(kafka ?? '', `${prefix}replies`, { 'max.message.bytes': '20000' })
      const send = (id: number, bytes: number) => broker.send('replies', 0, 'k', Buffer.alloc(bytes, id))
      await until(
        async () =>
          send(0, 30_000).then(
            () => false,
            () => true,
          ),
        WITHIN,
      )
      seen.length = 0
      const sizes = [100, 9_000, 30_000, 9_000, 9_000, 100, 25_000, 100]
      const results = await Promise.allSettled(sizes.map((bytes, index) => send(index + 1, bytes)))
      for (const [index, result] of results.entries()) {
        const isTaken = Number(sizes[index]) < 20_000
        expect(result).toMatchObject(isTaken ? { status: 'fulfilled' } : { reason: { code: 'request_too_large' } })
      }
      await send(9, 100)
      await until(() => seen.at(-1) === '9:100', WITHIN)
      expect(seen).toEqual(['1:100', '2:9000', '4:9000', '5:9000', '6:100', '8:100', '9:100'])
    })
  },
)

describe.skipIf(!kafka)('the Kafka check at the start', () => {
  it.each(['share', 'classic'] as const)(
    'corrects wrong topic settings and adds missing partitions (%s)',
    async (client) => {
      const prefix = `${newId('t', 8)}.`
      await open({ client, prefix, topics: [JOBS, { ...REPLIES, partitions: 1, retentionMs: 60_000 }] })
      const wrong = { 'cleanup.policy': 'compact', 'max.message.bytes': '50000' }
      await alterTopic(kafka ?? '', `${prefix}jobs`, wrong)
      // The test waits, because the controller responds before the broker applies the change.
      const isWrong = async () =>
        expect.objectContaining(wrong).asymmetricMatch(await topicSettings(kafka ?? '', `${prefix}jobs`))
      await until(isWrong, WITHIN)
      const said: unknown[] = []
      const broker = await open({ client, prefix, onProblem: (_message, { before }) => said.push(before) })
      expect(said.join()).toContain(`Topic ${prefix}replies has 1 partitions, but 2 are needed`)
      expect(said.join()).toContain(`Topic ${prefix}replies retains records for 60000 ms, but ${HOUR_MS} are needed`)
      expect(said.join()).toContain(`Topic ${prefix}jobs has cleanup.policy=compact`)
      expect(said.join()).toContain(`Topic ${prefix}jobs accepts records of at most 50000 bytes`)
      // This record can be stored only with the corrected settings: it has no key, which a compacted topic refuses, and exceeds the previous
      // maximum size.
      await until(async () =>
        broker.submit('jobs', Buffer.alloc(100_000)).then(
          () => true,
          () => false,
        ),
      )
      await broker.send('replies', 1, 'k', Buffer.from('on the new partition'))
      const corrected = { 'retention.ms': String(HOUR_MS), 'segment.ms': '60000', 'cleanup.policy': 'delete' }
      await until(async () =>
        expect.objectContaining(corrected).asymmetricMatch(await topicSettings(kafka ?? '', `${prefix}replies`)),
      )
    },
  )

  it.each(['share', 'classic'] as const)(
    'fails with all problems and their shell commands if topics cannot be created (%s)',
    async (client) => {
      const many = (name: string) => ({ ...REPLIES, name, partitions: -5 })
      const opening = open({ client, topics: [JOBS, REPLIES, many('many'), many('more')] })
      const { message } = (await opening.catch((error: unknown) => error)) as Error
      expect(message).toMatch(/Topic \S+many does not exist and could not be created/)
      expect(message).toMatch(/Topic \S+more does not exist and could not be created/)
      expect(message).toContain('kafka-topics.sh --bootstrap-server')
    },
  )

  it('succeeds if several processes create the same topics concurrently', async () => {
    const prefix = `${newId('t', 8)}.`
    const clients = ['share', 'classic', 'share', 'classic'] as const
    const brokers = await Promise.all(clients.map((client) => open({ client, prefix })))
    expect(brokers.map(({ isReachable }) => isReachable)).toEqual([true, true, true, true])
  })

  it('fails if no server listens at the address', async () => {
    await expect(open({ brokers: ['127.0.0.1:1'] })).rejects.toThrow()
    await expect(open({ brokers: ['127.0.0.1:1'], client: 'classic' })).rejects.toThrow()
  })
})

describe.skipIf(noLocal !== undefined)('the Kafka client during an outage of the broker', () => {
  // The broker that all tests share. After a failed test, a new one is started.
  let started: LocalKafka | undefined
  let local: LocalKafka
  beforeEach(async () => {
    started ??= await startLocalKafka()
    local = started
  })
  const stop = async () => {
    await started?.stop()
    started = undefined
  }
  afterEach(async ({ task }) => {
    if (task.result?.state === 'fail') await stop()
  })
  afterAll(stop)

  it.each(['SIGTERM', 'SIGKILL'] as const)(
    'loses no accepted record, refuses new records, and recovers afterwards (%s)',
    async (signal) => {
      const loads = await Promise.all(
        (['share', 'classic'] as const).map((client) => openLoaded(client, local.address)),
      )
      await Promise.all(loads.map((load) => load.untilServed()))
      await local.down(signal)
      await Promise.all(loads.map((load) => load.untilRefused()))
      await local.resume()
      await Promise.all(loads.map((load) => load.untilServed()))
      await Promise.all(loads.map((load) => load.untilDrained()))
      ended.abort()
      for (const load of loads) await load.expectWhole()
    },
    180_000,
  )

  it('creates the topics again and recovers if the broker restarts without data', async () => {
    const load = await openLoaded('share', local.address)
    await load.untilServed()
    await local.down('SIGKILL')
    await load.untilRefused()
    await local.startEmpty()
    await load.untilServed()
    await load.stop()
  }, 180_000)

  it('buffers a bounded number of bytes, and refuses further records with overloaded', async () => {
    const broker = await open({ brokers: [local.address], sendBufferBytesMax: 100_000, closeTimeoutMs: 200 })
    await broker.send('replies', 0, 'k', Buffer.from('works'))
    await local.down('SIGKILL')
    await until(() => !broker.isReachable, WITHIN)
    const sends = Array.from({ length: 20 }, () => broker.send('replies', 0, 'k', Buffer.alloc(10_000)))
    const settled = Promise.allSettled(sends)
    const refused = await Promise.allSettled(sends.slice(-5))
    for (const result of refused) expect(result).toMatchObject({ status: 'rejected', reason: { code: 'overloaded' } })
    await broker.close()
    for (const result of await settled) expect(result.status).toBe('rejected')
  }, 60_000)
})

describe.skipIf(noLocal !== undefined)('the Kafka client in a cluster of three nodes', () => {
  it('loses no record while partition leaders and group coordinators move', async () => {
    await using cluster = await startLocalKafka(3)
    const topics = [
      { ...JOBS, partitions: 6 },
      { ...REPLIES, partitions: 6 },
    ]
    const broker = await open({ brokers: cluster.address.split(','), topics })
    const done = new Set<string>()
    const served = new Set<string>()
    const members = await Promise.all([broker.openQueue('jobs'), broker.openQueue('jobs')])
    const working = members.map((member) => work(member, done, served))
    const events = Array.from({ length: 6 }, (): number[] => [])
    // One receiver reads all partitions. When the leader of a partition changes, the receiver must continue at the new leader.
    await broker.receive('replies', [0, 1, 2, 3, 4, 5], ({ value }) => events[Number(value) % 6]?.push(Number(value)))
    const traffic = submitSteadily(broker)
    const sends: Promise<void>[] = []
    const sending = sendSteadily(broker, sends, (count) => count % 6)
    const everyPartitionServed = async () => {
      served.clear()
      const before = events.map(({ length }) => length)
      const isServed = () => served.size === 6 && events.every(({ length }, p) => length > (before[p] ?? 0) + 5)
      await until(isServed, { withinMs: 40_000 })
    }
    await everyPartitionServed()
    await cluster.down('SIGKILL', 2)
    await everyPartitionServed()
    expect(broker.isReachable).toBe(true)
    await cluster.resume(2)
    await cluster.down('SIGTERM', 3)
    await everyPartitionServed()
    await cluster.resume(3)
    await everyPartitionServed()

    traffic.stop()
    sending.stop()
    await Promise.all(sends)
    const accepted = await traffic.accepted()
    await until(() => accepted.every((text) => done.has(text)), { withinMs: 40_000 })
    await until(() => events.flat().length >= sends.length, WITHIN)
    ended.abort()
    await Promise.all(working)
    for (const [p, seen] of events.entries()) {
      expect(seen).toEqual(sends.map((_, index) => index).filter((index) => index % 6 === p))
    }
  }, 300_000)
})

/** Opens a broker, and starts a worker, a receiver, and steady traffic for both. */
async function openLoaded(client: 'share' | 'classic', address: string) {
  const broker = await open({ brokers: [address], client })
  const done = new Set<string>()
  const events: number[] = []
  const working = work(await broker.openQueue('jobs'), done)
  await broker.receive('replies', [1], ({ value }) => events.push(Number(value)))
  const traffic = submitSteadily(broker)
  const sends: Promise<void>[] = []
  const sending = sendSteadily(broker, sends)
  return {
    async untilServed() {
      await until(() => broker.isReachable, WITHIN)
      const [doneBefore, eventsBefore] = [done.size, events.length]
      await until(() => done.size > doneBefore + 20 && events.length > eventsBefore + 20, WITHIN)
    },
    async untilRefused() {
      await until(() => !broker.isReachable, WITHIN)
      await expect(broker.submit('jobs', Buffer.from('x'))).rejects.toMatchObject({ code: 'overloaded' })
    },
    async stop() {
      traffic.stop()
      sending.stop()
      await Promise.all(sends)
    },
    async untilDrained() {
      await this.stop()
      const accepted = await traffic.accepted()
      await until(() => accepted.every((text) => done.has(text)), WITHIN)
      await until(() => events.at(-1) === sends.length - 1, WITHIN)
    },
    async expectWhole() {
      await working
      // If the response to a send was lost, then the event may have been sent twice. Without the duplicates, all events must be present in order.
      const firsts = events.filter((value, index) => events.indexOf(value) === index)
      expect(firsts).toEqual(sends.map((_, index) => index))
      if (client === 'share') expect(events.length).toBe(sends.length)
    },
  }
}

async function takeOne(member: QueueConsumer): Promise<void> {
  await until(async () => (await member.take(1, never)).length > 0, WITHIN)
}

/** Sends one record through the queue and receives it. Afterwards the consumer group has assigned partitions to this member. */
async function warmUp(broker: Broker, queue: QueueConsumer): Promise<void> {
  await broker.submit('jobs', Buffer.from('warm'))
  await until(async () => {
    const deliveries = await queue.take(1, never)
    for (const delivery of deliveries) delivery.acknowledge()
    return deliveries.length > 0
  }, WITHIN)
  await until(async () => (await broker.lag('jobs')) === 0, WITHIN)
}

/** Fetches and acknowledges records until the test ends. */
async function work(member: QueueConsumer, done: Set<string>, served = new Set<string>()): Promise<void> {
  const { signal } = ended
  while (!signal.aborted) {
    for (const delivery of await member.take(10, signal)) {
      done.add(String(delivery.value))
      served.add(delivery.position.slice(0, delivery.position.indexOf('@')))
      delivery.acknowledge()
    }
  }
}

/** Submits a record every few milliseconds, and lists the records that the broker has accepted. */
function submitSteadily(broker: Broker) {
  const accepted: string[] = []
  const pending: Promise<void>[] = []
  let count = 0
  const timer = setInterval(() => {
    const text = `job ${count++}`
    const submitted = broker.submit('jobs', Buffer.from(text))
    pending.push(
      submitted.then(
        () => void accepted.push(text),
        () => undefined,
      ),
    )
  }, 5)
  const stop = () => clearInterval(timer)
  ended.signal.addEventListener('abort', stop)
  return {
    stop,
    accepted: async () => {
      await Promise.all(pending)
      return accepted
    },
  }
}

/** Sends a numbered event every few milliseconds. */
function sendSteadily(broker: Broker, sends: Promise<void>[], partition: (count: number) => number = () => 1) {
  const timer = setInterval(() => {
    const sent = broker.send('replies', partition(sends.length), 'k', Buffer.from(String(sends.length)))
    sent.catch(() => undefined) // Checked when the traffic has stopped.
    sends.push(sent)
  }, 5)
  const stop = () => clearInterval(timer)
  ended.signal.addEventListener('abort', stop)
  return { stop }
}
