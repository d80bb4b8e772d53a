/** Unit tests for parts of the Kafka adapters that run without a broker. */
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { ClassicPartition } from '#shared/broker/kafka/classic/partition.ts'
import { youngestOrEnd } from '#shared/broker/kafka/classic/queue.ts'
import { LATEST } from '#shared/broker/kafka/offsets.ts'
import { Supervisor } from '#shared/broker/kafka/options.ts'
import { type BatchFailure, CoalescingSender, type OutgoingBatch, refusedRecord } from '#shared/broker/kafka/sender.ts'
import { checkShareGroups, type ShareGroupAdmin } from '#shared/broker/kafka/share/groups.ts'
import { checkTopics } from '#shared/broker/kafka/topics.ts'
import { until } from '../../support/stack.ts'

const ROOMY = { batchBytesMax: 1_000_000 }

describe('the batching Kafka producer', () => {
  it('has one request in flight, and sends all records that arrive meanwhile in the next request', async () => {
    const broker = scriptedBroker()
    const first = broker.send(0, 'a')
    await until(() => broker.calls.length === 1)
    const rest = ['b', 'c', 'd'].map((text) => broker.send(0, text))
    broker.answer()
    await first
    await until(() => broker.calls.length === 2)
    broker.answer()
    await Promise.all(rest)
    expect(broker.calls).toEqual([['0: a'], ['0: b c d']])
  })

  it('sends records to one partition leader while another leader does not respond', async () => {
    const sent: number[] = []
    const produce = async (batches: readonly OutgoingBatch[]) => {
      if (batches.some(({ partition }) => partition === 0)) return await new Promise<never>(() => undefined)
      sent.push(...batches.map(({ partition }) => partition))
      return batches.map(() => undefined)
    }
    const sender = new CoalescingSender(
      produce,
      (_, partition) => partition % 2,
      1_000_000,
      () => undefined,
    )
    const send = (partition: number) => sender.send('t', partition, { key: undefined, value: Buffer.from('a') }, ROOMY)
    const hung = send(0).catch((error: unknown) => error)
    await Promise.all([send(1), send(3)])
    await send(1)
    expect(sent).toEqual([1, 3, 1])
    await sender.close(0)
    expect(await hung).toMatchObject({ code: 'overloaded' })
  })

  it('closes a batch at its maximum size, and sends a larger record in a batch of its own', async () => {
    const broker = scriptedBroker({ batchBytesMax: 250 })
    const sends = ['a', 'b', 'x'.repeat(500), 'c'].map((text) => broker.send(0, text))
    await broker.answerUntil(Promise.all(sends))
    expect(broker.calls).toEqual([['0: a b'], [`0: ${'x'.repeat(500)}`], ['0: c']])
  })

  it('retries a failed batch before later records of its partition, while other partitions continue', async () => {
    const broker = scriptedBroker()
    const stuck = broker.send(0, 'a')
    const other = broker.send(1, 'p')
    await until(() => broker.calls.length === 1)
    const later = [broker.send(0, 'b'), broker.send(1, 'q')]
    broker.answer([{ error: new Error('no leader'), canRetry: true }, undefined])
    await other
    await broker.answerUntil(Promise.all([stuck, ...later]))
    expect(broker.sentTo(0)).toEqual(['0: a', '0: a', '0: b'])
    expect(broker.sentTo(1)).toEqual(['1: p', '1: q'])
  })

  it('fails a record with overloaded at its deadline, and does not retry the record', async () => {
    const broker = scriptedBroker()
    const late = broker.send(0, 'late', 50)
    const patient = broker.send(0, 'patient')
    await until(() => broker.calls.length === 1)
    await expect(late).rejects.toMatchObject({ code: 'overloaded' })
    broker.answer([{ error: new Error('away'), canRetry: true }])
    await broker.answerUntil(patient)
    expect(broker.sentTo(0)).toEqual(['0: late patient', '0: patient'])
  })

  it('fails a record with overloaded after a permanent error, and sends later records', async () => {
    const broker = scriptedBroker()
    const refused = broker.send(0, 'a')
    await until(() => broker.calls.length === 1)
    broker.answer([{ error: new Error('not allowed'), canRetry: false }])
    await expect(refused).rejects.toMatchObject({ code: 'overloaded' })
    await broker.answerUntil(broker.send(0, 'b'))
  })

  it.each([1, 2, 5, 8])('splits a refused batch of 8 until only record %i, which Kafka refuses, fails', async (bad) => {
    const broker = scriptedBroker()
    const first = broker.send(0, 'first')
    await until(() => broker.calls.length === 1)
    const texts = Array.from({ length: 8 }, (_, index) => String(index + 1))
    const sends = Promise.allSettled(texts.map((text) => broker.send(0, text)))
    broker.answer()
    await first
    const results = await broker.judgeUntil(sends, (call) => call.slice('0: '.length).split(' ').includes(String(bad)))
    expect(results.map(({ status }) => status)).toEqual(
      texts.map((t) => (t === String(bad) ? 'rejected' : 'fulfilled')),
    )
    expect(results[bad - 1]).toMatchObject({ reason: { code: 'request_too_large' } })
    // After a refusal, the sender splits the batch into smaller ones, at most three times. When the bad record is alone in a batch, it is not
    // sent again.
    expect(broker.calls.flat().filter((call) => call === `0: ${bad}`)).toHaveLength(1)
    expect(broker.calls.length).toBeLessThan(14)
  })

  it('refuses records with overloaded while its buffer is full, and accepts them after a delivery', async () => {
    const broker = scriptedBroker({ bytesMax: 350 })
    const kept = [broker.send(0, 'a'), broker.send(0, 'b'), broker.send(0, 'c')]
    await expect(broker.send(0, 'd')).rejects.toMatchObject({ code: 'overloaded', retryAfterMs: 1_000 })
    await broker.answerUntil(Promise.all(kept))
    await broker.answerUntil(broker.send(0, 'd'))
  })
})

