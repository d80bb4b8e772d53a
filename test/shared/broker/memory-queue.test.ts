import { expect, it } from 'vitest'
import { openMemoryBroker } from '#shared/broker/memory.ts'

const TOPIC = { name: 'jobs', partitions: 1, retentionMs: 1_000, kind: 'queue' } as const
const { signal } = new AbortController()

it('the memory queue delivers a record of its own process as the same object, even after a release', async () => {
  const broker = await openMemoryBroker({ topics: [TOPIC] })
  const taker = await broker.openQueue('jobs')
  const said = { id: 'job_1', body: { text: 'hello' } }
  broker.enqueueLocal?.('jobs', said, 100)
  const [first] = await taker.take(1, signal)
  expect(first?.payload).toBe(said)
  expect(JSON.parse(String(first?.value))).toEqual(said)
  first?.release()
  const [again] = await taker.take(1, signal)
  expect([again?.payload, again?.deliveryCount]).toEqual([said, 2])
  again?.acknowledge()
  expect(await broker.lag('jobs')).toBe(0)
  await taker.close()
  await broker.close()
})

it('the memory queue refuses a record of its own process that exceeds the byte limit', async () => {
  const broker = await openMemoryBroker({ topics: [TOPIC] })
  const half = 130 * 1024 * 1024
  broker.enqueueLocal?.('jobs', {}, half)
  expect(() => broker.enqueueLocal?.('jobs', {}, half)).toThrow('The job queue is at its maximum of 268435456 bytes')
  await broker.submit('jobs', Buffer.from('small'))
  await broker.close()
})
