import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { ControlRecord } from '#schemas/event.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { JobBounds } from '#shared/capacity/job-quota.ts'
import { BODY_BYTES_MAX } from '#shared/jobs/body.ts'
import type { NotifierPresence } from '#shared/jobs/durable/dispatch.ts'
import { DurableJobs, type NewDurableJob } from '#shared/jobs/durable/durable.ts'
import { sweepBlobs } from '#shared/jobs/durable/history.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import { newAttachmentKey, newJobId, ownerOfBlob } from '#shared/store/jobs.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import type { IdempotencyKey, Store } from '#shared/store/store.ts'
import { openScratch } from '../../../simulation/scratch.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { openBroker, silentLog } from '../../../support/jobs/jobs.ts'

const TENANT = 'key_1'
const BOOT = 'wrk_1'
const KEY: IdempotencyKey = { scope: 'POST /v1/jobs', key: 'k', fingerprint: 'f', keepMs: 60_000 }

let scratch: ReturnType<typeof openScratch>
let store: Store
let broker: Broker
let blobs: Map<string, Buffer>
let told: ControlRecord[]
beforeEach(async () => {
  scratch = openScratch()
  store = openSqliteStore({ directory: scratch.path, boot: 'test' })
  broker = await openBroker()
  blobs = new Map()
  told = []
})
afterEach(async () => {
  await store.close()
  scratch[Symbol.dispose]()
})

async function open(
  through: { store?: Store; broker?: Broker; bounds?: Partial<JobBounds> } = {},
): Promise<DurableJobs> {
  return await DurableJobs.open({
    store: through.store ?? store,
    broker: through.broker ?? broker,
    blobs: memoryBlobs(blobs),
    log: silentLog,
    presence: () => workersWith(4, told) as Presence,
    retentionMs: 60_000,
    bounds: { jobsMax: 100, scheduledMax: 100, ...through.bounds },
  })
}

/**
 * Simulates the heartbeats of one worker with free slots.
 *
 * @param sent Receives the control messages that {@link DurableJobs} sends
 */
function workersWith(free: number, sent: ControlRecord[]): NotifierPresence {
  const worker: Peer = {
    boot: BOOT,
    role: 'inference',
    version: 'test',
    slots: 4,
    running: 4 - free,
    draining: false,
    lastSeenMs: 0,
    capacity: {
      models: undefined,
      concurrencyLimits: new Map(),
      backlog: [],
      parkedCalls: 0,
      host: undefined,
      pid: undefined,
    },
    heartbeatInterval: undefined,
    isSuspected: false,
  }
  return {
    heartbeatMs: 500,
    silenceMs: 0,
    ingresses: () => 1,
    freeSlots: () => free,
    workersWithModel: () => [worker],
    workers: () => [worker],
    send: (record) => sent.push(record),
  }
}

function specOf(more: Partial<NewDurableJob> = {}): NewDurableJob {
  return {
    pool: 'inference',
    kind: 'say',
    tenant: TENANT,
    endpoint: '/v1/chat/completions',
    model: 'echo-1',
    body: { text: 'hello' },
    stream: true,
    encode: { request_id: 'req_1', model: 'echo-1', include_usage: false, version: '' },
    deadlineInMs: 60_000,
    traceparent: undefined,
    ...more,
  }
}

