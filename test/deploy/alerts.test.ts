import { appendFile, writeFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'
import { describe, expect, inject, it } from 'vitest'
import { jobsTopic } from '#shared/jobs/records.ts'
import { newId } from '#shared/lib/id.ts'
import { openPostgresDatabase } from '../support/jobs/stores.ts'
import { openFleet, type RoleProcess } from '../support/processes/fleet.ts'
import { freePort, freePorts } from '../support/processes/free-ports.ts'
import { startLocalKafka, whyNoLocalKafka } from '../support/processes/kafka.ts'
import { OTHER_KEY, type SingleProcess, startSingleProcess } from '../support/processes/single-process.ts'
import { type ScriptedUpstream, startUpstream } from '../support/processes/upstream.ts'
import { openRaw } from '../support/raw-http.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../support/stack.ts'
import { type FaultyProxy, type Prometheus, startFaultyProxy, startPrometheus } from './prometheus.ts'
import { hasDeployTool } from './variables.ts'

/*
 * Each alert of deploy/observability/rules.yaml fires for its fault, and no other alert does. The faults are real. Each test starts services, breaks
 * one thing, and reads the alerts of a real Prometheus, in whose rules a minute takes a second.
 *
 * Some faults have a necessary consequence, which the test then names too. For example, calls are refused while Kafka is down.
 *
 * `SLUICE_TEST_LONG=1` runs these tests. In the scaled rules, a pause of some seconds looks like minutes, so a busy machine causes further alerts.
 *
 * SluiceJobsUnpublished is checked by observability.test.ts only, because the service publishes lost records again within seconds.
 */

const CHAT = '/v1/chat/completions'
const FIRES_WITHIN_MS = 90_000
const TEST_MS = 180_000

interface Running {
  readonly service: SingleProcess
  readonly upstream: ScriptedUpstream
  readonly database: FaultyProxy | undefined
  readonly prometheus: Prometheus
  post(path: string, body: object, init?: { key?: string }): Promise<number>
  /** Sends a call of a scripted answer (`shared/engines/echo/echo.ts`). @returns The status, or 0 if the connection closed */
  chat(content: string, options?: { model?: string; stream?: boolean; key?: string }): Promise<number>
  /** Submits a durable job with a scripted answer. */
  submit(content: string, more?: object): Promise<number>
}

interface Fault {
  readonly name: string
  readonly fires: readonly string[]
  readonly models?: readonly object[]
  readonly settings?: Readonly<Record<string, string>>
  /** The service uses Postgres behind a proxy, instead of SQLite. */
  readonly hasPostgres?: true
  make(running: Running): Promise<unknown>
}

/** Calls `work` at an interval until the time has passed. Does not wait for the results. */
async function during(ms: number, intervalMs: number, work: () => Promise<unknown>): Promise<void> {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(intervalMs)) void work()
}

const repeat = (count: number, work: () => Promise<unknown>) => Promise.all(Array.from({ length: count }, work))

