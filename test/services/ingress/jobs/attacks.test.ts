/* Regression tests of attacks on durable jobs that once succeeded. */

import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { JobsApi } from '#services/cli/client/jobs-api.ts'
import { Loop } from '#services/scheduler/scheduler.ts'
import { RetryBudget } from '#shared/jobs/decide.ts'
import { Dispatcher, Family } from '#shared/jobs/durable/dispatch.ts'
import { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { follow, LiveEvents } from '#shared/jobs/durable/follow.ts'
import { DurableRun } from '#shared/jobs/worker/durable-run.ts'
import type { Store } from '#shared/store/store.ts'
import {
  CHAT,
  CHAT_KEY,
  chunksOf,
  errorOf,
  jobOf,
  OTHER_KEY,
  type Service,
  say,
  startService,
  switchedStore,
  type WireEvent,
} from '../../../support/jobs/api.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { openBroker, silentLog } from '../../../support/jobs/jobs.ts'
import { until } from '../../../support/stack.ts'

type WireChunk = NonNullable<WireEvent['chunk']>

const REFUSED = '!echo fail=invalid_value\nno'

const redrive = (service: Service, id: string, init = {}) => service.post(`/v1/jobs/${id}/redrive`, undefined, init)

/**
 * Wraps a store. If `through` has a function for a method, then this function receives each call of the method, and may delay or repeat the
 * call.
 */
function storeWith(store: Store, through: Partial<Record<keyof Store, (call: () => unknown) => unknown>>): Store {
  return new Proxy(store, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown
      if (typeof value !== 'function') return value
      const way = through[name as keyof Store]
      return (...given: unknown[]) => (way ? way(() => value.apply(target, given)) : value.apply(target, given))
    },
  })
}

describe('a redriven job', () => {
  it('is created once for a repeated Idempotency-Key', async () => {
    await using service = await startService()
    const { id } = await service.ended((await service.submit(say(REFUSED))).id)
    const init = { headers: { 'idempotency-key': 'once' } }
    const first = await redrive(service, id, init)
    const second = await redrive(service, id, init)
    expect(second.headers.get('idempotency-replayed')).toBe('true')
    expect((await jobOf(second)).id).toBe((await jobOf(first)).id)
  })

  it('keeps its body if the original job is deleted', async () => {
    await using service = await startService()
    const first = await service.ended((await service.submit(say(`${REFUSED}${'x'.repeat(100_000)}`))).id)
    const second = await service.ended((await jobOf(await redrive(service, first.id))).id)
    const third = await service.ended((await jobOf(await redrive(service, second.id))).id)
    for (const { id } of [second, first]) await service.call('DELETE', `/v1/jobs/${id}`)
    const last = await service.ended((await jobOf(await redrive(service, third.id))).id)
    expect(last.error).toMatchObject({ code: 'invalid_value' })
  })

  it('is refused if the job quota is used up', async () => {
    await using service = await startService({
      settings: { DURABLE_JOBS_MAX: '2', DURABLE_JOBS_MAX_PER_PROJECT: '3', INFERENCE_SLOTS: '1' },
    })
    const { id } = await service.ended((await service.submit(say(REFUSED))).id)
    // The service caches the number of jobs for a second. Until then, the ended job still counts against the quota, so the test repeats the
    // submission.
    const slow = { endpoint: CHAT, body: say('!echo first_ms=60000\nx') }
    const fill = async () => (await service.post('/v1/jobs', slow)).status
    await until(async () => (await fill()) === 202)
    await until(async () => (await fill()) === 202)
    const refused = await redrive(service, id)
    expect([refused.status, (await errorOf(refused)).code]).toEqual([503, 'overloaded'])
  })

  it('is refused if the key has lost the permission for the endpoint', async () => {
    const dataDir = await mkdtemp(join(tmpdir(), 'sluice-attack-'))
    onTestFinished(() => rm(dataDir, { recursive: true, force: true }))
    await using service = await startService({ dataDir })
    const init = { key: CHAT_KEY }
    const { id } = await service.submit(say(REFUSED), {}, init)
    await until(async () => (await jobOf(await service.get(`/v1/jobs/${id}`, init))).status === 'failed')
    const hash = createHash('sha256').update(CHAT_KEY).digest('hex')
    const key = { id: 'key_chat', hash, hint: 'sk-...6789', created_at: 1, endpoints: ['/v1/messages'] }
    await writeFile(join(dataDir, 'keys.json'), JSON.stringify({ keys: [key] }))
    await until(async () => (await service.post(CHAT, say('x'), init)).status === 403)
    expect((await redrive(service, id, init)).status).toBe(403)
  })
})