/** Wraps the store, and replaces some of its methods. */
function storeWith(other: Partial<Store>): Store {
  return new Proxy(store, {
    get(target, name) {
      if (Object.hasOwn(other, name)) return Reflect.get(other, name) as unknown
      const value = Reflect.get(target, name) as unknown
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

/** Wraps a method of the store. The first call is executed, but fails as if its response was lost. */
function unansweredOnce<A extends unknown[], T>(call: (...args: A) => Promise<T>): (...args: A) => Promise<T> {
  let isFirst = true
  return async (...args) => {
    const answer = await call(...args)
    if (!isFirst) return answer
    isFirst = false
    throw new ServiceError('overloaded', 'The answer is lost.')
  }
}

async function run(id: string): Promise<void> {
  await store.renew({ boot: BOOT, role: 'inference', slots: 1, version: '', draining: false, leaseMs: 60_000 })
  await store.claim(id, BOOT)
}

const all = async () => (await store.list(TENANT, { limit: 100 })).jobs

describe('a submitted durable job', () => {
  it('is in the store and in the queue of the pool', async () => {
    const jobs = await open()
    const created = await jobs.create(specOf({ priority: 'low' }))
    expect(created).toMatchObject({ outcome: 'created', job: { state: 'queued' } })
    expect(await all()).toHaveLength(1)
    await expect.poll(() => broker.lag('jobs.inference.batch')).toBe(1)
  })

  it('is accepted while the broker is unreachable', async () => {
    const down = async () => {
      throw new ServiceError('overloaded', 'The broker is down.')
    }
    const jobs = await open({ broker: { ...broker, receive: broker.receive.bind(broker), submit: down, send: down } })
    expect(await jobs.create(specOf())).toMatchObject({ outcome: 'created' })
  })

  it('is not queued until its scheduled time', async () => {
    const jobs = await open()
    const created = await jobs.create(specOf({ runAtMs: Date.now() + 60_000 }))
    expect(created).toMatchObject({ job: { state: 'scheduled' } })
    expect(await broker.lag('jobs.inference')).toBe(0)
  })

  it('is stored and queued once if the response of the store was lost', async () => {
    const jobs = await open({ store: storeWith({ create: unansweredOnce(store.create.bind(store)) }) })
    const created = await jobs.create(specOf(), KEY)
    expect(created.outcome).toBe('created')
    expect(await all()).toHaveLength(1)
    await expect.poll(() => broker.lag('jobs.inference')).toBe(1)
  })

  it('is created once for ten concurrent requests with the same Idempotency-Key', async () => {
    const jobs = await open()
    const created = await Promise.all(Array.from({ length: 10 }, () => jobs.create(specOf(), KEY)))
    expect(created.filter(({ outcome }) => outcome === 'created')).toHaveLength(1)
    expect(await all()).toHaveLength(1)
    expect((await jobs.create(specOf(), { ...KEY, fingerprint: 'other' })).outcome).toBe('conflict')
  })

  it('with a large body has one blob, even after a repeated request', async () => {
    const jobs = await open()
    const large = specOf({ body: { text: 'x'.repeat(BODY_BYTES_MAX) } })
    const created = await jobs.create(large, KEY)
    await jobs.create(large, KEY)
    const { id } = created.outcome === 'conflict' ? { id: '' } : created.job
    expect([...blobs.keys()]).toEqual([id])
    expect((await store.findContent(TENANT, id))?.request).toMatchObject({ blob: id })
    await jobs.cancel(TENANT, id)
    await jobs.erase(TENANT, id)
    expect([...blobs.keys()]).toEqual([])
  })

  it('leaves no blob if the store has refused the job', async () => {
    const large = specOf({ body: { text: 'x'.repeat(BODY_BYTES_MAX) } })
    const failing = (error: Error) => open({ store: storeWith({ create: () => Promise.reject(error) }) })
    const refused = await failing(new ServiceError('overloaded', 'Busy.', { isUndone: true }))
    await expect(refused.create(large)).rejects.toMatchObject({ code: 'overloaded' })
    await expect((await failing(new Error('a mistake'))).create(large)).rejects.toThrow('a mistake')
    await expect((await open({ store: storeWith({ isReachable: false }) })).create(large)).rejects.toThrow('reached')
    expect([...blobs.keys()]).toEqual([])
    const unknown = await failing(new ServiceError('overloaded', 'No answer.'))
    await expect(unknown.create(large)).rejects.toMatchObject({ code: 'overloaded' })
    expect(blobs.size).toBe(1)
  })

  it('keeps all its blobs until the job is deleted', async () => {
    const jobs = await open()
    const attachment = newAttachmentKey(newJobId())
    blobs.set(attachment, Buffer.from('audio'))
    const body = { text: 'x'.repeat(BODY_BYTES_MAX) }
    const created = await jobs.create(specOf({ body, attachments: [attachment] }))
    const { id } = created.outcome === 'conflict' ? { id: '' } : created.job
    expect(ownerOfBlob(attachment)).toBe(id)
    const strangers = [newJobId(), newAttachmentKey(newJobId()), newId('job_'), 'upl_of_before']
    for (const key of strangers) blobs.set(key, Buffer.from('x'))
    expect(await sweepBlobs(memoryBlobs(blobs), store, 60_000)).toBe(4)
    expect([...blobs.keys()].toSorted()).toEqual([id, attachment])
    await jobs.cancel(TENANT, id)
    await store.erase(TENANT, id)
    expect(await sweepBlobs(memoryBlobs(blobs), store, 60_000)).toBe(2)
  })

  it('keeps its blob during a sweep if the submission may still be in flight', async () => {
    const asked: string[] = []
    const find: Store['find'] = async (_scope, id) => void asked.push(id) as undefined
    const ages = [
      [newJobId(), 11],
      [newAttachmentKey(newJobId()), 65],
      [newAttachmentKey(newJobId()), 75],
      [newId('job_'), 65],
      [newId('job_'), 75],
      ['upl_of_before', 21 * 24 * 60],
    ] as const
    const old = ages.map(([key, minutes]) => ({ key, ageMs: minutes * 60_000 }))
    let chosen: readonly string[] = []
    const sweep: Blobs['sweep'] = async (_ageMs, choose) => {
      chosen = (await choose?.(old)) ?? []
      return chosen.length
    }
    await sweepBlobs({ ...memoryBlobs(blobs), sweep }, storeWith({ find }), 60 * 60_000)
    expect(chosen).toEqual([0, 2, 4].map((i) => ages[i]?.[0]))
    expect(asked).toEqual([0, 2].map((i) => ownerOfBlob(ages[i]?.[0] ?? '')))
  })

  it('is refused with overloaded beyond the maximum of unfinished jobs', async () => {
    const jobs = await open({ bounds: { jobsMax: 2, jobsMaxPerProject: 3 } })
    await jobs.create(specOf())
    await jobs.create(specOf())
    await expect(jobs.create(specOf())).rejects.toMatchObject({ code: 'overloaded' })
    expect(await all()).toHaveLength(2)
  })
})

describe('the cancellation of a durable job', () => {
  it('ends a queued job without a message to workers', async () => {
    const jobs = await open()
    const created = await jobs.create(specOf())
    const id = created.outcome === 'created' ? created.job.id : ''
    expect(await jobs.cancel(TENANT, id)).toMatchObject({ state: 'cancelled' })
    expect(told).toEqual([])
  })

  it('sends one cancel message to the worker of a running job, even if repeated', async () => {
    const jobs = await open()
    const created = await jobs.create(specOf())
    const id = created.outcome === 'created' ? created.job.id : ''
    await run(id)
    expect(await jobs.cancel(TENANT, id)).toMatchObject({ state: 'in_progress' })
    expect(await jobs.cancel(TENANT, id)).toMatchObject({ state: 'in_progress' })
    expect(told).toEqual([{ type: 'cancel', job_id: id, attempt: 1, worker: BOOT }])
  })

  it('can be repeated if the response of the store was lost', async () => {
    const jobs = await open({ store: storeWith({ cancel: unansweredOnce(store.cancel.bind(store)) }) })
    const created = await jobs.create(specOf())
    const id = created.outcome === 'created' ? created.job.id : ''
    await expect(jobs.cancel(TENANT, id)).rejects.toMatchObject({ code: 'overloaded' })
    expect(await jobs.cancel(TENANT, id)).toMatchObject({ state: 'cancelled' })
  })

  it('fails with job_already_finished after the completion of the job', async () => {
    const jobs = await open()
    const created = await jobs.create(specOf())
    const id = created.outcome === 'created' ? created.job.id : ''
    await expect(jobs.cancel('key_2', id)).rejects.toMatchObject({ code: 'job_not_found' })
    await run(id)
    await store.complete({ id, attempt: 1, boot: BOOT, chunk: 0 }, { result: null })
    await expect(jobs.cancel(TENANT, id)).rejects.toMatchObject({ code: 'job_already_finished' })
  })
})

describe('the redrive of a durable job', () => {
  it('creates a new job whose parent_id is the id of the ended job', async () => {
    const jobs = await open()
    const created = await jobs.create(specOf())
    const id = created.outcome === 'created' ? created.job.id : ''
    await expect(jobs.redrive(TENANT, id)).rejects.toMatchObject({ code: 'job_not_finished' })
    await jobs.cancel(TENANT, id)
    const again = await jobs.redrive(TENANT, id)
    expect(again).toMatchObject({ outcome: 'created', job: { state: 'queued', parent_id: id } })
    await expect.poll(() => broker.lag('jobs.inference')).toBe(2)
  })
})

it('the wait for the end of a job returns the ended job, or the unfinished job after the timeout', async () => {
  const jobs = await open()
  const created = await jobs.create(specOf())
  const id = created.outcome === 'created' ? created.job.id : ''
  expect(await jobs.waitForEnd(TENANT, id, AbortSignal.abort())).toMatchObject({ state: 'queued' })
  const ended = jobs.waitForEnd(TENANT, id, new AbortController().signal)
  await jobs.cancel(TENANT, id)
  expect(await ended).toMatchObject({ state: 'cancelled' })
  await jobs.close()
})