describe('the start offset of a classic group', () => {
  const FROM_MS = 1_000
  it.each([
    ['a partition without records', [], 0],
    ['a partition with old records only', [500, 900], 2],
    ['a partition with new records', [500, 1_200, 1_300], 1],
  ])('skips records that are older than the minimum retention (%s)', async (_name, times, expected) => {
    expect(await youngestOrEnd(partitionOf(times).read, FROM_MS)).toBe(expected)
  })

  it('includes a record that is appended between the two requests for offsets', async () => {
    const partition = partitionOf([500])
    const read = async (timestamp: bigint) => {
      const offset = await partition.read(timestamp)
      partition.times.push(2_000)
      return offset
    }
    expect(await youngestOrEnd(read, FROM_MS)).toBe(1)
  })

  function partitionOf(timestamps: readonly number[]) {
    const times = [...timestamps]
    const read = async (timestamp: bigint) =>
      BigInt(timestamp === LATEST ? times.length : times.findIndex((ms) => ms >= Number(timestamp)))
    return { times, read }
  }
})

describe('one partition of a classic group', () => {
  it('commits the offset of the first unacknowledged record, whatever the order of acknowledgements', () => {
    const partition = new ClassicPartition()
    partition.add(records(5, 6, 7))
    partition.take(3)
    partition.finish(6)
    expect(partition.toCommit).toBeUndefined()
    partition.finish(5)
    expect(partition.toCommit).toBe(7)
    partition.committed(7)
    expect(partition.toCommit).toBeUndefined()
    partition.finish(7)
    expect(partition.toCommit).toBe(8)
  })

  it('redelivers after a rebalance only records that were not taken before', () => {
    const partition = new ClassicPartition()
    partition.add(records(0, 1, 2, 3))
    partition.take(3)
    partition.finish(1)
    partition.restart()
    partition.add(records(0, 1, 2, 3))
    expect(partition.take(9).map(({ offset }) => offset)).toEqual([3])
    partition.finish(0)
    expect(partition.toCommit).toBe(2)
  })

  it('commits after a rebalance only offsets of records that were fetched again', () => {
    const partition = new ClassicPartition()
    partition.add(records(0, 1, 2))
    partition.take(3)
    partition.restart()
    for (const offset of [0, 1, 2]) partition.finish(offset)
    expect(partition.toCommit).toBeUndefined()
    partition.add(records(0))
    expect(partition.toCommit).toBe(1)
  })

  it('advances the committed offset past offsets without a record', () => {
    const partition = new ClassicPartition()
    partition.add(records(0, 4))
    partition.take(2)
    partition.finish(0)
    expect(partition.toCommit).toBe(4)
  })

  it('redelivers a released record before others, with delivery count 2', () => {
    const partition = new ClassicPartition()
    partition.add(records(0, 1))
    const [first] = partition.take(1)
    if (first) partition.putBack(first)
    expect(partition.take(2).map(({ offset, deliveryCount }) => [offset, deliveryCount])).toEqual([
      [0, 2],
      [1, 1],
    ])
  })
})

