/** Tests in which topics are deleted while the service runs, as an operator, a clean-up job or another fleet might do. */
import pino from 'pino'
import { describe, expect, inject, it } from 'vitest'
import type { Broker, Topic } from '#shared/broker/broker.ts'
import { openKafkaBroker } from '#shared/broker/kafka/kafka.ts'
import { REPLY_SHARDS } from '#shared/jobs/records.ts'
import { newId } from '#shared/lib/id.ts'
import { createTopic, deleteTopic } from '../../support/processes/kafka.ts'
import { type Stack, startStack, until } from '../../support/stack.ts'

const kafka = inject('kafka') ?? ''
const HOUR_MS = 3_600_000
const WITHIN = { withinMs: 40_000 }
/** Maximum duration of a call during the deletion. If the reply of a call is lost, then another worker must run the call within this time. */
const ANSWERED_MS = 30_000
const TOPICS = ['jobs.inference', 'jobs.inference.batch', 'replies', 'events', 'control', 'dead']

describe.skipIf(!kafka).each(['share', 'classic'] as const)(
  'a Kafka topic that is deleted under load, client %s',
  (client) => {
    it('is created again, and all calls end with status 200', async () => {
      const prefix = `${newId('t', 8)}.`
      const settings = { KAFKA_PREFIX: prefix, KAFKA_CLIENT: client, KAFKA_QUEUE_PARTITIONS: '2' }
      await using stack = await startStack({ kafka, settings })
      await until(async () => (await chat(stack, 'warm')).status === 200, WITHIN)
      for (const topic of TOPICS) {
        const load = startLoad(stack)
        await load.untilAnswered(10)
        await deleteTopic(kafka, `${prefix}${topic}`)
        await load.untilAnswered(20)
        const answers = await load.stop()
        const slow = answers.filter(({ tookMs }) => tookMs > ANSWERED_MS)
        expect(slow, `slow calls after ${topic} was deleted`).toEqual([])
        const failed = answers.filter(({ status, text }) => status !== 200 || !text.endsWith('done'))
        expect(failed, `failed calls after ${topic} was deleted`).toEqual([])
        expect((await stack.get('/readyz')).status, `readiness after ${topic} was deleted`).toBe(200)
      }
    }, 300_000)
  },
)

describe.skipIf(!kafka).each(['share', 'classic'] as const)(
  'a deleted Kafka topic that cannot be created again, client %s',
  (client) => {
    it('makes /readyz and calls return 503 until an operator creates the topic again', async () => {
      const prefix = `${newId('t', 8)}.`
      const settings = { KAFKA_PREFIX: prefix, KAFKA_CLIENT: client, KAFKA_QUEUE_PARTITIONS: '1' }
      await (await startStack({ kafka, settings }))[Symbol.asyncDispose]()
      const lines: string[] = []
      const log = pino({ level: 'warn' }, { write: (line: string) => void lines.push(line) })
      // The replication factor exceeds the number of brokers. The service can therefore use existing topics, but cannot create topics again.
      await using stack = await startStack({ kafka, log, settings: { ...settings, KAFKA_REPLICATION: '7' } })
      await until(async () => (await chat(stack, 'warm')).status === 200, WITHIN)
      for (const topic of ['jobs.inference', 'replies']) {
        await deleteTopic(kafka, `${prefix}${topic}`)
        await until(async () => (await stack.get('/readyz')).status === 503, WITHIN)
        expect(await (await stack.get('/readyz')).text()).toContain(topic)
        const refused = await chat(stack, 'refused')
        expect(refused).toMatchObject({
          status: 503,
          text: expect.stringMatching(/missing in Kafka|Kafka topic for replies is missing/),
        })
        expect(refused.tookMs).toBeLessThan(5_000)
        const warning = lines.find(
          (line) => line.includes('are missing and could not be created') && line.includes(topic),
        )
        expect(warning).toContain('kafka-topics.sh')
        await createTopic(kafka, `${prefix}${topic}`, topic === 'replies' ? REPLY_SHARDS : 1)
        await until(async () => (await stack.get('/readyz')).status === 200, WITHIN)
        await until(async () => (await chat(stack, 'again')).status === 200, WITHIN)
      }
    }, 180_000)
  },
)

describe.skipIf(!kafka).each(['share', 'classic'] as const)(
  'a Kafka channel topic that an operator deleted and created again, client %s',
  (client) => {
    const REPLIES: Topic = { name: 'replies', partitions: 4, retentionMs: HOUR_MS, kind: 'channel' }

    it('gets its missing partitions, and delivers later records once and in order', async () => {
      const prefix = `${newId('t', 8)}.`
      const options = { brokers: [kafka], client, prefix, topics: [REPLIES], clientId: 'test' }
      const lost: string[] = []
      await using broker = closing(await openKafkaBroker({ ...options, onProblem: () => undefined }))
      broker.onLoss?.((name) => lost.push(name))
      const seen: string[] = []
      await broker.receive('replies', [3], ({ value }) => seen.push(String(value)))
      const send = (text: string) => broker.send('replies', 3, 'k', Buffer.from(text))
      for (let i = 0; i < 50; i++) await send(`before ${i}`)
      await until(() => seen.length === 50, WITHIN)
      seen.length = 0
      await deleteTopic(kafka, `${prefix}replies`)
      await createTopic(kafka, `${prefix}replies`, 1).catch(() => undefined)
      const after = Array.from({ length: 100 }, (_, i) => `after ${i}`)
      for (const text of after) await send(text)
      await until(() => seen.includes('after 99'), WITHIN)
      expect(seen.filter((text) => text.startsWith('before'))).toEqual([])
      // Records that were sent after the request to delete the topic, and before the deletion itself, are lost.
      expect(seen).toEqual(after.slice(-seen.length))
      await until(() => lost.includes('replies'), WITHIN)
    }, 120_000)
  },
)

function closing(broker: Broker): Broker & AsyncDisposable {
  return Object.assign(broker, { [Symbol.asyncDispose]: () => broker.close() })
}

interface Answer {
  readonly status: number
  readonly text: string
  readonly tookMs: number
}

async function chat(stack: Stack, content: string): Promise<Answer> {
  const startedAt = performance.now()
  const body = { model: 'echo-1', messages: [{ role: 'user', content }] }
  const response = await stack.post('/v1/chat/completions', body, { signal: AbortSignal.timeout(60_000) })
  const text = await response.text()
  const content_ = response.ok ? JSON.parse(text).choices[0].message.content : text
  return { status: response.status, text: content_, tookMs: Math.round(performance.now() - startedAt) }
}

/** Starts eight callers that make one call after the other. Half of the calls take 200 ms. */
function startLoad(stack: Stack) {
  const answers: Answer[] = []
  let isOver = false
  const caller = async (_: unknown, index: number) => {
    while (!isOver) {
      const head = index % 2 === 0 ? '!echo first_ms=200\n' : ''
      answers.push(await chat(stack, `${head}done`))
    }
  }
  const callers = Promise.all(Array.from({ length: 8 }, caller))
  return {
    async untilAnswered(count: number) {
      const before = answers.length
      await until(() => answers.length >= before + count, WITHIN)
    },
    async stop(): Promise<readonly Answer[]> {
      isOver = true
      await callers
      return answers
    },
  }
}
