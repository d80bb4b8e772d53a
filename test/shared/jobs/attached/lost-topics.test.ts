/** Tests attached jobs whose queue or reply records were lost, because the topic was deleted. */
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import type { JobEvent } from '#schemas/event.ts'
import type { AttachedEnvelope } from '#schemas/job.ts'
import type { Broker, QueueConsumer } from '#shared/broker/broker.ts'
import { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import type { AttachedJob } from '#shared/jobs/attached/attached-job.ts'
import { CONTROL, REPLIES, readJob } from '#shared/jobs/records.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { mergeSaid, openBroker, type Said, silentLog } from '../../../support/jobs/jobs.ts'

const QUEUE = 'jobs.inference'

let broker: Broker & { missing: string[] }
let queue: QueueConsumer
let jobs: AttachedJobs
let lose: (name: string) => void
let ends: string[]
beforeEach(async () => {
  vi.useFakeTimers()
  const onLoss = (listener: (name: string) => void) => {
    lose = listener
    return () => undefined
  }
  broker = Object.assign(await openBroker(), { missing: [], onLoss })
  queue = await broker.openQueue(QUEUE)
  ends = []
  jobs = await AttachedJobs.open({
    broker,
    blobs: memoryBlobs(new Map()),
    log: silentLog,
    observer: { onRetry: () => {}, onEnd: (_job, end, error) => ends.push(error ? `${end} ${error.code}` : end) },
    version: 'test',
    workerSuspectedMs: 2_000,
    workerLostMs: 5_000,
    startTimeoutMs: 60_000,
    jobsMax: 100,
  })
})
afterEach(async () => {
  await jobs.close()
  expect(vi.getTimerCount()).toBe(0)
  vi.useRealTimers()
  await broker.close()
})

function submit(): Promise<AttachedJob> {
  return jobs.submit({
    ...{ pool: 'inference', kind: 'say', tenant: 'key_1', model: 'm', body: {}, stream: true, timeoutMs: 120_000 },
    ...{ requestId: 'req_1', traceparent: undefined, merge: mergeSaid },
    isOutput: (delta) => (delta as Said).text !== '',
  })
}

async function take(): Promise<AttachedEnvelope> {
  const taken = queue.take(1, new AbortController().signal)
  await vi.advanceTimersByTimeAsync(1_000)
  const [delivery] = await taken
  delivery?.acknowledge()
  return readJob(delivery?.value as Buffer) as AttachedEnvelope
}

async function reply({ id, attempt, reply: to }: AttachedEnvelope, seq: number, event: object): Promise<void> {
  const events = [{ job_id: id, attempt, seq, ...event } as JobEvent]
  await broker.send(REPLIES, to.shard, to.boot, Buffer.from(JSON.stringify({ worker: 'wrk_1', events })))
  await vi.advanceTimersByTimeAsync(1)
}

/** Advances time while the worker sends heartbeats. */
async function pass(ms: number): Promise<void> {
  const beat = {
    type: 'heartbeat',
    boot: 'wrk_1',
    role: 'inference',
    slots: 4,
    running: 1,
    draining: false,
    version: 'x',
  }
  for (let passed = 0; passed < ms; passed += 500) {
    await broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify(beat)))
    await vi.advanceTimersByTimeAsync(500)
  }
}

it('after the loss of the queue topic, queued jobs are sent again, and running jobs are not', async () => {
  const [lost, runs] = [await submit(), await submit()]
  expect((await take()).id).toBe(lost.id)
  await reply(await take(), 1, { type: 'started' })
  lose(QUEUE)
  await vi.advanceTimersByTimeAsync(1)
  expect(await take()).toMatchObject({ id: lost.id, attempt: 2 })
  expect([lost.attempt, runs.attempt]).toEqual([2, 1])
})

it('after the loss of the reply topic, a job without output is retried if no event arrives for ten seconds', async () => {
  const [silent, speaks] = [await submit(), await submit()]
  const [first, second] = [await take(), await take()]
  await reply(first, 1, { type: 'started' })
  await reply(second, 1, { type: 'started' })
  lose(REPLIES)
  await pass(2_000)
  await reply(second, 2, { type: 'delta', deltas: [{ text: 'on' }] })
  expect([silent.attempt, speaks.attempt]).toEqual([1, 1])
  await pass(8_000)
  expect(await take()).toMatchObject({ id: silent.id, attempt: 2 })
  expect([speaks.attempt, speaks.state]).toEqual([1, 'running'])
})

it('after the loss of the reply topic, a job with output fails with worker_lost if no event arrives for ten seconds', async () => {
  const job = await submit()
  const envelope = await take()
  await reply(envelope, 1, { type: 'started' })
  await reply(envelope, 2, { type: 'delta', deltas: [{ text: 'on' }] })
  lose(REPLIES)
  await pass(9_000)
  expect(job.state).toBe('running')
  await pass(1_000)
  expect([job.state, ...ends]).toEqual(['done', 'failed worker_lost'])
})

it('a call is refused with overloaded while the reply topic is missing', async () => {
  broker.missing.push(REPLIES)
  await expect(submit()).rejects.toMatchObject({ code: 'overloaded' })
})
