import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import { describe, expect, it, onTestFinished } from 'vitest'
import { sharedKeyOf, signingKeys } from '#services/scheduler/webhook-secret.ts'
import { outcomeOf, RETRIES_MS, type WebhookOptions, WebhookSender } from '#services/scheduler/webhooks.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import type { KeyStore } from '#shared/keys/keys.ts'
import { newWebhookSecret, webhookKeyOf, webhookSecretsOf } from '#shared/keys/webhook-secrets.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { Metrics } from '#shared/lib/metrics.ts'
import { ALL_TENANTS, type NewJob, type Store } from '#shared/store/store.ts'
import { silentLog } from '../../support/jobs/jobs.ts'
import { alive, claimed, newJob, openSqliteDatabase, running, type TestDatabase } from '../../support/jobs/stores.ts'
import { until } from '../../support/stack.ts'

const SECRET = `whsec_${Buffer.from('a secret of thirty-two characters').toString('base64')}`
const client = new OpenAI({ apiKey: 'none', webhookSecret: SECRET })

/** A webhook request as the receiver got it. */
interface Received {
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly body: string
}

interface Receiver extends AsyncDisposable {
  readonly url: string
  readonly port: number
  readonly received: Received[]
}

type Answer = (res: ServerResponse, received: Received) => void