describe('the supervisor of a Kafka consumer', () => {
  it('reports a fatal error after five failures in a row, and resets the count after a success', () => {
    const onFatal = vi.fn()
    const supervisor = new Supervisor('test', { onProblem: () => undefined, onFatal }, () => false)
    for (let i = 0; i < 4; i++) supervisor.failed(new Error('broken'))
    supervisor.progress()
    for (let i = 0; i < 4; i++) supervisor.failed(new Error('broken'))
    expect(onFatal).not.toHaveBeenCalled()
    supervisor.failed(new Error('the fifth'))
    expect(onFatal).toHaveBeenCalledExactlyOnceWith(new Error('the fifth'))
  })

  it('retries forever while no broker responds, with delays of at most one second', () => {
    const [onFatal, onProblem] = [vi.fn(), vi.fn()]
    const supervisor = new Supervisor('test', { onProblem, onFatal }, () => true)
    const delays = Array.from({ length: 100 }, () => supervisor.failed(new Error('away')))
    expect(Math.max(...delays)).toBeLessThanOrEqual(1_000)
    expect(onFatal).not.toHaveBeenCalled()
    expect(onProblem).toHaveBeenCalledOnce()
  })

  it('logs a transient failure once, and a second time if the failure lasts for a minute', () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const onProblem = vi.fn()
    const supervisor = new Supervisor('test', { onProblem }, () => true)
    for (let i = 0; i < 5; i++) {
      supervisor.failed(new Error('no leader yet'))
      supervisor.progress()
    }
    const expected = expect.stringContaining('expected')
    expect(onProblem.mock.calls).toEqual([
      [expected, { what: 'test', error: 'Error: no leader yet', is_transient: true }],
    ])
    supervisor.failed(new Error('away'))
    vi.advanceTimersByTime(59_000)
    supervisor.failed(new Error('away'))
    expect(onProblem).toHaveBeenCalledOnce()
    vi.advanceTimersByTime(1_000)
    for (let i = 0; i < 3; i++) supervisor.failed(new Error('away'))
    expect(onProblem.mock.calls.slice(1)).toEqual([
      [expect.stringContaining('for a minute'), { what: 'test', error: 'Error: away', failing_ms: 60_000 }],
    ])
    supervisor.progress()
    supervisor.failed(new Error('no leader'))
    expect(onProblem.mock.lastCall).toEqual([expected, expect.objectContaining({ is_transient: true })])
  })

  it('logs every permanent failure', () => {
    const onProblem = vi.fn()
    const supervisor = new Supervisor('test', { onProblem }, () => false)
    for (let i = 0; i < 3; i++) supervisor.failed(new Error('broken'))
    expect(onProblem.mock.calls).toEqual(Array(3).fill([expect.any(String), { what: 'test', error: 'Error: broken' }]))
  })
})