it('a durable job that is cancelled before its claim is confirmed does not run', async () => {
  const claimed = Promise.withResolvers<void>()
  const goOn = Promise.withResolvers<void>()
  const claimNext = async (call: () => unknown) => {
    const moved = (await call()) as unknown[]
    if (moved.length === 0) return moved
    claimed.resolve()
    await goOn.promise
    return moved
  }
  // The lease lasts a day, so no renewal reports the cancel to the worker during the test. The worker stops the job only if it received the
  // notification of the cancel.
  const settings = { JOB_LEASE_MS: '86400000' }
  await using service = await startService({ wrapStore: (store) => storeWith(store, { claimNext }), settings })
  const { id } = await service.submit(say('!echo delay_ms=100 tokens=10000', { stream: true }))
  await claimed.promise
  expect((await jobOf(await service.post(`/v1/jobs/${id}/cancel`, undefined))).status).toBe('cancelling')
  await new Promise((resolve) => setImmediate(resolve))
  goOn.resolve()
  const ended = await service.ended(id)
  expect([ended.status, ended.last_sequence_number]).toEqual(['cancelled', 4])
})

it('a process with running jobs exits while the store is down', async () => {
  const outage = switchedStore()
  await using service = await startService({ wrapStore: outage.wrap })
  const { id } = await service.submit(say('!echo delay_ms=20 tokens=100000', { stream: true }))
  await until(async () => (await service.job(id)).last_sequence_number > 3)
  outage.isDown = true
  expect(await service.stop()).toBe(true)
})

it('a failed attempt is retried no earlier than 30 s later if the retry budget is used up', async () => {
  const delays: number[] = []
  const store = {
    retry: async (_run: unknown, { delayMs }: { delayMs: number }) => void delays.push(delayMs),
  } as unknown as Store
  const broker = await openBroker()
  const budget = new RetryBudget(0.1, 0)
  const job = { id: 'job_1', attempt: 1, deadline_ms: Date.now() + 3_600_000, stream: false }
  const kind = { answer: () => ({}), merge: () => undefined }
  const { signal } = new AbortController()
  const dispatcher = new Dispatcher(broker, silentLog)
  const family = new Family({ store, dispatcher, log: silentLog, notifyOwner: () => {} })
  const options = { store, blobs: memoryBlobs(), dispatcher, family, log: silentLog, budget, signal }
  const run = new DurableRun(job as never, kind as never, { job: { tries: 0 } } as never, 'wrk_1', options)
  await run.failed({ code: 'overloaded', message: 'Not now.', param: null })
  expect(delays).toHaveLength(1)
  expect(delays[0]).toBeGreaterThanOrEqual(30_000)
})

it('a stream that ends because of a failed attempt closes its subscription to job events', async () => {
  let open = 0
  const original = DurableJobs.prototype.follow
  vi.spyOn(DurableJobs.prototype, 'follow').mockImplementation(async function* (this: DurableJobs, ...given) {
    open++
    try {
      yield* original.apply(this, given)
    } finally {
      open--
    }
  })
  onTestFinished(() => void vi.restoreAllMocks())
  await using service = await startService()
  const body = say('!echo fail=overloaded after=3 failures=1\none two three four five', { stream: true, store: true })
  const text = await (await service.post(CHAT, body)).text()
  expect(text).toContain('started over')
  await until(() => open === 0)
})

it('a subscriber of a job that waits for days reads the store fewer than 200 times per day', async () => {
  const broker = await openBroker()
  const live = await LiveEvents.open(broker, silentLog)
  vi.useFakeTimers()
  onTestFinished(() => void vi.useRealTimers())
  let asked = 0
  const store = {
    listEvents: async () => {
      asked++
      return []
    },
    find: async () => ({ erased_at_ms: null }),
  } as unknown as Store
  const left = new AbortController()
  const events = follow({ live, store, scope: 'key_1', id: 'job_1', after: 1, signal: left.signal, pollMsMax: 600_000 })
  const ended = events.next()
  await vi.advanceTimersByTimeAsync(24 * 3_600_000)
  left.abort()
  await ended
  expect(asked).toBeLessThan(200)
})

