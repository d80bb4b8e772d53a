/** Tests of limits with a real Kafka: calls with too much input or output, and the number of members of a group. */
import { describe, expect, inject, it } from 'vitest'
import type { QueueConsumer, Topic } from '#shared/broker/broker.ts'
import { openKafkaBroker } from '#shared/broker/kafka/kafka.ts'
import { newId } from '#shared/lib/id.ts'
import { alterTopic, startLocalKafka } from '../../support/processes/kafka.ts'
import { startStack, until } from '../../support/stack.ts'

const kafka = inject('kafka')
const never = new AbortController().signal

describe.skipIf(!kafka).each(['share', 'classic'] as const)(
  'a Kafka topic with a small maximum record size, client %s',
  (client) => {
    it('makes a call fail only if the output of the call exceeds that size', async () => {
      const prefix = `${newId('t', 8)}.`
      const settings = { KAFKA_PREFIX: prefix, KAFKA_CLIENT: client, KAFKA_QUEUE_PARTITIONS: '2' }
      await using stack = await startStack({ kafka: kafka ?? '', settings })
      const call = async (content: string, stream: boolean) => {
        const body = { model: 'echo-1', messages: [{ role: 'user', content }], stream }
        const answer = await stack.post('/v1/chat/completions', body)
        return { status: answer.status, text: await answer.text() }
      }
      expect(await call('before', false)).toMatchObject({ status: 200 })
      await alterTopic(kafka ?? '', `${prefix}replies`, { 'max.message.bytes': '6000' })
      const large = 'many words that come back '.repeat(1_500)
      const isTooLarge = ({ text }: { text: string }) => text.includes('larger than the maximum record size of Kafka')
      await until(async () => isTooLarge(await call(large, false)))
      const [whole, streamed, ...small] = await Promise.all([
        call(large, false),
        call('!echo tokens=3 delay_ms=50', true),
        ...Array.from({ length: 10 }, (_, index) => call(`beside ${index}`, index % 2 === 0)),
      ])
      expect([whole.status, isTooLarge(whole)]).toEqual([500, true])
      expect(streamed.text.endsWith('data: [DONE]\n\n')).toBe(true)
      for (const [index, answer] of small.entries()) {
        expect([answer.status, answer.text]).toEqual([
          200,
          expect.stringContaining(index % 2 === 0 ? '[DONE]' : 'beside'),
        ])
      }
      expect(await call('after', false)).toMatchObject({ status: 200 })
    })

    it('makes a call fail with status 413 if the request exceeds that size', async () => {
      const prefix = `${newId('t', 8)}.`
      const settings = { KAFKA_PREFIX: prefix, KAFKA_CLIENT: client, KAFKA_QUEUE_PARTITIONS: '2' }
      await using stack = await startStack({ kafka: kafka ?? '', settings })
      await alterTopic(kafka ?? '', `${prefix}jobs.inference`, { 'max.message.bytes': '5000' })
      const call = (content: string) =>
        stack.post('/v1/chat/completions', { model: 'echo-1', messages: [{ role: 'user', content }] })
      await until(async () => (await call('x'.repeat(20_000))).status === 413)
      expect((await call('small')).status).toBe(200)
    })
  },
)

describe.skipIf(!kafka)('a share group at its maximum number of members', () => {
  it('makes a further consumer wait, and logs the broker setting to change', async () => {
    await using small = await startLocalKafka(1, 'group.share.max.size=1')
    const topics: Topic[] = [{ name: 'jobs', partitions: 1, retentionMs: 3_600_000, kind: 'queue' }]
    const told: Record<string, unknown>[] = []
    const fatal: unknown[] = []
    const open = () =>
      openKafkaBroker({
        ...{ brokers: [small.address], client: 'share', prefix: '', topics, clientId: 'test' },
        onProblem: (_message, fields) => told.push(fields),
        onFatal: (error) => fatal.push(error),
      })
    const [first, second] = [await open(), await open()]
    const held = await first.openQueue('jobs')
    await first.submit('jobs', Buffer.from('one'))
    const takeOne = async (queue: QueueConsumer) => {
      for (;;) {
        const [taken] = await queue.take(1, never)
        taken?.acknowledge()
        if (taken) return String(taken.value)
      }
    }
    expect(await takeOne(held)).toBe('one')
    const waiting = await second.openQueue('jobs')
    await until(() => told.some(({ remediation }) => String(remediation).includes('group.share.max.size')), {
      withinMs: 60_000,
    })
    await held.close()
    await second.submit('jobs', Buffer.from('two'))
    expect(await takeOne(waiting)).toBe('two')
    expect(fatal).toEqual([])
    await Promise.all([first.close(), second.close()])
  })
})