describe('the Kafka check at the start', () => {
  it('refuses a single broker whose replication settings would block share groups, naming each setting', async () => {
    const brokerSettings = {
      'share.coordinator.state.topic.replication.factor': '3',
      'share.coordinator.state.topic.min.isr': '2',
      'offsets.topic.replication.factor': '3',
    }
    const admin = scriptedAdmin({ brokerSettings, groups: { jobs: { 'share.auto.offset.reset': 'earliest' } } })
    const problems = [...(await checkTopics(admin, bootOptions)), ...(await checkShareGroups(admin, bootOptions))]
    expect(problems.map(({ remediation }) => remediation.split(' ')[1])).toEqual([
      'offsets.topic.replication.factor=1',
      'share.coordinator.state.topic.replication.factor=1',
      'share.coordinator.state.topic.min.isr=1',
    ])
  })

  const WRONG = { 'cleanup.policy': 'compact,delete', 'max.message.bytes': '50000', 'retention.ms': '60000' }
  const needy = { name: 'jobs', partitions: 4, retentionMs: 3_600_000, kind: 'queue' } as const

  it('corrects wrong settings of a topic, and logs their previous values', async () => {
    const topicSettings: Record<string, string> = { ...WRONG, 'segment.ms': '7' }
    const said: unknown[] = []
    const onProblem = (_message: string, { before }: Record<string, unknown>) => said.push(before)
    expect(await checkTopics(scriptedAdmin({ topicSettings }), { ...bootOptions, topics: [needy], onProblem })).toEqual(
      [],
    )
    expect(topicSettings).toEqual({
      'cleanup.policy': 'delete',
      'max.message.bytes': '1048588',
      'retention.ms': '3600000',
      'segment.ms': '7',
    })
    expect(said.join()).toContain('cleanup.policy=compact,delete')
  })

  it('returns one shell command for each topic setting that only an operator can change', async () => {
    const admin = scriptedAdmin({ topicSettings: { ...WRONG }, isReadOnly: true })
    const problems = await checkTopics(admin, { ...bootOptions, topics: [needy] })
    expect(problems.map(({ remediation }) => remediation.split(' ').at(-1))).toEqual([
      '4',
      'cleanup.policy=delete',
      'max.message.bytes=1048588',
      'retention.ms=3600000',
    ])
    expect(problems[0]?.problem).toBe(
      'Topic jobs has 1 partitions, but 4 are needed, and that could not be changed: not allowed',
    )
  })

  it('warns of a topic retention between the required minimum and the recommended value', async () => {
    const admin = scriptedAdmin({ topicSettings: { 'retention.ms': '60000' }, isReadOnly: true })
    const said: unknown[] = []
    const onProblem = (_message: string, { problem }: Record<string, unknown>) => said.push(problem)
    const topic = { ...needy, partitions: 1, retentionMsMin: 60_000 }
    expect(await checkTopics(admin, { ...bootOptions, topics: [topic], onProblem })).toEqual([])
    expect(said.join()).toContain('retains records for 60000 ms, but 3600000 are needed')
    expect(await checkTopics(admin, { ...bootOptions, topics: [{ ...topic, retentionMsMin: 60_001 }] })).toHaveLength(1)
  })

  it('changes the start offset of a share group from the end to the beginning of the queue', async () => {
    const admin = scriptedAdmin({ groups: { jobs: { 'share.auto.offset.reset': 'latest' } } })
    expect(await checkShareGroups(admin, bootOptions)).toEqual([])
    expect(await admin.groupSettings('jobs')).toEqual(new Map([['share.auto.offset.reset', 'earliest']]))
  })

  it('sets the start offset of a share group to the age of the oldest record that may be unprocessed', async () => {
    const admin = scriptedAdmin({ groups: { jobs: {} } })
    const topics = [{ ...needy, retentionMsMin: 3_600_000 }]
    expect(await checkShareGroups(admin, { ...bootOptions, topics })).toEqual([])
    const settings = await admin.groupSettings('jobs')
    expect(settings.get('share.auto.offset.reset')).toBe('by_duration:PT3600S')
  })

  it('deletes a classic group with the name of the share group if the classic group is empty', async () => {
    const earliest = { jobs: { 'share.auto.offset.reset': 'earliest' } }
    const deleted: string[] = []
    const empty = scriptedAdmin({ groups: earliest, classicGroup: 'EMPTY', deleted })
    expect(await checkShareGroups(empty, bootOptions)).toEqual([])
    expect(deleted).toEqual(['deleted'])
    const [problem] = await checkShareGroups(scriptedAdmin({ groups: earliest, classicGroup: 'STABLE' }), bootOptions)
    expect(problem?.problem).toContain('Group jobs has members of a classic consumer group')
    expect(problem?.remediation).toContain('KAFKA_CLIENT=classic')
  })
})

