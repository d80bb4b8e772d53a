import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { ErrorBody, ErrorCode } from '#schemas/error.ts'
import { ControlRecord, type JobEvent } from '#schemas/event.ts'
import type { AttachedEnvelope } from '#schemas/job.ts'
import type { Broker, QueueConsumer } from '#shared/broker/broker.ts'
import { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import type { AttachedJob, AttachedOptions, NewAttachedJob } from '#shared/jobs/attached/attached-job.ts'
import { CONTROL, REPLIES, readJob } from '#shared/jobs/records.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { mergeSaid, openBroker, type Said, silentLog, textOf } from '../../../support/jobs/jobs.ts'

const QUEUE = 'jobs.inference'
const START_MS = 20_000
const TIMEOUT_MS = 120_000

let broker: Broker
let queue: QueueConsumer
let jobs: AttachedJobs
let blobs: Map<string, Buffer>
let controls: ControlRecord[]
let ends: string[]
beforeEach(async () => {
  vi.useFakeTimers()
  broker = await openBroker()
  queue = await broker.openQueue(QUEUE)
  blobs = new Map()
  controls = []
  ends = []
  await broker.receive(CONTROL, [0], (record) => {
    const control = ControlRecord.parse(JSON.parse(record.value.toString()))
    if (control.type !== 'heartbeat' && control.type !== 'heartbeat_interval') controls.push(control)
  })
  jobs = await openJobs()
})
afterEach(async () => {
  await jobs.close()
  expect(vi.getTimerCount()).toBe(0)
  vi.useRealTimers()
  await broker.close()
})

function openJobs(more: Partial<AttachedOptions> = {}): Promise<AttachedJobs> {
  return AttachedJobs.open({
    broker,
    blobs: memoryBlobs(blobs),
    log: silentLog,
    observer: { onRetry: () => {}, onEnd: (_job, end, error) => ends.push(error ? `${end} ${error.code}` : end) },
    version: 'test',
    workerSuspectedMs: 2_000,
    workerLostMs: 5_000,
    startTimeoutMs: START_MS,
    jobsMax: 100,
    ...more,
  })
}

function submit(more: Partial<NewAttachedJob> = {}, ingress = jobs): Promise<AttachedJob> {
  return ingress.submit({
    pool: 'inference',
    kind: 'say',
    tenant: 'key_1',
    model: 'm',
    body: {},
    stream: true,
    timeoutMs: TIMEOUT_MS,
    requestId: 'req_1',
    traceparent: undefined,
    merge: mergeSaid,
    isOutput: (delta) => (delta as Said).text !== '',
    ...more,
  })
}

/** Takes the next record from the queue, as a worker does. */
async function take(): Promise<AttachedEnvelope> {
  const taken = queue.take(1, new AbortController().signal)
  await vi.advanceTimersByTimeAsync(1_000)
  const [delivery] = await taken
  delivery?.acknowledge()
  return readJob(delivery?.value as Buffer) as AttachedEnvelope
}

type Happening = { type: 'started' | 'completed' | 'handed_back' } | { text: string } | { code: ErrorCode }

/** Sends messages about an attempt as its worker does. The messages are numbered from `seq`. */
async function tell(
  job: AttachedEnvelope,
  seq: number,
  happenings: readonly Happening[],
  worker = 'wrk_1',
): Promise<void> {
  const events = happenings.map((what, index): JobEvent => {
    const head = { job_id: job.id, attempt: job.attempt, seq: seq + index }
    if ('text' in what) return { ...head, type: 'delta', deltas: [what] }
    if ('code' in what) return { ...head, type: 'failed', error: { code: what.code, message: 'it broke', param: null } }
    return (
      what.type === 'completed' ? { ...head, type: what.type, deltas: [] } : { ...head, type: what.type }
    ) as JobEvent
  })
  await broker.send(REPLIES, job.reply.shard, job.reply.boot, Buffer.from(JSON.stringify({ worker, events })))
}

/** Advances time while a worker sends heartbeats. */
async function passWith(worker: string, ms: number, more: { slots?: number; running?: number } = {}): Promise<void> {
  for (let passed = 0; passed < ms; passed += 1_000) {
    await beat(worker, more)
    await vi.advanceTimersByTimeAsync(Math.min(1_000, ms - passed))
  }
}

async function beat(worker: string, more: { slots?: number; running?: number } = {}): Promise<void> {
  const record = {
    type: 'heartbeat',
    boot: worker,
    role: 'inference',
    slots: 1,
    running: 1,
    draining: false,
    version: 'x',
    ...more,
  }
  await broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify(record)))
}

