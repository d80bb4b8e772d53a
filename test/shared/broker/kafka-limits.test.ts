/** Calls whose output, or input, is larger than the topics of a real Kafka take. */
import { describe, expect, inject, it } from 'vitest'
import { newId } from '#shared/id.ts'
import { alterTopic } from '../../support/processes/kafka.ts'
import { startStack, until } from '../../support/stack.ts'

const kafka = inject('kafka')

describe.skipIf(!kafka).each(['share', 'classic'] as const)('topics that take small records only (%s)', (client) => {
  it('cost the one call that is too large, and none before, beside or after it', async () => {
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
    const isTooLarge = ({ text }: { text: string }) => text.includes('larger than Kafka is set up to take')
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

  it('refuse a call that is too large to be queued with 413', async () => {
    const prefix = `${newId('t', 8)}.`
    const settings = { KAFKA_PREFIX: prefix, KAFKA_CLIENT: client, KAFKA_QUEUE_PARTITIONS: '2' }
    await using stack = await startStack({ kafka: kafka ?? '', settings })
    await alterTopic(kafka ?? '', `${prefix}jobs.inference`, { 'max.message.bytes': '5000' })
    const call = (content: string) =>
      stack.post('/v1/chat/completions', { model: 'echo-1', messages: [{ role: 'user', content }] })
    await until(async () => (await call('x'.repeat(20_000))).status === 413)
    expect((await call('small')).status).toBe(200)
  })
})
