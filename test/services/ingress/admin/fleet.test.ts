/* Tests of the admin API for workers, pauses, drains, and webhook deliveries that failed. */

import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { openAdmin } from '../../../support/admin.ts'
import { until } from '../../../support/stack.ts'

const ENDLESS = '!echo tokens=100000 delay_ms=40'

type Entry = Record<string, unknown> & { id: string }
const chat = (content: string, model = 'echo-1') => ({
  model,
  max_tokens: 100_000,
  messages: [{ role: 'user', content }],
})

async function entries(response: Response): Promise<Entry[]> {
  return ((await response.json()) as { data: Entry[] }).data
}

/** Returns the address of a port on which no server listens. */
async function closedPort(): Promise<AddressInfo> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address() as AddressInfo
  server.close()
  return address
}

it('the admin API lists workers with their slots and models, and the backlog of each pool', async () => {
  await using door = await openAdmin()
  const op = door.as('op')
  const id = await door.submit('alice', ENDLESS)
  await door.submit('bob', 'x', { run_at: Math.floor(Date.now() / 1_000) + 3_600 })
  await until(async () => (await door.job('alice', id)).status === 'in_progress')
  const worker = async () => (await entries(await op.get('/v1/admin/workers'))).find(({ role }) => role === 'inference')
  await until(async () => (await worker())?.running === 1 && (await worker())?.models)
  expect(await worker()).toMatchObject({ host: hostname(), pid: process.pid, parked_calls: 0 })
  expect(await worker()).toMatchObject({
    version: 'test',
    draining: false,
    suspected: false,
    models: ['echo-1'],
  })
  const job = (await (await op.get(`/v1/admin/jobs/${id}`)).json()) as Entry
  expect(job).toMatchObject({ worker: (await worker())?.id, waits: null })
  const pool = async () => (await entries(await op.get('/v1/admin/pools'))).find((one) => one.id === 'inference')
  await until(async () => (await pool())?.running === 1)
  expect(await pool()).toMatchObject({
    ...{ workers: 1, draining: 0, paused: [], calls: { queued: 0, running: 0 }, oldest_queued_at: null },
    jobs: { queued: { normal: 0, low: 0 }, scheduled: 1, in_progress: 1, waiting: 0 },
  })
  await door.as('alice').post(`/v1/jobs/${id}/cancel`)
})

it('the admin API lists pools even if the queue does not answer', async () => {
  await using door = await openAdmin()
  const { promise, resolve } = Promise.withResolvers<undefined>()
  door.stack.broker.lag = () => promise
  const pools = await entries(await door.as('op').get('/v1/admin/pools'))
  expect(pools.find(({ id }) => id === 'inference')).toMatchObject({ workers: 1, lag: { normal: null, low: null } })
  resolve(undefined)
})

it('the admin API drains a worker, which completes its jobs, and undrains the worker', async () => {
  await using door = await openAdmin()
  const op = door.as('op')
  const running = await door.submit('alice', ENDLESS)
  await until(async () => (await door.job('alice', running)).status === 'in_progress')
  const workers = await entries(await op.get('/v1/admin/workers'))
  const boot = workers.find(({ role }) => role === 'inference')?.id
  const ingress = workers.find(({ role }) => role === 'ingress')?.id
  expect((await op.post(`/v1/admin/workers/${ingress}/drain`)).status).toBe(404)
  const drained = await op.post(`/v1/admin/workers/${boot}/drain`)
  expect([drained.status, await drained.json()]).toMatchObject([200, { id: boot, draining: true, running: 1 }])
  const next = await door.submit('bob', 'x')
  const seen = async () => (await (await op.get(`/v1/admin/jobs/${next}`)).json()) as Entry
  expect(await seen()).toMatchObject({ status: 'queued', waits: { reason: 'no_worker', ahead: 0 } })
  expect((await door.job('alice', running)).status).toBe('in_progress')
  const back = await op.post(`/v1/admin/workers/${boot}/undrain`)
  expect(await back.json()).toMatchObject({ id: boot, draining: false })
  await until(async () => (await seen()).status === 'completed')
  await door.as('alice').post(`/v1/jobs/${running}/cancel`)
  expect(door.auditEvents().map(({ action, worker }) => [action, worker])).toEqual([
    ['drain_worker', boot],
    ['undrain_worker', boot],
  ])
})