const FREE = { slots: 1, running: 0 }
const STARTED = { type: 'started' } as const
const COMPLETED = { type: 'completed' } as const

describe('the attached jobs of an ingress', () => {
  it('are sent to a worker, return the output, and are removed after the completion', async () => {
    const job = await submit()
    const taken = await take()
    expect(taken).toMatchObject({ id: job.id, attempt: 1, reply: { boot: jobs.boot } })
    await tell(taken, 1, [STARTED, { text: 'hi' }, COMPLETED])
    expect(textOf((await job.next()) ?? [])).toBe('hi')
    expect(await job.next()).toBeUndefined()
    expect([jobs.size, ends]).toEqual([0, ['completed']])
  })

  it('are counted as queued or running, per pool', async () => {
    await submit()
    await submit()
    expect([jobs.count('inference', 'queued'), jobs.count('inference', 'running')]).toEqual([2, 0])
    expect([jobs.oldestQueuedAtMs('inference'), jobs.oldestQueuedAtMs('code')]).toEqual([expect.any(Number), undefined])
    await tell(await take(), 1, [STARTED])
    expect([jobs.count('inference', 'queued'), jobs.count('inference', 'running')]).toEqual([1, 1])
  })

  it('are retried if the worker is lost before any output', async () => {
    const job = await submit()
    await beat('wrk_1')
    await tell(await take(), 1, [STARTED])
    await vi.advanceTimersByTimeAsync(6_000)
    expect(job.state).toBe('queued')
    const again = await take()
    expect(again.attempt).toBe(2)
    await tell(again, 1, [STARTED, { text: 'second' }, COMPLETED], 'wrk_2')
    expect(textOf((await job.next()) ?? [])).toBe('second')
    expect(controls).toContainEqual({ type: 'cancel', job_id: job.id, attempt: 1 })
  })

  it('without output are retried once the worker is suspected, if another worker has a free slot', async () => {
    const job = await submit()
    await beat('wrk_1')
    await tell(await take(), 1, [STARTED])
    await passWith('wrk_2', 3_000, FREE)
    const again = await take()
    expect(again.attempt).toBe(2)
    expect(controls).toContainEqual({ type: 'cancel', job_id: job.id, attempt: 1 })
    await beat('wrk_1')
    await tell({ ...again, attempt: 1 }, 2, [{ text: 'too late' }, COMPLETED])
    await tell(again, 1, [STARTED, { text: 'second' }, COMPLETED], 'wrk_2')
    expect(textOf((await job.next()) ?? [])).toBe('second')
  })

  it('are retried a second time only when the worker is lost, not already when the worker is suspected', async () => {
    const job = await submit()
    await beat('wrk_1')
    await tell(await take(), 1, [STARTED])
    await passWith('wrk_3', 3_000, FREE)
    const again = await take()
    await beat('wrk_2')
    await tell(again, 1, [STARTED], 'wrk_2')
    await passWith('wrk_3', 4_500, FREE)
    expect([job.state, job.attempt]).toEqual(['running', 2])
    await passWith('wrk_3', 1_000, FREE)
    expect(job.attempt).toBe(3)
  })

  it.each([
    ['no other worker has a free slot', { slots: 1, running: 1 }, 0],
    ['the job has run for longer than the time until a loss', FREE, 6_000],
  ])(
    'are retried only when the worker is lost, not already when the worker is suspected, if %s',
    async (_why, other, ranMs) => {
      const job = await submit({ stream: false })
      const taken = await take()
      await beat('wrk_1')
      await tell(taken, 1, [STARTED])
      for (let passed = 0; passed < ranMs; passed += 1_000) {
        await beat('wrk_1')
        await passWith('wrk_2', 1_000, other)
      }
      await beat('wrk_1')
      await passWith('wrk_2', 4_000, other)
      expect([job.state, job.attempt]).toEqual(['running', 1])
      await passWith('wrk_2', 2_000, other)
      expect(job.attempt).toBe(2)
    },
  )

  it('are sent before all waiting calls when they are retried after the loss of the worker', async () => {
    for (let i = 0; i < 8; i++) await submit({ body: i })
    const first = await take()
    await beat('wrk_1')
    await tell(first, 1, [STARTED])
    for (let i = 1; i < 5; i++) await tell(await take(), 1, [STARTED, COMPLETED], 'wrk_2')
    await passWith('wrk_2', 6_000)
    const order: unknown[] = []
    for (let i = 0; i < 4; i++) {
      const taken = await take()
      order.push(taken.body)
      await tell(taken, 1, [STARTED, COMPLETED], 'wrk_2')
    }
    expect(order).toEqual([5, 6, 7, 0])
  })

  it('with partial output continue if the suspected worker sends a heartbeat again', async () => {
    const job = await submit()
    await beat('wrk_1')
    const taken = await take()
    await tell(taken, 1, [STARTED, { text: 'a' }])
    await vi.advanceTimersByTimeAsync(4_000)
    await beat('wrk_1')
    await tell(taken, 3, [{ text: 'b' }, COMPLETED])
    expect(textOf((await job.next()) ?? [])).toBe('ab')
    expect(await job.next()).toBeUndefined()
  })

  it('fail with worker_lost if the worker is lost after output', async () => {
    const job = await submit()
    await beat('wrk_1')
    await tell(await take(), 1, [STARTED, { text: 'half' }])
    await vi.advanceTimersByTimeAsync(6_000)
    expect(textOf((await job.next()) ?? [])).toBe('half')
    await expect(job.next()).rejects.toMatchObject({ code: 'worker_lost' })
  })

  it('fail with worker_lost after three lost workers', async () => {
    const job = await submit()
    for (const worker of ['wrk_1', 'wrk_2', 'wrk_3']) {
      await beat(worker)
      await tell(await take(), 1, [STARTED], worker)
      await vi.advanceTimersByTimeAsync(6_000)
    }
    await expect(job.next()).rejects.toMatchObject({ code: 'worker_lost' })
    expect(await broker.lag(QUEUE)).toBe(0)
  })

  it('are retried twice with a delay after an upstream error, and return the third error', async () => {
    const job = await submit()
    for (let attempt = 1; attempt <= 3; attempt++) {
      const taken = await take()
      expect(taken.attempt).toBe(attempt)
      await tell(taken, 1, [STARTED, { code: 'upstream_error' }])
      expect(await broker.lag(QUEUE)).toBe(0)
      await vi.advanceTimersByTimeAsync(4_000)
    }
    await expect(job.next()).rejects.toMatchObject({
      code: 'upstream_error',
      message: expect.stringMatching(/^it broke 3 attempts were made\. /),
    })
  })

  it('fail with overloaded and a Retry-After if no worker starts them in time', async () => {
    const job = await submit()
    await vi.advanceTimersByTimeAsync(START_MS)
    await expect(job.next()).rejects.toMatchObject({ code: 'overloaded', retryAfterMs: 5_000 })
    await vi.advanceTimersByTimeAsync(0)
    expect(controls).toContainEqual({ type: 'cancel', job_id: job.id })
  })

  it('have the full start timeout for each attempt', async () => {
    const job = await submit()
    await tell(await take(), 1, [STARTED])
    await passWith('wrk_1', START_MS * 2)
    expect(job.state).toBe('running')
    await tell({ ...job.envelope, attempt: 1 }, 2, [{ type: 'handed_back' }])
    await vi.advanceTimersByTimeAsync(START_MS + 100)
    await expect(job.next()).rejects.toMatchObject({ code: 'overloaded' })
  })

  it('fail with model_loading if workers requeue them 40 times', async () => {
    const job = await submit()
    const failure = job.next().catch((error: unknown) => error)
    let attempts = 0
    for (; job.state !== 'done'; attempts++) {
      const taken = await take()
      await tell(taken, 1, [STARTED, { type: 'handed_back' }])
      while (job.state === 'queued' && (await broker.lag(QUEUE)) === 0) await vi.advanceTimersByTimeAsync(100)
    }
    expect(await failure).toMatchObject({ code: 'model_loading' })
    expect(attempts).toBe(40)
  })

  it('wait until their deadline if a worker is alive but busy', async () => {
    const job = await submit()
    await passWith('wrk_1', TIMEOUT_MS - 10_000)
    expect(job.state).toBe('queued')
    await passWith('wrk_1', 20_000)
    await expect(job.next()).rejects.toMatchObject({ code: 'timeout' })
  })

  it('fail with overloaded if they are not started although workers are idle', async () => {
    const job = await submit()
    await passWith('wrk_1', START_MS + 2_000, FREE)
    await expect(job.next()).rejects.toMatchObject({ code: 'overloaded' })
  })

  it('have no start timeout while a worker holds them for a slot of the model', async () => {
    const capacity = { type: 'capacity', boot: 'wrk_1', models: ['m'], backlog: [] }
    await beat('wrk_1', { slots: 100 })
    const concurrency_limits = [{ kind: 'say', model: 'm', capacity: 2 }]
    await broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify({ ...capacity, concurrency_limits })))
    const calls = [await submit(), await submit(), await submit()]
    const records = [await take(), await take(), await take()]
    for (const record of records.slice(0, 2)) await tell(record, 1, [STARTED])
    await passWith('wrk_1', START_MS + 2_000, { slots: 100, running: 2 })
    expect(calls.map(({ state }) => state)).toEqual(['running', 'running', 'queued'])
    await tell(records[0] as AttachedEnvelope, 2, [COMPLETED])
    await tell(records[2] as AttachedEnvelope, 1, [STARTED, { text: 'hi' }, COMPLETED])
    expect(textOf((await calls[2]?.next()) ?? [])).toBe('hi')
  })

  it('fail with overloaded, the newest first, once the estimated wait exceeds the maximum', async () => {
    await beat('wrk_1', { slots: 2 })
    const calls: AttachedJob[] = []
    // The first call completes at once. The durations of the next calls therefore count fully, because these calls did not load the model.
    const first = await submit()
    await tell(await take(), 1, [STARTED, COMPLETED])
    await first.next()
    for (let i = 0; i < 30; i++) calls.push(await submit())
    for (let i = 0; i < 2; i++) await tell(await take(), 1, [STARTED])
    const end = calls.at(-1)?.next()
    end?.catch(() => undefined)
    await passWith('wrk_1', 16_000, { slots: 2, running: 2 })
    await expect(end).rejects.toMatchObject({
      code: 'overloaded',
      message: expect.stringMatching(/wait about \d+ s.*as a durable job/),
    })
    const left = calls.filter(({ state }) => state === 'queued').length
    expect(left).toBeGreaterThan(5)
    expect(left).toBeLessThan(20)
    expect(calls.slice(0, left + 2).some(({ state }) => state === 'done')).toBe(false)
  })

  it('of a model are sent to the queue up to the number of slots of the model plus two', async () => {
    await beat('wrk_1', { slots: 100 })
    const capacity = { type: 'capacity', boot: 'wrk_1', models: ['m', 'quick'], backlog: [] }
    const concurrency_limits = [{ kind: 'say', model: 'm', capacity: 3 }]
    await broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify({ ...capacity, concurrency_limits })))
    for (let i = 0; i < 10; i++) await submit({ body: i })
    expect(await broker.lag(QUEUE)).toBe(5)
    await submit({ model: 'quick', body: 'quick' })
    expect(await broker.lag(QUEUE)).toBe(6)
    expect(jobs.waitingOf('inference', 'm')).toBe(5)
    const first = await take()
    await tell(first, 1, [STARTED])
    expect(await broker.lag(QUEUE)).toBe(5)
    await tell(first, 2, [COMPLETED])
    expect(await broker.lag(QUEUE)).toBe(6)
  })

  it('are cancelled at the worker when the deadline passes', async () => {
    const job = await submit()
    await tell(await take(), 1, [STARTED])
    await passWith('wrk_1', TIMEOUT_MS)
    await expect(job.next()).rejects.toMatchObject({ code: 'timeout' })
    await vi.advanceTimersByTimeAsync(0)
    expect(controls).toContainEqual({ type: 'cancel', job_id: job.id })
  })

  it('are retried if the worker never sent a heartbeat', async () => {
    const job = await submit()
    await tell(await take(), 1, [STARTED], 'wrk_never_heard')
    await vi.advanceTimersByTimeAsync(6_000)
    expect([job.state, job.attempt]).toEqual(['queued', 2])
  })

  it('complete even if the deregistration of the worker arrives before the completion', async () => {
    const job = await submit()
    const taken = await take()
    await tell(taken, 1, [STARTED])
    await beat('wrk_1')
    await broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify({ type: 'leave', boot: 'wrk_1' })))
    await vi.advanceTimersByTimeAsync(1_000)
    await tell(taken, 2, [COMPLETED])
    expect(ends).toEqual(['completed'])
    expect(job.attempt).toBe(1)
  })

  it('are cancelled at the worker if the caller disconnects', async () => {
    for (const state of ['queued', 'running', 'waiting for its next try']) {
      controls = []
      const job = await submit()
      const taken = await take()
      if (state !== 'queued') await tell(taken, 1, [STARTED])
      if (state.startsWith('waiting')) await tell(taken, 2, [{ code: 'upstream_error' }])
      jobs.cancel(job)
      jobs.cancel(job)
      await vi.advanceTimersByTimeAsync(10_000)
      expect(controls).toEqual([{ type: 'cancel', job_id: job.id }])
      expect(await broker.lag(QUEUE)).toBe(0)
    }
    expect([jobs.size, ends]).toEqual([0, ['cancelled', 'cancelled', 'cancelled']])
  })

  it('are cancelled at a worker that reports their start after they were cancelled', async () => {
    const job = await submit()
    const taken = await take()
    jobs.cancel(job)
    await tell(taken, 1, [STARTED], 'wrk_9')
    await vi.advanceTimersByTimeAsync(0)
    expect(controls).toContainEqual({ type: 'cancel', job_id: job.id, worker: 'wrk_9' })
  })

  it('are cancelled at the second worker if two workers start the same attempt', async () => {
    const job = await submit()
    const taken = await take()
    await tell(taken, 1, [STARTED], 'wrk_1')
    await tell(taken, 1, [STARTED], 'wrk_2')
    await vi.advanceTimersByTimeAsync(0)
    expect(controls).toEqual([{ type: 'cancel', job_id: job.id, attempt: 1, worker: 'wrk_2' }])
  })

  it('fail with answer_too_large if the unread output exceeds the maximum', async () => {
    const job = await submit({ stream: false })
    const taken = await take()
    await tell(taken, 1, [STARTED])
    for (let seq = 2; job.state === 'running'; seq++) await tell(taken, seq, [{ text: 'x'.repeat(500_000) }])
    await vi.advanceTimersByTimeAsync(0)
    expect(controls).toEqual([{ type: 'cancel', job_id: job.id }])
    expect(ends).toEqual(['failed answer_too_large'])
  })

  it('pause the worker while the caller does not read, and resume the worker afterwards', async () => {
    const job = await submit()
    const taken = await take()
    await tell(taken, 1, [STARTED, { text: 'x'.repeat(300_000) }])
    await vi.advanceTimersByTimeAsync(0)
    expect(controls).toEqual([{ type: 'pause', job_id: job.id, attempt: 1 }])
    await job.next()
    await vi.advanceTimersByTimeAsync(0)
    expect(controls.at(-1)).toEqual({ type: 'resume', job_id: job.id, attempt: 1 })
  })

  it('with a large body have one blob, which is deleted at the end of the job', async () => {
    for (const [index, last] of [COMPLETED, { code: 'upstream_refused' } as const].entries()) {
      const job = await submit({ body: { text: 'x'.repeat(100_000) }, stream: false })
      expect([...blobs.keys()]).toEqual([job.id])
      const taken = await take()
      expect(taken.blob).toBe(job.id)
      expect(taken.body).toBeUndefined()
      await tell(taken, 1, [STARTED, last])
      expect([blobs.size, ends.length]).toEqual([0, index + 1])
    }
    const left = await submit({ body: { text: 'x'.repeat(100_000) } })
    jobs.cancel(left)
    expect(blobs.size).toBe(0)
  })

  it('pass the body to a worker in the same process without a copy', async () => {
    const body = { text: 'x'.repeat(100_000) }
    const job = await submit({ body, heldBytes: 300_000 })
    const [handed] = await queue.take(1, AbortSignal.timeout(1_000))
    expect(handed?.payload).toMatchObject({ id: job.id, attempt: 1 })
    expect((handed?.payload as { body?: unknown } | undefined)?.body).toBe(body)
    expect(JSON.parse(String(handed?.value))).toMatchObject({ id: job.id, body })
    expect(blobs.size).toBe(0)
    const waiting: AttachedJob[] = []
    while (blobs.size === 0) waiting.push(await submit({ body, heldBytes: 300_000 }))
    expect([...blobs.keys()]).toEqual([waiting.at(-1)?.id])
    expect(waiting.at(-1)?.stored).toEqual({ blob: waiting.at(-1)?.id })
  })

  it('leave neither a job nor a blob if the broker refuses them', async () => {
    await broker.close()
    const refused = submit({ body: { text: 'x'.repeat(100_000) } })
    await expect(refused).rejects.toMatchObject({ code: 'overloaded' })
    expect([jobs.size, blobs.size]).toEqual([0, 0])
  })

  it('are refused with overloaded beyond the maximum number of jobs', async () => {
    await jobs.close()
    jobs = await openJobs({ jobsMax: 2 })
    const [first] = [await submit(), await submit()]
    await expect(submit()).rejects.toMatchObject({ code: 'overloaded', status: 503, retryAfterMs: 2_000 })
    jobs.cancel(first as AttachedJob)
    await submit()
    jobs.isDraining = true
    jobs.failAll({ code: 'overloaded', message: 'The server shut down.', param: null })
    await expect(submit()).rejects.toBeInstanceOf(ServiceError)
  })

  it('are refused with overloaded if the estimated wait of the pool is too long', async () => {
    await jobs.close()
    jobs = await openJobs({ startTimeoutMs: 5_000 })
    for (let i = 0; i < 20; i++) {
      await submit()
      await tell(await take(), 1, [STARTED, COMPLETED])
      for (let quick = 0; quick < 5; quick++) {
        const job = await submit({ pool: 'embeddings' })
        await tell(job.envelope, 1, [STARTED, COMPLETED])
      }
    }
    const submitEight = async () => {
      for (let i = 0; i < 8; i++) await submit()
    }
    await expect(submitEight()).rejects.toMatchObject({ code: 'overloaded' })
    expect((await submit({ pool: 'embeddings' })).state).toBe('queued')
  })

  it('of a tenant without running jobs are sent before the waiting calls of other tenants', async () => {
    for (let i = 0; i < 10; i++) await submit({ tenant: 'key_many', body: i })
    expect(await broker.lag(QUEUE)).toBe(4)
    // A tenant without running calls is served before the waiting calls of other tenants. The first call of `key_one` is therefore sent at once.
    await submit({ tenant: 'key_one', body: 'one' })
    await submit({ tenant: 'key_one', body: 'two' })
    expect(await broker.lag(QUEUE)).toBe(5)
    const order: unknown[] = []
    for (let i = 0; i < 12; i++) {
      const taken = await take()
      order.push(taken.body)
      await tell(taken, 1, [STARTED, COMPLETED])
    }
    expect(order).toEqual([0, 1, 2, 3, 'one', 4, 'two', 5, 6, 7, 8, 9])
  })

  it('start equally often for a tenant at one ingress and a tenant that floods three ingresses', async () => {
    const ingresses = [jobs, await openJobs(), await openJobs()]
    for (const ingress of ingresses) {
      for (let i = 0; i < 60; i++) await submit({ tenant: 'key_many' }, ingress)
    }
    for (let i = 0; i < 30; i++) await submit({ tenant: 'key_one' })
    await vi.advanceTimersByTimeAsync(1_000)
    const order: string[] = []
    for (let i = 0; i < 72; i++) {
      await beat('wrk_1', { slots: 4, running: 4 })
      const taken = await take()
      order.push(taken.tenant)
      await tell(taken, 1, [STARTED, COMPLETED])
    }
    // The first 20 calls are not counted, because they were sent before the ingresses exchanged their counts. About half of the other calls must
    // belong to `key_one`.
    expect(order.slice(20).filter((tenant) => tenant === 'key_one').length).toBeGreaterThanOrEqual(20)
    for (const ingress of ingresses) await ingress.close()
  })

  it('are sent to the queue up to the number of free slots', async () => {
    await beat('wrk_1', { slots: 7, running: 0 })
    for (let i = 0; i < 10; i++) await submit()
    expect(await broker.lag(QUEUE)).toBe(7)
    await beat('wrk_1', { slots: 100, running: 100 })
    for (let i = 0; i < 30; i++) await submit()
    expect(await broker.lag(QUEUE)).toBe(25)
  })

  it('are not sent if they were cancelled while waiting', async () => {
    const held = []
    for (let i = 0; i < 6; i++) held.push(await submit({ body: i }))
    jobs.cancel(held[4] as AttachedJob)
    jobs.cancel(held[0] as AttachedJob)
    const order: unknown[] = []
    for (let i = 0; i < 5; i++) order.push((await take()).body)
    expect(order).toEqual([0, 1, 2, 3, 5])
  })

  it('stay queued in the ingress during an outage of the broker, while new jobs are refused', async () => {
    let isReachable = true
    const away = new Proxy(broker, {
      get(target, name) {
        if (name === 'isReachable') return isReachable
        if (name === 'submit' && !isReachable) return () => Promise.reject(new ServiceError('overloaded', 'Away.'))
        const value = Reflect.get(target, name) as unknown
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
    await jobs.close()
    jobs = await openJobs({ broker: away })
    const held = []
    for (let i = 0; i < 8; i++) held.push(await submit({ body: i }))
    isReachable = false
    jobs.cancel(held[0] as AttachedJob)
    await expect(submit()).rejects.toMatchObject({ code: 'overloaded', message: 'Away.' })
    await vi.advanceTimersByTimeAsync(4_000)
    expect(held.slice(1).map(({ state }) => state)).toEqual(Array(7).fill('queued'))
    isReachable = true
    const order: unknown[] = []
    for (let i = 0; i < 8; i++) {
      const taken = await take()
      order.push(taken.body)
      await tell(taken, 1, [STARTED, COMPLETED])
    }
    expect(order).toEqual([0, 1, 2, 3, 4, 5, 6, 7])
  })

  it('fail with overloaded if the broker refuses them after a wait in the ingress', async () => {
    const held = []
    for (let i = 0; i < 5; i++) held.push(await submit())
    const last = held[4] as AttachedJob
    await broker.close()
    jobs.cancel(held[0] as AttachedJob)
    const failure = last.next().catch((error: unknown) => error)
    await vi.advanceTimersByTimeAsync(START_MS)
    expect(await failure).toMatchObject({ code: 'overloaded' })
  })

  it('ignore replies that cannot be parsed', async () => {
    const job = await submit()
    const taken = await take()
    const { shard, boot } = taken.reply
    for (const garbage of ['', '{', 'null', '{"worker":"w"}', '{"worker":"w","events":[{"type":"dance"}]}']) {
      await broker.send(REPLIES, shard, boot, Buffer.from(garbage))
    }
    await broker.send(REPLIES, shard, 'ing_other', Buffer.from('not even mine'))
    await tell(taken, 1, [STARTED, { text: 'fine' }, COMPLETED])
    expect(textOf((await job.next()) ?? [])).toBe('fine')
  })

  it('fail with overloaded when the ingress closes', async () => {
    const running = await submit()
    const taken = await take()
    await tell(taken, 1, [STARTED, { code: 'upstream_error' }])
    const queued = await submit()
    await jobs.close()
    for (const job of [running, queued]) {
      const error = await job.next().catch((thrown: ErrorBody) => thrown)
      expect(error).toMatchObject({ code: 'overloaded' })
    }
  })
})