async function openReceiver(answer: Answer = (res) => void res.end()): Promise<Receiver> {
  const received: Received[] = []
  const server = createServer((req, res) => {
    let body = ''
    req.setEncoding('utf8').on('data', (chunk) => {
      body += chunk
    })
    req.on('end', () => {
      const one = { path: req.url ?? '', headers: req.headers, body }
      received.push(one)
      answer(res, one)
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}/hook`,
    port,
    received,
    async [Symbol.asyncDispose]() {
      server.close()
      server.closeAllConnections()
      await once(server, 'close')
    },
  }
}

/** Tracks how many requests are in progress, and calculates their maximum and their mean over time. */
class Usage {
  #now = 0
  #sum = 0
  #from: number | undefined
  #since = 0
  most = 0

  change(by: number): void {
    const at = performance.now()
    this.#sum += this.#now * (at - this.#since)
    this.#from ??= at
    this.#since = at
    this.#now += by
    this.most = Math.max(this.most, this.#now)
  }

  /** Mean over the time from the first change to the last one. */
  get mean(): number {
    return this.#sum / (this.#since - (this.#from ?? 0))
  }
}

/** A store with jobs, and a sender of webhooks. The sender runs only when the test calls `deliver`. */
interface Setup extends AsyncDisposable {
  readonly store: Store
  readonly database: TestDatabase
  readonly sender: WebhookSender
  readonly metrics: Metrics
  /** Sends all deliveries that are due, waits for their end, and returns the deliveries of one job. */
  deliver(jobId: string): ReturnType<Store['listDeliveries']>
}

async function openSetup(changes: Partial<WebhookOptions> = {}): Promise<Setup> {
  const database = await openSqliteDatabase()
  const store = await database.open()
  const metrics = new Metrics()
  const keysOf = async () => [webhookKeyOf(SECRET)]
  const policy = { allowPrivate: true }
  const sender = new WebhookSender({ store, log: silentLog, metrics, version: 'test', keysOf, policy, ...changes })
  return {
    store,
    database,
    sender,
    metrics,
    async deliver(jobId) {
      await sender.sendDue(new AbortController().signal)
      await sender.drain(new AbortController().signal)
      return await store.listDeliveries(jobId)
    },
    async [Symbol.asyncDispose]() {
      await sender.drain(AbortSignal.abort())
      await database[Symbol.asyncDispose]()
    },
  }
}

/** Creates a job with a webhook and completes it. Returns its id. */
async function completed(store: Store, url: string, changes: Partial<NewJob> = {}): Promise<string> {
  const run = await running(store, { webhook: { url, events: ['job.completed'] }, ...changes })
  await store.complete(run, { result: { ok: true } })
  return run.id
}

describe('webhook deliveries', () => {
  it('have a signature that the official SDK verifies', async () => {
    await using receiver = await openReceiver()
    await using setup = await openSetup()
    const id = await completed(setup.store, receiver.url, { metadata: { order: '17' } })
    const [delivery] = await setup.deliver(id)
    expect(delivery).toMatchObject({ state: 'delivered', status: 200, tries: 1, error: null })
    const [received] = receiver.received as [Received]
    expect(received.headers).toMatchObject({ 'content-type': 'application/json', 'webhook-id': delivery?.id })
    const event = await client.webhooks.unwrap(received.body, received.headers as Record<string, string>)
    expect(event).toEqual({
      id: delivery?.id,
      object: 'event',
      type: 'job.completed',
      created_at: Math.floor((delivery?.created_at_ms ?? 0) / 1_000),
      data: { id, status: 'completed', endpoint: '/v1/chat/completions', metadata: { order: '17' } },
    })
  })

  it('fail verification if a byte of the body changed or if the secret is wrong', async () => {
    await using receiver = await openReceiver()
    await using setup = await openSetup()
    await setup.deliver(await completed(setup.store, receiver.url))
    const [{ body, headers }] = receiver.received as [Received]
    const plain = headers as Record<string, string>
    await expect(client.webhooks.unwrap(body.replace('completed', 'failed'), plain)).rejects.toThrow('signature')
    const other = `whsec_${Buffer.from('another secret of the same length').toString('base64')}`
    await expect(client.webhooks.unwrap(body, plain, other)).rejects.toThrow('signature')
  })

  it('are retried after each documented delay, then marked as failed', async () => {
    await using receiver = await openReceiver((res) => res.writeHead(500).end('no'))
    await using setup = await openSetup()
    const id = await completed(setup.store, receiver.url, { retentionMs: 48 * 3_600_000 })
    for (const waitMs of RETRIES_MS) {
      const [delivery] = await setup.deliver(id)
      expect(delivery).toMatchObject({
        state: 'pending',
        status: 500,
        error: 'The receiver responded with status 500.',
      })
      const tries = receiver.received.length
      await setup.database.advance(waitMs * 0.9 - 1_000)
      await setup.deliver(id)
      expect(receiver.received).toHaveLength(tries)
      await setup.database.advance(waitMs * 0.2 + 1_000)
    }
    expect(await setup.deliver(id)).toMatchObject([{ state: 'failed', status: 500, tries: 8 }])
    expect(receiver.received).toHaveLength(8)
    expect(new Set(receiver.received.map(({ headers }) => headers['webhook-id'])).size).toBe(1)
    expect(new Set(receiver.received.map(({ body }) => body)).size).toBe(1)
  })

  it('succeed in a later attempt with a new signature', async () => {
    await using receiver = await openReceiver((res) => res.writeHead(receiver.received.length < 3 ? 503 : 204).end())
    await using setup = await openSetup({ retriesMs: [1, 1, 1] })
    const id = await completed(setup.store, receiver.url)
    await until(async () => (await setup.deliver(id))[0]?.state === 'delivered')
    expect(receiver.received).toHaveLength(3)
    for (const { body, headers } of receiver.received) {
      await client.webhooks.verifySignature(body, headers as Record<string, string>)
    }
  })

  it('fail without a retry after a 410 response', async () => {
    await using receiver = await openReceiver((res) => res.writeHead(410).end())
    await using setup = await openSetup()
    const id = await completed(setup.store, receiver.url)
    expect(await setup.deliver(id)).toMatchObject([{ state: 'failed', status: 410, tries: 1 }])
    expect((await setup.metrics.text()).text).toContain('sluice_webhooks_total{outcome="failed"} 1\n')
  })

  it('do not follow a redirect', async () => {
    await using receiver = await openReceiver((res) => res.writeHead(302, { location: '/elsewhere' }).end())
    await using setup = await openSetup()
    const id = await completed(setup.store, receiver.url)
    expect(await setup.deliver(id)).toMatchObject([{ state: 'pending', status: 302 }])
    expect(receiver.received.map(({ path }) => path)).toEqual(['/hook'])
  })

  it('wait for the Retry-After of a 429 response', async () => {
    await using receiver = await openReceiver((res) => res.writeHead(429, { 'retry-after': '120' }).end())
    await using setup = await openSetup()
    const id = await completed(setup.store, receiver.url)
    await setup.deliver(id)
    await setup.database.advance(110_000)
    await setup.deliver(id)
    expect(receiver.received).toHaveLength(1)
    await setup.database.advance(11_000)
    await setup.deliver(id)
    expect(receiver.received).toHaveLength(2)
  })

  it('are not sent to a private address, even if the host name had a public address at submission', async () => {
    await using receiver = await openReceiver()
    const resolve = async () => [{ address: '127.0.0.1', family: 4 }]
    await using setup = await openSetup({ policy: { allowPrivate: false }, resolve })
    const named = await completed(setup.store, `https://hook.example:${receiver.port}/`)
    const literal = await completed(setup.store, `https://127.0.0.1:${receiver.port}/`)
    expect(await setup.deliver(named)).toMatchObject([
      { state: 'pending', status: null, error: 'The host has no public address.' },
    ])
    expect(await setup.store.listDeliveries(literal)).toMatchObject([{ state: 'pending', status: null }])
    expect(receiver.received).toHaveLength(0)
  })

  it('of one job arrive in order, even if the first attempt fails', async () => {
    await using receiver = await openReceiver((res) => res.writeHead(receiver.received.length === 1 ? 500 : 200).end())
    await using setup = await openSetup({ retriesMs: [1] })
    const { store } = setup
    const job = newJob({ webhook: { url: receiver.url, events: ['job.started', 'job.completed'] } })
    await store.create(job)
    await store.complete(await claimed(store, job.id, await alive(store)), { result: null })
    await until(async () => (await setup.deliver(job.id)).every(({ state }) => state === 'delivered'))
    const types = receiver.received.map(({ body }) => JSON.parse(body).type)
    expect(types).toEqual(['job.started', 'job.started', 'job.completed'])
  })

  it('to a slow host run at most four at once, and do not delay other hosts', async () => {
    const held: ServerResponse[] = []
    let isSlow = true
    await using receiver = await openReceiver((res, { headers }) => {
      if (isSlow && headers.host?.startsWith('slow')) held.push(res)
      else res.end()
    })
    const resolve = async () => [{ address: '127.0.0.1', family: 4 }]
    await using setup = await openSetup({ resolve })
    const { store, sender, database } = setup
    const slow: string[] = []
    for (let i = 0; i < 20; i++) slow.push(await completed(store, `http://slow.example:${receiver.port}/`))
    const quick = await completed(store, `http://quick.example:${receiver.port}/`)
    await until(async () => {
      await sender.sendDue(new AbortController().signal)
      return (await store.listDeliveries(quick))[0]?.state === 'delivered'
    })
    await until(() => held.length === 4)
    expect(receiver.received).toHaveLength(5)
    isSlow = false
    for (const res of held) res.end()
    await until(async () => {
      await setup.deliver(quick)
      await database.advance(10_000)
      const deliveries = await Promise.all(slow.map((id) => store.listDeliveries(id)))
      return deliveries.every(([delivery]) => delivery?.state === 'delivered')
    })
    expect(receiver.received).toHaveLength(21)
  })

  it('to many hosts use at most 32 connections at once', async () => {
    const held: ServerResponse[] = []
    await using receiver = await openReceiver((res) => void held.push(res))
    const resolve = async () => [{ address: '127.0.0.1', family: 4 }]
    await using setup = await openSetup({ resolve })
    for (let i = 0; i < 36; i++) {
      await completed(setup.store, `http://host-${i}.example:${receiver.port}/`, { tenant: `key_${i % 3}` })
    }
    await setup.sender.sendDue(new AbortController().signal)
    await until(() => held.length === 32)
    await setup.sender.sendDue(new AbortController().signal)
    expect(held).toHaveLength(32)
    held[0]?.end()
    await until(() => held.length === 33)
  })

  it('of a burst to one host start as soon as one of the four permits of the host is free', async () => {
    const answerMs = 100
    const sending = new Usage()
    await using receiver = await openReceiver((res) => {
      sending.change(1)
      setTimeout(() => {
        sending.change(-1)
        res.end()
      }, answerMs)
    })
    await using setup = await openSetup()
    const boot = await alive(setup.store)
    const webhook = { url: receiver.url, events: ['job.completed'] }
    const ids = await Promise.all(
      Array.from({ length: 300 }, async () => {
        const run = await running(setup.store, { webhook }, boot)
        await setup.store.complete(run, { result: null })
        return run.id
      }),
    )
    const turns = setInterval(() => void setup.sender.sendDue(new AbortController().signal), 500)
    onTestFinished(() => clearInterval(turns))
    await until(() => receiver.received.length === ids.length, { withinMs: 60_000 })
    clearInterval(turns)
    await setup.sender.drain(new AbortController().signal)
    expect(sending.most, 'permits in use').toBe(4)
    expect(sending.mean, 'mean permits in use').toBeGreaterThan(4 / 1.5)
    const deliveries = (await Promise.all(ids.map((id) => setup.store.listDeliveries(id)))).flat()
    expect(deliveries.filter(({ state, tries }) => state !== 'delivered' || tries !== 1)).toEqual([])
  })

  it('that were not sent before a drain stay due, without a counted attempt', async () => {
    const held: ServerResponse[] = []
    await using receiver = await openReceiver((res) => void held.push(res))
    await using setup = await openSetup()
    for (let i = 0; i < 6; i++) await completed(setup.store, receiver.url)
    await setup.sender.sendDue(new AbortController().signal)
    await until(() => held.length === 4)
    const drained = setup.sender.drain(new AbortController().signal)
    for (const res of held) res.end()
    await drained
    expect(receiver.received).toHaveLength(4)
    expect(await setup.store.takeDeliveries(10, 1_000)).toMatchObject([{ tries: 0 }, { tries: 0 }])
  })

  it('of a job.started event have the status in_progress, even if the job has already ended', async () => {
    await using receiver = await openReceiver()
    await using setup = await openSetup()
    const run = await running(setup.store, { webhook: { url: receiver.url, events: ['job.started', 'job.completed'] } })
    await setup.store.complete(run, { result: null })
    await until(async () => (await setup.deliver(run.id)).every(({ state }) => state === 'delivered'))
    const said = receiver.received.map(({ body }) => JSON.parse(body)).map(({ type, data }) => [type, data.status])
    expect(said).toEqual([
      ['job.started', 'in_progress'],
      ['job.completed', 'completed'],
    ])
  })

  it('that wait for a response are aborted by a drain, and retried by the next process', async () => {
    await using receiver = await openReceiver((res) => {
      if (receiver.received.length > 1) res.end()
    })
    await using setup = await openSetup()
    const id = await completed(setup.store, receiver.url)
    await setup.sender.sendDue(new AbortController().signal)
    await until(() => receiver.received.length === 1)
    await setup.sender.drain(AbortSignal.abort())
    expect(await setup.store.listDeliveries(id)).toMatchObject([
      { state: 'pending', error: 'The delivery attempt was aborted.' },
    ])
    await using after = await openSetupOver(setup)
    expect(await after.deliver(id)).toMatchObject([{ state: 'delivered', tries: 2 }])
  })

  it('of a deleted job are not sent', async () => {
    await using receiver = await openReceiver()
    await using setup = await openSetup()
    const id = await completed(setup.store, receiver.url)
    expect(await setup.store.erase(ALL_TENANTS, id)).toBe(true)
    expect(await setup.deliver(id)).toMatchObject([{ state: 'failed', error: 'The job was deleted.' }])
    expect(receiver.received).toHaveLength(0)
  })
})

