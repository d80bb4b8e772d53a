import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type JobEvent, ReplyRecord } from '#schemas/event.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { recordOf } from '#shared/jobs/body.ts'
import { CONTROL, REPLIES } from '#shared/jobs/records.ts'
import { Worker } from '#shared/jobs/worker/worker.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { envelopeOf, openBroker, sayKind, silentLog } from '../../../support/jobs/jobs.ts'
import { until } from '../../../support/stack.ts'

const QUEUE = 'jobs.inference'

let broker: Broker
let events: JobEvent[]
let workers: Worker[]
/** Running jobs. The key is the job id, and the value a function that ends the job. */
let running: Map<string, () => void>
beforeEach(async () => {
  broker = await openBroker()
  events = []
  workers = []
  running = new Map()
  await broker.receive(REPLIES, [0], (record) => {
    events.push(...ReplyRecord.parse(JSON.parse(record.value.toString())).events)
  })
})
afterEach(async () => {
  for (const worker of workers) await worker.close()
  await broker.close()
})

/** A kind whose jobs run until the test ends them, or until they are aborted. */
const say: Handler = {
  ...sayKind,
  parse: (body) => body,
  async *run(_body, { signal, idempotencyKey }) {
    const id = idempotencyKey.slice('job_'.length, -':1'.length)
    await new Promise<void>((resolve) => {
      running.set(id, resolve)
      signal.addEventListener('abort', () => resolve())
    })
    running.delete(id)
    yield { text: 'done' }
  },
}

async function openWorker(slots: number, capacity: number): Promise<Worker> {
  const bounds = capacity < slots ? [{ kind: 'say', model: 'slow', capacity }] : []
  const worker = await Worker.open(
    { name: 'inference', slots, kinds: { say }, models: ['slow', 'quick'], concurrencyLimits: bounds, modelCount: 2 },
    {
      broker,
      blobs: memoryBlobs(),
      log: silentLog,
      version: 'test',
      observer: { onEnd: () => {} },
      store: undefined,
      leaseMs: 9_000,
      bodyBudgetBytes: 1024 * 1024,
      onFatal: (error) => {
        throw error
      },
    },
  )
  workers.push(worker)
  return worker
}

async function submit(model: string, count: number, more: object = {}): Promise<void> {
  for (let i = 0; i < count; i++) await submitOne(`${model}${i}`, { model, ...more })
}

async function submitOne(id: string, more: object): Promise<void> {
  const { body: _body, ...envelope } = envelopeOf({ id: `job_${id}`, model: 'slow', ...more })
  await broker.submit(QUEUE, recordOf(envelope, { json: '{}' }))
}

const runs = (model: string) => [...running.keys()].filter((id) => id.startsWith(model))
const said = (id: string) => events.filter(({ job_id }) => job_id === `job_${id}`).map(({ type }) => type)

describe('the calls of a model that stops responding', () => {
  it('occupy no more slots than the limit of their model', async () => {
    const worker = await openWorker(4, 2)
    await submit('slow', 8)
    await until(() => worker.parkedCalls === 6)
    await submit('quick', 2)
    await until(() => runs('quick').length === 2)
    expect(runs('slow')).toEqual(['slow0', 'slow1'])
    expect(worker.running).toBe(4)
  })

  it('leave an extra slot to another model if they occupy every slot', async () => {
    const worker = await openWorker(4, 4)
    await submit('slow', 8)
    await until(() => worker.running === 4)
    await submit('quick', 1)
    await until(() => runs('quick').length === 1)
    expect([worker.running, worker.parkedCalls]).toEqual([5, 4])
  })

  it('release slots to the model with the fewest slots, even if its calls arrived last', async () => {
    const worker = await openWorker(8, 8)
    await submit('slow', 12)
    await until(() => worker.running === 8)
    await submit('quick', 3)
    await until(() => worker.parkedCalls === 6)
    const endSlow = async (then: string | undefined) => {
      const [oldest = ''] = runs('slow')
      running.get(oldest)?.()
      await until(() => said(oldest).includes('completed') && (!then || runs(then).length === 1))
    }
    await endSlow('quick1')
    await endSlow('quick2')
    expect(worker.running, 'running calls with an extra slot').toBe(9)
    await endSlow(undefined)
    expect(worker.running, 'running calls').toBe(8)
    await endSlow('slow8')
  })

  it('receive the slots of their model in order of arrival', async () => {
    const worker = await openWorker(4, 1)
    await submit('slow', 4)
    await until(() => worker.parkedCalls === 3)
    const order: string[] = []
    for (let i = 0; i < 4; i++) {
      const [id = ''] = await until(() => (runs('slow').length === 1 ? runs('slow') : undefined))
      order.push(id)
      running.get(id)?.()
      await until(() => said(id).includes('completed'))
    }
    expect(order).toEqual(['slow0', 'slow1', 'slow2', 'slow3'])
    expect(worker.running + worker.parkedCalls).toBe(0)
  })

  it('receive slots by tenant, beginning with the tenant with the fewest running calls', async () => {
    await openWorker(4, 2)
    await submit('slow', 6, { tenant: 'key_a' })
    await until(() => runs('slow').length === 2)
    for (const id of ['slow6', 'slow7']) await submitOne(id, { tenant: 'key_b' })
    await submitOne('slow8', { tenant: 'key_c' })
    const order: string[] = []
    for (let i = 0; i < 9; i++) {
      const [id = ''] = await until(() => (runs('slow').length === Math.min(2, 9 - i) ? runs('slow') : undefined))
      order.push(id)
      running.get(id)?.()
      await until(() => said(id).includes('completed'))
    }
    expect(order).toEqual(['slow0', 'slow1', 'slow6', 'slow2', 'slow8', 'slow7', 'slow3', 'slow4', 'slow5'])
  })

  it('stop waiting for a permit at a cancel or at their deadline', async () => {
    const worker = await openWorker(4, 1)
    await submit('slow', 2)
    await until(() => worker.parkedCalls === 1)
    const cancel = { type: 'cancel', job_id: 'job_slow1' }
    await broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify(cancel)))
    await until(() => worker.parkedCalls === 0)
    const { body: _body, ...late } = envelopeOf({ id: 'job_late', model: 'slow', deadline_ms: Date.now() + 300 })
    await broker.submit(QUEUE, recordOf(late, { json: '{}' }))
    await until(() => said('late').includes('failed'))
    expect(worker.parkedCalls).toBe(0)
    expect(runs('slow')).toEqual(['slow0'])
    expect(said('slow1')).toEqual(['started'])
  })

  it('are requeued when their worker drains, including those that wait for a permit', async () => {
    const worker = await openWorker(4, 1)
    await submit('slow', 3)
    await until(() => worker.parkedCalls === 2)
    await worker.drain(AbortSignal.abort())
    for (const id of ['slow0', 'slow1', 'slow2']) await until(() => said(id).includes('handed_back'))
  })
})