const bootOptions = {
  brokers: ['kafka:9092'],
  client: 'share',
  prefix: '',
  topics: [{ name: 'jobs', partitions: 1, retentionMs: 1, kind: 'queue' }],
  clientId: 'test',
  onProblem: () => undefined,
} as const

interface ScriptedCluster {
  brokerSettings?: Record<string, string>
  groups?: Record<string, Record<string, string>>
  topicSettings?: Record<string, string>
  /** State of the classic group that has the same name as the share group; absent if there is none. */
  classicGroup?: string
  deleted?: string[]
  /** True if the client has no permission to change the settings of topics. */
  isReadOnly?: boolean
}

function scriptedAdmin(cluster: ScriptedCluster): ShareGroupAdmin {
  const {
    brokerSettings = {},
    groups = {},
    topicSettings = {},
    isReadOnly = false,
    classicGroup,
    deleted = [],
  } = cluster
  return {
    brokerCount: async () => 1,
    partitions: async (topics) => new Map(topics.filter((topic) => topic === 'jobs').map((topic) => [topic, 1])),
    topicSettings: async () => new Map(Object.entries(topicSettings)),
    brokerSettings: async () => new Map(Object.entries(brokerSettings)),
    groupSettings: async (group) => new Map(Object.entries(groups[group] ?? {})),
    createTopic: async () => undefined,
    setTopic: async (_topic, settings) => {
      if (isReadOnly) throw new Error('not allowed')
      Object.assign(topicSettings, settings)
    },
    addPartitions: async () => {
      if (isReadOnly) throw new Error('not allowed')
    },
    classicGroupState: async () => classicGroup,
    deleteGroup: async () => {
      deleted.push('deleted')
    },
    setGroup: async (group, setting, value) => {
      groups[group] = { ...groups[group], [setting]: value }
    },
  }
}

/** Opens a sender for batches of records. The test decides how the broker answers each request. */
function scriptedBroker({ bytesMax = 1_000_000, batchBytesMax = ROOMY.batchBytesMax } = {}) {
  const calls: string[][] = []
  let resolve: ((failures: readonly BatchFailure[]) => void) | undefined
  const produce = (batches: readonly OutgoingBatch[]) => {
    calls.push(batches.map(({ partition, records }) => `${partition}: ${records.map((r) => r.value).join(' ')}`))
    return new Promise<readonly BatchFailure[]>((done) => {
      resolve = done
    })
  }
  const sender = new CoalescingSender(
    produce,
    () => 0,
    bytesMax,
    () => undefined,
  )
  const answer = (failures: readonly BatchFailure[] = []) => {
    resolve?.(failures)
    resolve = undefined
  }
  return {
    calls,
    answer,
    sentTo: (partition: number) => calls.flat().filter((call) => call.startsWith(`${partition}:`)),
    send: (partition: number, text: string, timeoutMs?: number) => {
      const record = { key: undefined, value: Buffer.from(text) }
      return sender.send('t', partition, record, { batchBytesMax, ...(timeoutMs !== undefined && { timeoutMs }) })
    },
    /** Answers all requests until the promise settles. A batch is refused if it contains an invalid record. */
    judgeUntil: async <T>(promise: Promise<T>, isRefused: (call: string) => boolean): Promise<T> => {
      let isSettled = false
      const settled = promise.finally(() => {
        isSettled = true
      })
      await until(() => {
        const last = calls.at(-1) ?? []
        const error = refusedRecord(new Error('too large'))
        answer(last.map((call) => (isRefused(call) ? { error, canRetry: false, isOfRecord: true } : undefined)))
        return isSettled
      })
      return await settled
    },
    /** Accepts all requests until the promise settles. */
    answerUntil: async (promise: Promise<unknown>) => {
      let isSettled = false
      const settled = promise.finally(() => {
        isSettled = true
      })
      await until(() => {
        answer()
        return isSettled
      })
      return settled
    },
  }
}

function records(...offsets: number[]) {
  return offsets.map((offset) => ({ partition: 0, offset, value: Buffer.from(String(offset)), deliveryCount: 1 }))
}