/** Opens a second sender on the store of the first, as after a restart of the scheduler. */
async function openSetupOver({ store, database, metrics }: Setup): Promise<Setup> {
  const keysOf = async () => [webhookKeyOf(SECRET)]
  const policy = { allowPrivate: true }
  const sender = new WebhookSender({ store, log: silentLog, metrics, version: 'test', keysOf, policy })
  return {
    ...{ store, database, metrics, sender },
    async deliver(jobId) {
      await sender.sendDue(new AbortController().signal)
      await sender.drain(new AbortController().signal)
      return await store.listDeliveries(jobId)
    },
    [Symbol.asyncDispose]: () => sender.drain(AbortSignal.abort()),
  }
}

describe('the outcome of a webhook delivery', () => {
  const answered = (status: number, headers: IncomingHttpHeaders = {}) => ({ status, headers })

  it.each([200, 201, 204, 299])('is success for the status %d', (status) => {
    expect(outcomeOf(answered(status), 1, RETRIES_MS, 0.5)).toEqual({ state: 'delivered', status })
  })

  it.each([301, 307, 400, 401, 404, 408, 429, 500, 502, 503])('is a retry for the status %d', (status) => {
    expect(outcomeOf(answered(status), 1, RETRIES_MS, 0.5)).toMatchObject({
      state: 'pending',
      status,
      retryInMs: 5_000,
    })
  })

  it('is a retry whose delay varies randomly by 10 %', () => {
    const error = new ServiceError('upstream_timeout', 'silence')
    const wait = (random: number) => outcomeOf(error, 1, RETRIES_MS, random)
    expect(wait(0)).toMatchObject({ state: 'pending', retryInMs: 4_500, error: 'silence' })
    expect(wait(1)).toMatchObject({ state: 'pending', retryInMs: 5_500 })
  })

  it.each([
    [429, '60', 60_000],
    [503, '60', 60_000],
    [500, '60', 5_000],
    [429, '1', 5_000],
    [429, 'soon', 5_000],
    [429, '-1', 5_000],
    [429, '', 5_000],
    [429, '99999999', 10 * 3_600_000],
    [503, 'Fri, 01 Jan 2100 00:00:00 GMT', 10 * 3_600_000],
    [503, 'Fri, 01 Jan 2010 00:00:00 GMT', 5_000],
  ])('for the status %d with Retry-After: %s is a retry after %d ms', (status, retryAfter, retryInMs) => {
    const outcome = outcomeOf(answered(status, { 'retry-after': retryAfter }), 1, RETRIES_MS, 0.5)
    expect(outcome).toMatchObject({ state: 'pending', retryInMs })
  })
})