/** Faults of a single process, those that take longest first. */
const FAULTS: readonly Fault[] = [
  {
    name: 'the receiver of a webhook is down',
    fires: ['SluiceWebhooksLate'],
    settings: { WEBHOOK_ALLOW_PRIVATE: 'true' },
    async make({ submit }) {
      const url = `http://127.0.0.1:${await freePort()}/hook`
      expect(await submit('hi', { webhook: { url } })).toBe(202)
    },
  },
  {
    name: 'an operator has paused a pool with durable jobs',
    fires: ['SluiceJobsWaitLong'],
    async make({ chat, submit, post }) {
      await chat('one call, so that the duration of a job is known')
      expect(await post('/v1/admin/pools/inference/pause', {})).toBe(200)
      await submit('waits')
    },
  },
  {
    name: 'a queue grows faster than one worker can run its jobs',
    fires: ['SluiceTooFewWorkers'],
    settings: { INFERENCE_SLOTS: '1' },
    make: ({ submit }) => repeat(100, () => submit('!echo first_ms=2000\nslow', { priority: 'low' })),
  },
  {
    name: 'a model needs longer than ten seconds for its first token',
    fires: ['SluiceModelSlow'],
    make: ({ chat }) => during(12_000, 500, () => chat('!echo first_ms=11000\nlate', { stream: true })),
  },
  {
    name: 'a server runs as many calls as its limit allows',
    fires: ['SluiceServerSaturated'],
    models: [{ id: 'limited', engine: { concurrency: 2 } }],
    async make({ chat, upstream }) {
      upstream.script((_, answer) => {
        answer.open()
        answer.frame({ choices: [{ index: 0, delta: { content: 'begins' } }] })
      })
      for (let i = 0; i < 2; i++) void chat('no end', { model: 'limited', stream: true })
    },
  },
  {
    name: 'one project sends hundreds of calls at once',
    fires: ['SluiceCallsWaitLong', 'SluiceProjectFloods'],
    settings: { INFERENCE_SLOTS: '2', START_TIMEOUT_MS: '3600000' },
    async make({ chat }) {
      void repeat(150, () => chat('!echo first_ms=4000\nflood'))
      void repeat(2, () => chat('!echo first_ms=100\nquiet', { key: OTHER_KEY }))
    },
  },
  {
    name: 'the process gets too little CPU',
    fires: ['SluiceEventLoopBlocked'],
    async make({ service, prometheus }) {
      while (!(await prometheus.firing()).includes('SluiceEventLoopBlocked')) {
        service.signal('SIGSTOP')
        await sleep(400)
        service.signal('SIGCONT')
        await sleep(100)
      }
    },
  },
  {
    name: 'an upstream ends its streams early',
    fires: ['SluiceErrors'],
    models: [{ id: 'broken' }],
    async make({ chat, upstream }) {
      upstream.script(async (_, answer) => {
        answer.open()
        answer.frame({ choices: [{ index: 0, delta: { content: 'begins' } }] })
        await sleep(200)
        answer.cut()
      })
      await during(9_000, 200, () => chat('cut', { model: 'broken', stream: true }))
    },
  },
  {
    name: 'a rare model of many fails',
    fires: ['SluiceServerFailing'],
    models: [{ id: 'broken', engine: { breaker: { failures: 1, reset_ms: 60_000 } } }],
    async make({ chat, upstream }) {
      upstream.script((_, answer) => answer.json({ error: { message: 'out of order' } }, 500))
      await repeat(150, () => chat('well'))
      void chat('broken', { model: 'broken' })
      await during(4_000, 100, () => repeat(5, () => chat('well')))
    },
  },
  {
    name: 'the database answers slowly',
    fires: ['SluiceDependencySlow'],
    hasPostgres: true,
    async make({ database }) {
      if (database) database.delayMs = 700
    },
  },
  {
    name: 'the database hangs',
    fires: ['SluiceDependencyDown'],
    hasPostgres: true,
    async make({ database }) {
      if (database) database.isFrozen = true
    },
  },
  {
    name: 'the database hangs while bodies are logged',
    fires: ['SluiceDependencyDown', 'SluiceRequestLogDropsRows'],
    settings: { REQUEST_BODIES_MS: '3600000', REQUEST_BODY_BYTES_MAX: '1048576' },
    hasPostgres: true,
    async make({ database, chat }) {
      if (database) database.isFrozen = true
      for (let i = 0; i < 40; i++) await chat(`!echo text=short\n${'x'.repeat(1_000_000)}`)
    },
  },
  {
    name: 'calls wait for the only slot',
    fires: ['SluiceCallsWaitLong'],
    settings: { INFERENCE_SLOTS: '1' },
    async make({ chat }) {
      void chat('!echo first_ms=8000\nfirst')
      await sleep(1_000)
      void chat('second')
    },
  },
  {
    name: 'an ingress has as many calls as it may hold',
    fires: ['SluiceRefusals'],
    settings: { JOBS_MAX: '1' },
    async make({ chat }) {
      void chat('!echo first_ms=8000\nfirst')
      await during(5_000, 100, () => chat('refused'))
    },
  },
  {
    name: 'the disk is nearly full',
    fires: ['SluiceRefusals'],
    settings: { DISK_FREE_BYTES_MIN: String(2 ** 50) },
    make: ({ submit }) => during(6_000, 100, () => submit('refused')),
  },
  {
    name: 'uploads fill the memory for bodies',
    fires: ['SluiceBodyMemoryFull'],
    settings: { BODY_BUDGET_BYTES: '1000000' },
    async make({ service }) {
      for (const key of [TEST_KEY, OTHER_KEY]) {
        const upload = await openRaw(service.url)
        const head = [`POST ${CHAT} HTTP/1.1`, 'host: sluice', `authorization: Bearer ${key}`]
        upload.send([...head, 'content-type: application/json', 'content-length: 160000', '', '"'].join('\r\n'))
        upload.send('x'.repeat(150_000))
      }
    },
  },
  {
    name: 'a change makes the models file invalid',
    fires: ['SluiceModelsFileInvalid'],
    make: ({ service }) => writeFile(service.modelsFile, 'models: [{ id: 1 }]'),
  },
]