it('a webhook receiver that does not respond delays no webhook of another tenant', async () => {
  const received: string[] = []
  const servers = Array.from({ length: 9 }, (_, i) =>
    createServer((_req, res) => {
      received.push(i < 8 ? 'slow' : 'other')
      if (i === 8) res.end()
    }),
  )
  const urls: string[] = []
  for (const server of servers) {
    await once(server.listen(0, '127.0.0.1'), 'listening')
    urls.push(`http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`)
    onTestFinished(() => {
      server.close()
      server.closeAllConnections()
    })
  }
  await using service = await startService({ settings: { WEBHOOK_ALLOW_PRIVATE: 'true' } })
  for (let i = 0; i < 40; i++) await service.submit(say('x'), { webhook: { url: urls[i % 8] } })
  await until(() => received.length >= 16)
  await service.submit(say('x'), { webhook: { url: urls[8] } }, { key: OTHER_KEY })
  await until(() => received.includes('other'))
  expect(received.filter((who) => who === 'slow')).toHaveLength(16)
})

it('a webhook URL with a NUL character is refused with 400', async () => {
  await using service = await startService()
  const body = { endpoint: CHAT, body: say('x'), webhook: { url: 'https://example.com/\u0000' } }
  expect((await service.post('/v1/jobs', body)).status).toBe(400)
})

it('a webhook with a hundred repeated event types is refused with 400', async () => {
  await using service = await startService()
  const webhook = { url: 'https://example.com/', events: Array(100).fill('job.completed') }
  expect((await service.post('/v1/jobs', { endpoint: CHAT, body: say('x'), webhook })).status).toBe(400)
})

it('a scheduler loop that hangs is reported', async () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  onTestFinished(() => void vi.useRealTimers())
  const goOn = Promise.withResolvers<void>()
  const loop = new Loop({ name: 'due', intervalMs: 1, log: silentLog, canRun: () => true, run: () => goOn.promise })
  expect(loop.problem).toBeUndefined()
  vi.advanceTimersByTime(3_600_000)
  expect(loop.problem).toContain("'due' hangs")
  goOn.resolve()
  await loop.stop()
  expect(loop.problem).toBeUndefined()
})

it('an Idempotency-Key expires with its job if the retention is less than a day', async () => {
  await using service = await startService({ settings: { JOB_RETENTION_MS: '1000' } })
  const init = { headers: { 'idempotency-key': 'k', prefer: 'respond-async' } }
  const { id } = await jobOf(await service.post(CHAT, say('x'), init))
  await until(async () => (await service.get(`/v1/jobs/${id}`)).status === 404)
  expect((await service.post(CHAT, say('x'), init)).status).toBe(202)
})

it('the list command continues after a page without jobs of the requested status', async () => {
  const pages = [
    { data: [], has_more: true, last_id: 'job_b' },
    { data: [{ id: 'job_a', status: 'in_progress', created_at: 1 }], has_more: false, last_id: 'job_a' },
  ]
  const json = async (schema: { parse(page: unknown): unknown }) => schema.parse(pages.shift())
  const found: string[] = []
  for await (const { id } of new JobsApi({ json } as never).list({ statuses: ['in_progress'] }, 100)) found.push(id)
  expect(found).toEqual(['job_a'])
})

it('an Idempotency-Key returns the complete stream of a job whose first attempt failed', async () => {
  await using service = await startService()
  const body = say('!echo fail=overloaded after=3 failures=1\none two three four five', { stream: true })
  const init = { headers: { 'idempotency-key': 'k' } }
  const first = await service.post(CHAT, body, init)
  expect(await first.text()).toContain('started over')
  await service.ended(first.headers.get('x-job-id') ?? '')
  const again = await (await service.post(CHAT, body, init)).text()
  const text = chunksOf(again).map((chunk) => (chunk as WireChunk).choices?.[0]?.delta.content ?? '')
  expect(text.join('')).toBe('one two three four five')
})

it('a job list filter that names a status several times reads the jobs of that status once', async () => {
  const asked: unknown[] = []
  const wrapStore = (store: Store) =>
    new Proxy(store, {
      get(target, name) {
        const value = Reflect.get(target, name) as unknown
        if (typeof value !== 'function') return value
        return (...given: unknown[]) => {
          if (name === 'list') asked.push(given[1])
          return value.apply(target, given)
        }
      },
    })
  await using service = await startService({ wrapStore })
  await service.get(`/v1/jobs?status=${Array(20).fill('queued').join(',')}`)
  expect(asked).toMatchObject([{ states: ['queued', 'scheduled'] }])
})