describe('webhook secrets', () => {
  async function openKeys() {
    const directory = await mkdtemp(join(tmpdir(), 'sluice-secret-'))
    onTestFinished(() => rm(directory, { recursive: true, force: true }))
    return { directory, keys: openFileKeys(join(directory, 'keys')) }
  }

  /** Returns whether the official SDK accepts the signature of a delivery with this secret. */
  async function verifies({ body, headers }: Received, webhookSecret: string): Promise<boolean> {
    const receiver = new OpenAI({ apiKey: 'none', webhookSecret })
    const unwrapped = receiver.webhooks.unwrap(body, headers as Record<string, string>)
    return await unwrapped.then(
      () => true,
      () => false,
    )
  }

  const secretsOf = async (keys: KeyStore, project: string) =>
    (await webhookSecretsOf(keys, project)).map(({ secret }) => secret)

  it('belong to one project, and do not verify deliveries of another project', async () => {
    const { keys } = await openKeys()
    await using receiver = await openReceiver()
    await using setup = await openSetup({ keysOf: signingKeys(keys, undefined) })
    for (const tenant of ['proj_1', 'proj_2']) {
      await setup.deliver(await completed(setup.store, receiver.url, { tenant }))
    }
    const [mine, other] = receiver.received as [Received, Received]
    const [secret = ''] = await secretsOf(keys, 'proj_1')
    expect([await verifies(mine, secret), await verifies(other, secret)]).toEqual([true, false])
  })

  it('are rotated without an interruption, because two secrets sign during the rotation', async () => {
    const { keys } = await openKeys()
    await using receiver = await openReceiver()
    await using setup = await openSetup({ keysOf: signingKeys(keys, undefined) })
    const send = async () => {
      await setup.deliver(await completed(setup.store, receiver.url, { tenant: 'proj_1' }))
      return receiver.received.at(-1) as Received
    }
    const [old = ''] = await secretsOf(keys, 'proj_1')
    const [first, next] = [newWebhookSecret('proj_1', old), newWebhookSecret('proj_1')]
    expect(await keys.createWebhookSecret(next, first)).toBe(true)
    const both = await send()
    expect(String(both.headers['webhook-signature'])).toMatch(/^v1,\S{44} v1,\S{44}$/)
    expect([await verifies(both, old), await verifies(both, next.secret)]).toEqual([true, true])
    expect(await keys.deleteWebhookSecret('proj_1', first.id)).toBe('deleted')
    const last = await send()
    expect([await verifies(last, old), await verifies(last, next.secret)]).toEqual([false, true])
  })

  it('of a project are used in addition to WEBHOOK_SECRET or the secret file of earlier versions', async () => {
    const { keys, directory } = await openKeys()
    await using receiver = await openReceiver()
    const deliver = async (webhookSecret: string | undefined) => {
      const shared = await sharedKeyOf({ webhookSecret, dataDir: directory })
      await using setup = await openSetup({ keysOf: signingKeys(keys, shared) })
      await setup.deliver(await completed(setup.store, receiver.url, { tenant: 'proj_1' }))
      return { from: shared?.from, received: receiver.received.at(-1) as Received }
    }
    const [own = ''] = await secretsOf(keys, 'proj_1')
    const path = join(directory, 'webhook-secret')
    const fresh = await deliver(undefined)
    expect([fresh.from, await verifies(fresh.received, SECRET)]).toEqual([undefined, false])
    const set = await deliver(SECRET)
    await writeFile(path, `${SECRET}\n`)
    const kept = await deliver(undefined)
    expect([set.from, kept.from]).toEqual(['WEBHOOK_SECRET', path])
    for (const { received } of [set, kept]) {
      expect([await verifies(received, SECRET), await verifies(received, own)]).toEqual([true, true])
    }
    await writeFile(path, 'nonsense')
    const problems = [expect.stringContaining('WEBHOOK_SECRET')]
    await expect(deliver(undefined)).rejects.toMatchObject({ name: 'ConfigError', problems })
  })

  it('that cannot be read delay the deliveries of the project', async () => {
    await using receiver = await openReceiver()
    let isAway = true
    const keysOf = async () => {
      if (isAway) throw new Error('away')
      return [webhookKeyOf(SECRET)]
    }
    await using setup = await openSetup({ keysOf })
    const id = await completed(setup.store, receiver.url)
    expect(await setup.deliver(id)).toMatchObject([
      { state: 'pending', error: expect.stringContaining('cannot be read') },
    ])
    expect(receiver.received).toEqual([])
    isAway = false
    await until(async () => (await setup.deliver(id))[0]?.state === 'delivered')
  })
})