/** Load of all kinds that needs no attention of an operator. */
const HEALTHY: Fault = {
  name: 'healthy',
  fires: [],
  models: [{ id: 'remote' }],
  settings: { FIRST_KEY_ADMIN: 'true' },
  async make({ chat, submit, post, service, upstream }) {
    upstream.script(async (_, answer) => {
      await sleep(11_000)
      answer.json({ choices: [{ index: 0, message: { content: 'a long answer' }, finish_reason: 'stop' }] })
    })
    await during(14_000, 250, async () => {
      void chat('!echo tokens=40 delay_ms=10', { stream: true })
      void chat('!echo first_ms=100\nwhole')
      // A whole answer may take long, although the model is fast.
      void chat('long', { model: 'remote' })
      void submit('!echo first_ms=50\ndurable')
      void post(CHAT, { model: 'no-such-model', messages: [] })
      void chat('no key', { key: 'sk-wrong' })
    })
    await appendFile(service.modelsFile, '\n')
    await sleep(4_000)
  },
}

async function run({ fires, models = [], settings, hasPostgres, make }: Fault): Promise<void> {
  await using stack = new AsyncDisposableStack()
  const upstream = stack.use(await startUpstream((_, answer) => answer.json({}, 500)))
  const server = inject('postgres') ?? ''
  const schema = hasPostgres && stack.use(await openPostgresDatabase(server))
  const { hostname, port } = new URL(hasPostgres ? server : 'tcp://unused')
  const database = hasPostgres && stack.use(await startFaultyProxy(hostname, Number(port)))
  const url = schema && database && Object.assign(new URL(schema.url), { host: `127.0.0.1:${database.port}` }).href
  const service = stack.use(
    await startSingleProcess({
      models: [
        ECHO_MODEL,
        ...models.map((model) => {
          const { engine } = model as { engine?: object }
          return { ...model, engine: { type: 'openai', base_url: `${upstream.url}/v1`, ...engine } }
        }),
      ],
      settings: { ...settings, ...(url && { DATABASE_URL: url }) },
    }),
  )
  const prometheus = stack.use(await startPrometheus())
  const post: Running['post'] = (path, body, { key = TEST_KEY } = {}) =>
    fetch(service.url + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    }).then(
      async (response) => {
        await response.text().catch(() => undefined)
        return response.status
      },
      () => 0,
    )
  const chatOf = (content: string, model = 'echo-1') => ({ model, messages: [{ role: 'user', content }] })
  const running: Running = {
    ...{ service, upstream, database: database || undefined, prometheus, post },
    chat: (content, { model, stream = false, key } = {}) =>
      post(CHAT, { ...chatOf(content, model), stream }, key === undefined ? {} : { key }),
    submit: (content, more) => post('/v1/jobs', { endpoint: CHAT, body: chatOf(content), ...more }),
  }
  await until(async () => (await running.chat('ready?')) === 200, { withinMs: 30_000 })
  prometheus.scrape('sluice', service.url)
  await make(running)
  await untilFiring(prometheus, fires)
  expect(await prometheus.firedWithin(600), service.output.slice(-5_000)).toEqual(fires)
}

async function untilFiring(prometheus: Prometheus, fires: readonly string[]): Promise<void> {
  let firing: readonly string[] = []
  const areFiring = async () => {
    firing = await prometheus.firing()
    return fires.every((alert) => firing.includes(alert))
  }
  await until(areFiring, { withinMs: FIRES_WITHIN_MS }).catch(() => expect(firing, 'alerts that fire').toEqual(fires))
}

const tool = hasDeployTool('prometheus') ? undefined : 'no Prometheus (apt-get install prometheus)'
const missing = process.env.SLUICE_TEST_LONG ? tool : 'SLUICE_TEST_LONG is not set'
if (missing) process.stderr.write(`Tests of alerts are skipped: ${missing}\n`)