it('a paused model or pool starts no jobs, does not delay other models, and stays paused after a restart', async () => {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-pause-'))
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }))
  let waiting = ''
  {
    await using door = await openAdmin({ models: 2, dataDir })
    const [op, alice] = [door.as('op'), door.as('alice')]
    const running = await alice.post('/v1/chat/completions', { ...chat('!echo tokens=40 delay_ms=20'), stream: true })
    const paused = await op.post('/v1/admin/models/echo-1/pause')
    expect(await paused.json()).toEqual({
      object: 'pause',
      target: 'model',
      id: 'echo-1',
      paused: true,
      persistent: true,
    })
    expect(await running.text()).toContain('[DONE]')
    const refused = await alice.post('/v1/chat/completions', chat('x'))
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, '30'])
    expect(JSON.stringify(await refused.json())).toContain("The model 'echo-1' is paused")
    expect((await alice.post('/v1/chat/completions', chat('x', 'echo-2'))).status).toBe(200)
    waiting = await door.submit('alice', 'x')
    await op.post('/v1/admin/pools/inference/pause')
    expect((await alice.post('/v1/chat/completions', chat('x', 'echo-2'))).status).toBe(503)
    await op.post('/v1/admin/pools/inference/resume')
    const pool = (await entries(await op.get('/v1/admin/pools'))).find((one) => one.id === 'inference')
    expect(pool?.paused).toEqual([{ target: 'model', id: 'echo-1' }])
    expect(await entries(await op.get('/v1/admin/pauses'))).toMatchObject([
      { target: 'model', id: 'echo-1', by_key: 'op' },
    ])
  }
  await using door = await openAdmin({ models: 2, dataDir })
  const op = door.as('op')
  expect((await door.as('alice').post('/v1/chat/completions', chat('x'))).status).toBe(503)
  const other = await door.submit('alice', 'x', { model: 'echo-2' })
  await until(async () => (await door.job('alice', other)).status === 'completed')
  expect((await door.job('alice', waiting)).status).toBe('queued')
  await op.post('/v1/admin/models/echo-1/resume')
  await until(async () => (await door.job('alice', waiting)).status === 'completed')
  expect(await entries(await op.get('/v1/admin/pauses'))).toEqual([])
})

it('the admin API lists failed webhook deliveries without their URLs, and resends them', async () => {
  await using door = await openAdmin({ settings: { WEBHOOK_ALLOW_PRIVATE: 'true' } })
  const op = door.as('op')
  const { port } = await closedPort()
  const webhook = { url: `http://127.0.0.1:${port}/a-secret` }
  const id = await door.submit('alice', 'x', { webhook })
  const undelivered = async (query = '') => entries(await op.get(`/v1/admin/deliveries${query}`))
  await until(async () => (await undelivered())[0]?.attempts === 1)
  const [message] = await undelivered('?status=pending&project=alice')
  expect(message).toMatchObject({ project: 'alice', job_id: id, type: 'job.completed', host: `127.0.0.1:${port}` })
  expect(JSON.stringify(message)).not.toContain('a-secret')
  expect(await undelivered('?status=failed')).toEqual([])
  expect(await undelivered('?project=bob')).toEqual([])
  expect((await op.post(`/v1/admin/deliveries/${message?.id}/retry`)).status).toBe(202)
  await until(async () => Number((await undelivered())[0]?.attempts) >= 2)
  const [again] = await undelivered()
  const history = again?.history as { at: number; duration_ms: number; error: string | null }[]
  expect(history.length).toBeGreaterThanOrEqual(1)
  expect(history[0]).toMatchObject({ response_status: null, at: expect.any(Number), duration_ms: expect.any(Number) })
  expect(history[0]?.error).toBeTruthy()
  expect(door.auditEvents()).toMatchObject([
    { action: 'retry_delivery', delivery_id: message?.id, of_project: 'alice' },
  ])
})