describe.skipIf(missing).concurrent('alerts of one process', { timeout: TEST_MS }, () => {
  for (const fault of FAULTS.filter(({ hasPostgres }) => !hasPostgres || inject('postgres'))) {
    it(`fire if ${fault.name}: ${fault.fires.join(', ')}`, async () => await run(fault))
  }

  it('do not fire in a healthy process', async () => await run(HEALTHY))
})

const noFleet = missing ?? (inject('kafka') && inject('postgres') ? await whyNoLocalKafka() : 'no Kafka or no Postgres')

describe.skipIf(noFleet).concurrent('alerts of a fleet', { timeout: TEST_MS }, () => {
  it('fire for dead processes, missing workers and an outage of Kafka', async () => {
    await using stack = new AsyncDisposableStack()
    const kafka = stack.use(await startLocalKafka())
    const database = stack.use(await openPostgresDatabase(inject('postgres') ?? ''))
    const fleet = stack.use(await openFleet(kafka.address))
    const prometheus = stack.use(await startPrometheus())
    const ports = await freePorts(7)
    const prefix = `${newId('t', 8)}.`
    const start = async (name: string, role: 'ingress' | 'inference' | 'scheduler') => {
      const port = String(ports.pop())
      const settings = {
        DATABASE_URL: database.url,
        METRICS_PORT: port,
        METRICS_HOST: '127.0.0.1',
        KAFKA_PREFIX: prefix,
      }
      const process = await fleet.start(role, settings)
      prometheus.scrape(name, `http://127.0.0.1:${port}`)
      return process
    }
    const ingress = await start('ingress', 'ingress')
    const [first, second, scheduler] = await Promise.all([
      ...['worker-1', 'worker-2'].map((name) => start(name, 'inference')),
      start('scheduler', 'scheduler'),
    ])
    const ask = async (path: string, body: object) => {
      const response = await fleet.post(ingress, path, body)
      await response.text()
      return response.status
    }
    const body = { model: 'echo-1', messages: [{ role: 'user', content: 'hi' }] }
    await until(async () => (await ask(CHAT, body)) === 200, { withinMs: 60_000 })
    // Kafka and Postgres of this test answer slowly while other tests use the CPU.
    const isCertain = (alert: string) => alert !== 'SluiceDependencySlow'
    const after = async (name: string, fires: readonly string[], breakIt: () => Promise<unknown>) => {
      await until(async () => !(await prometheus.firing()).some(isCertain), { withinMs: FIRES_WITHIN_MS })
      const startedAt = Date.now()
      await breakIt()
      await untilFiring(prometheus, fires)
      const fired = await prometheus.firedWithin((Date.now() - startedAt) / 1_000)
      expect(fired.filter(isCertain), name).toEqual(fires)
    }
    const remove = async (name: string, process: RoleProcess | undefined, signal: NodeJS.Signals) => {
      if (signal === 'SIGTERM') prometheus.forget(name)
      process?.kill(signal)
      await process?.exited
    }

    let replacement: RoleProcess | undefined
    await after('load, and a worker that is replaced', [], async () => {
      const load = during(8_000, 100, () => ask(CHAT, body))
      await remove('worker-2', second, 'SIGTERM')
      replacement = await start('worker-2', 'inference')
      await load
    })
    await after('a killed scheduler', ['SluiceProcessDown'], () => remove('scheduler', scheduler, 'SIGKILL'))
    await start('scheduler', 'scheduler')
    await after('a killed worker', ['SluiceProcessDown', 'SluiceWorkerLost'], () =>
      remove('worker-1', first, 'SIGKILL'),
    )
    prometheus.forget('worker-1')
    await after('a record that no worker can read', ['SluiceDeadLetters'], async () => {
      const producer = new kafkajs.Kafka({ brokers: [kafka.address], logLevel: kafkajs.logLevel.NOTHING }).producer()
      await producer.connect()
      await producer.send({ topic: prefix + jobsTopic('inference'), messages: [{ value: 'no JSON' }] })
      await producer.disconnect()
    })
    await after('a pool without workers', ['SluiceNoWorker'], async () => {
      await remove('worker-2', replacement, 'SIGTERM')
      expect(await ask('/v1/jobs', { endpoint: CHAT, body })).toBe(202)
    })
    await start('worker-2', 'inference')
    await after('an outage of Kafka', ['SluiceDependencyDown', 'SluiceRefusals'], async () => {
      await kafka.down('SIGKILL')
      await during(15_000, 100, () => ask(CHAT, body))
    })
  })
})
