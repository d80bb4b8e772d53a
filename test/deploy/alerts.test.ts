import { appendFile, writeFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'
import { describe, expect, inject, it, vi } from 'vitest'
import { jobsTopic } from '#shared/jobs/records.ts'
import { newId } from '#shared/lib/id.ts'
import { openPostgresDatabase } from '../support/jobs/stores.ts'
import { openFleet, type RoleProcess } from '../support/processes/fleet.ts'
import { freePort, freePorts } from '../support/processes/free-ports.ts'
import { startLocalKafka, whyNoLocalKafka } from '../support/processes/kafka.ts'
import { OTHER_KEY, type SingleProcess, startSingleProcess } from '../support/processes/single-process.ts'
import { type Script, type ScriptedUpstream, startUpstream } from '../support/processes/upstream.ts'
import { openRaw } from '../support/raw-http.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../support/stack.ts'
import { type FaultyProxy, type Prometheus, startFaultyProxy, startPrometheus } from './prometheus.ts'
import { hasDeployTool } from './variables.ts'

/*
 * Each alert of deploy/observability/rules.yaml fires for its fault, and no other alert begins to fire. The faults are real. Each test starts
 * services, breaks them step by step, and reads the alerts of a real Prometheus, in whose rules a minute takes three seconds.
 *
 * Faults that do not affect each other are made at once, so that few processes prove all alerts. The labels of an alert, such as the model, connect
 * the alert to its fault. Load continues until the alerts fire, so that a slow machine only delays them.
 *
 * These tests run only with `SLUICE_TEST_LONG=1`, because an overloaded machine causes alerts of its own, such as those of Kafka.
 *
 * Some faults necessarily cause a second problem that has an alert of its own, so the test expects both alerts. For example, calls are
 * refused while Kafka is down.
 *
 * SluiceJobsUnpublished is checked by observability.test.ts only, because the service publishes lost records again within seconds.
 */

const CHAT = '/v1/chat/completions'
const FIRES_WITHIN_MS = 120_000
const TEST_MS = 300_000
/**
 * Duration of the test of a healthy service, in which no alert may fire. These 30 s count as ten minutes in the rules, because a minute takes
 * three seconds there.
 */
const HEALTHY_MS = 30_000

interface Running {
  readonly service: SingleProcess
  readonly upstream: ScriptedUpstream
  readonly database: FaultyProxy | undefined
  readonly over: AbortSignal
  post(path: string, body: object, init?: { key?: string }): Promise<number>
  /**
   * Sends a chat call whose prompt is a script for the echo engine (`shared/engines/echo/echo.ts`).
   *
   * @returns The status, or 0 if the connection closed
   */
  chat(content: string, options?: { model?: string; stream?: boolean; key?: string }): Promise<number>
  /** Submits a durable job whose prompt is a script for the echo engine. */
  submit(content: string, more?: object): Promise<number>
}

interface Fault<On = Running> {
  readonly name: string
  /** Alerts that this fault must fire: name without the prefix `Sluice`, then the values of the labels. */
  readonly fires: readonly string[]
  make(on: On): Promise<unknown>
}

interface Case {
  readonly name: string
  readonly models?: readonly object[]
  readonly settings?: Readonly<Record<string, string>>
  /** True if the service uses Postgres through a proxy, which can delay or freeze connections. Default: SQLite. */
  readonly hasPostgres?: true
  /** Steps of the test, one after the other. The faults of one step are made at the same time. */
  readonly steps: readonly (readonly Fault[])[]
}

/** Calls `work` at an interval, until the alerts of the current step fire. Does not wait for the results of the calls. */
function repeat(over: AbortSignal, intervalMs: number, work: () => Promise<unknown>): Promise<void> {
  const timer = setInterval(() => void work(), intervalMs)
  over.addEventListener('abort', () => clearInterval(timer))
  return Promise.resolve()
}

const times = (count: number, work: () => Promise<unknown>) => Promise.all(Array.from({ length: count }, work))

const openai = (id: string, engine: object = {}) => ({ id, engine: { type: 'openai', ...engine } })

/** Behaviour of the upstream server; the model of the call selects it. */
const UPSTREAM: Script = async ({ body: { model }, closed }, answer) => {
  const begin = () => {
    answer.open()
    answer.frame({ choices: [{ index: 0, delta: { content: 'begins' } }] })
  }
  if (model === 'broken') return answer.json({ error: { message: 'out of order' } }, 500)
  if (model === 'long') {
    await sleep(11_000)
    return answer.json({ choices: [{ index: 0, message: { content: 'a long answer' }, finish_reason: 'stop' }] })
  }
  if (model === 'slow') await sleep(11_000)
  begin()
  if (model === 'limited') {
    let isOpen = true
    void closed.then(() => {
      isOpen = false
    })
    for (; isOpen; await sleep(1_000)) answer.frame({ choices: [{ index: 0, delta: { content: 'continues' } }] })
    return
  }
  await sleep(200)
  if (model === 'cut') return answer.cut()
  answer.frame('[DONE]')
  answer.end()
}

/** Tests with one service process each. */
const CASES: readonly Case[] = [
  {
    name: 'some parts of a process fail while other calls succeed',
    models: [
      openai('slow'),
      openai('limited', { concurrency: 2 }),
      openai('broken', { breaker: { failures: 1, reset_ms: 300_000 } }),
      { ...ECHO_MODEL, id: 'paused' },
    ],
    settings: { WEBHOOK_ALLOW_PRIVATE: 'true', FIRST_KEY_ADMIN: 'true' },
    steps: [
      [
        {
          name: 'the receiver of a webhook is down',
          fires: ['WebhooksLate'],
          async make({ submit }) {
            const url = `http://127.0.0.1:${await freePort()}/hook`
            expect(await submit('hi', { webhook: { url } })).toBe(202)
          },
        },
        {
          name: 'an operator has paused a model with durable jobs',
          fires: ['JobsWaitLong inference'],
          async make({ post }) {
            expect(await post('/v1/admin/models/paused/pause', {})).toBe(200)
            const body = { model: 'paused', messages: [{ role: 'user', content: 'waits' }] }
            expect(await post('/v1/jobs', { endpoint: CHAT, body })).toBe(202)
          },
        },
        {
          name: 'a model needs longer than ten seconds for its first token',
          fires: ['ModelSlow slow'],
          make: ({ chat, over }) => repeat(over, 1_000, () => chat('late', { model: 'slow', stream: true })),
        },
        {
          name: 'a server runs as many calls as its limit allows',
          fires: ['ServerSaturated limited 0'],
          async make({ chat }) {
            for (let i = 0; i < 2; i++) void chat('no end', { model: 'limited', stream: true })
          },
        },
        {
          name: 'a rare model of many fails',
          fires: ['ServerFailing broken 0'],
          async make({ chat, over }) {
            await times(100, () => chat('well'))
            await repeat(over, 200, () => chat('well'))
            void chat('broken', { model: 'broken' })
          },
        },
      ],
    ],
  },
  {
    name: 'one project sends hundreds of calls',
    // Each call streams for so long that the two slots stay occupied for the whole test, and the other calls wait.
    settings: {
      INFERENCE_SLOTS: '2',
      START_TIMEOUT_MS: '3600000',
      JOBS_MAX: '152',
      DISK_FREE_BYTES_MIN: String(2 ** 50),
    },
    steps: [
      [
        {
          name: 'a project floods the queue',
          fires: ['CallsWaitLong echo-1 inference', 'ProjectFloods key_env'],
          async make({ chat }) {
            void times(2, () => chat('!echo first_ms=100\nquiet', { key: OTHER_KEY }))
            void times(150, () => chat('!echo first_ms=4000\nflood'))
          },
        },
        {
          name: 'an ingress has as many calls as it may hold',
          fires: ['Refusals calls_full'],
          make: ({ chat, over }) => repeat(over, 200, () => chat('refused')),
        },
        {
          name: 'the disk is nearly full',
          fires: ['Refusals disk_full'],
          make: ({ submit, over }) => repeat(over, 200, () => submit('refused')),
        },
      ],
    ],
  },
  {
    name: 'one slot has too much work',
    settings: { INFERENCE_SLOTS: '1' },
    steps: [
      [
        {
          name: 'a call waits for the only slot',
          fires: ['CallsWaitLong echo-1 inference'],
          async make({ chat }) {
            void chat('!echo first_ms=20000\nfirst')
            await sleep(1_000)
            void chat('second')
          },
        },
      ],
      [
        {
          name: 'a queue of durable jobs grows faster than one worker can run its jobs',
          fires: ['TooFewWorkers inference'],
          make: ({ submit }) => times(100, () => submit('!echo first_ms=2000\nslow', { priority: 'low' })),
        },
      ],
    ],
  },
  {
    name: 'a process has too little memory and CPU',
    settings: { BODY_BUDGET_BYTES: '1000000' },
    steps: [
      [
        {
          name: 'uploads fill the memory for bodies',
          fires: ['BodyMemoryFull sluice'],
          async make({ service, over }) {
            for (const key of [TEST_KEY, OTHER_KEY]) {
              const upload = await openRaw(service.url)
              const head = [`POST ${CHAT} HTTP/1.1`, 'host: sluice', `authorization: Bearer ${key}`]
              upload.send([...head, 'content-type: application/json', 'content-length: 160000', '', '"'].join('\r\n'))
              upload.send('x'.repeat(150_000))
              // The service ends an upload that pauses for long, so one byte is sent each second.
              await repeat(over, 1_000, async () => upload.send('x'))
            }
          },
        },
        {
          name: 'a change makes the models file invalid',
          fires: ['ModelsFileInvalid'],
          make: ({ service }) => writeFile(service.modelsFile, 'models: [{ id: 1 }]'),
        },
      ],
      [
        {
          name: 'the process gets too little CPU',
          fires: ['EventLoopBlocked sluice'],
          async make({ service, over }) {
            const pause = async () => {
              service.signal('SIGSTOP')
              await sleep(400)
              service.signal('SIGCONT')
            }
            await repeat(over, 500, pause)
          },
        },
      ],
    ],
  },
  {
    name: 'an upstream and the database fail',
    models: [openai('cut')],
    settings: { REQUEST_BODIES_MS: '3600000', REQUEST_BODY_BYTES_MAX: '1048576' },
    hasPostgres: true,
    steps: [
      [
        {
          name: 'an upstream ends its streams early',
          fires: ['Errors'],
          make: ({ chat, over }) => repeat(over, 200, () => chat('cut', { model: 'cut', stream: true })),
        },
      ],
      [
        {
          name: 'the database answers slowly',
          fires: ['DependencySlow postgres'],
          async make({ database }) {
            if (database) database.delayMs = 550
          },
        },
      ],
      [
        {
          name: 'the database hangs',
          fires: ['DependencyDown postgres'],
          async make({ database }) {
            if (database) database.isFrozen = true
          },
        },
      ],
      [
        {
          name: 'bodies are logged while the database hangs',
          fires: ['RequestLogDropsRows'],
          async make({ chat }) {
            for (let i = 0; i < 40; i++) await chat(`!echo text=short\n${'x'.repeat(1_000_000)}`)
          },
        },
      ],
    ],
  },
  {
    name: 'a process is healthy',
    models: [openai('long')],
    settings: { FIRST_KEY_ADMIN: 'true' },
    steps: [
      [
        {
          name: 'load of all kinds needs no attention of an operator',
          fires: [],
          async make({ chat, submit, post, service, over }) {
            await repeat(over, 250, async () => {
              void chat('!echo tokens=40 delay_ms=10', { stream: true })
              void chat('!echo first_ms=100\nwhole')
              // This call is answered as a whole after 11 s. The alert about slow first output must not fire for it, because the call is not
              // streamed.
              void chat('long', { model: 'long' })
              void submit('!echo first_ms=50\ndurable')
              void post(CHAT, { model: 'no-such-model', messages: [] })
              void chat('no key', { key: 'sk-wrong' })
            })
            await appendFile(service.modelsFile, '\n')
            await sleep(HEALTHY_MS)
          },
        },
      ],
    ],
  },
]

/** Alerts that may also fire because other tests load the machine, so that the service, Kafka and Postgres get too little CPU time. */
const OF_LOAD = /^(DependencySlow|EventLoopBlocked)\b/

/**
 * Makes the faults of one step and waits until their alerts fire.
 *
 * @throws AssertionError if any other alert begins to fire, except {@link OF_LOAD}
 */
async function expectAlerts(prometheus: Prometheus, faults: readonly Fault<AbortSignal>[]): Promise<void> {
  const fires = faults.flatMap((fault) => fault.fires).toSorted()
  let before: readonly string[] = []
  const areSilent = async () => {
    before = await prometheus.firing()
    return !before.some((alert) => fires.includes(alert))
  }
  await until(areSilent, { withinMs: FIRES_WITHIN_MS })
  const startedAt = Date.now()
  const over = new AbortController()
  let fired: readonly string[] = []
  const haveFired = async () => {
    const all = await prometheus.firedWithin((Date.now() - startedAt) / 1_000)
    fired = all.filter((alert) => fires.includes(alert) || !(OF_LOAD.test(alert) || before.includes(alert)))
    return fires.every((alert) => fired.includes(alert))
  }
  try {
    await Promise.all(faults.map((fault) => fault.make(over.signal)))
    await until(haveFired, { withinMs: FIRES_WITHIN_MS }).catch(() => undefined)
  } finally {
    over.abort()
  }
  expect(fired, faults.map(({ name }) => name).join(', ')).toEqual(fires)
}

async function run({ models = [], settings, hasPostgres, steps }: Case): Promise<void> {
  await using stack = new AsyncDisposableStack()
  const upstream = stack.use(await startUpstream(UPSTREAM))
  const server = inject('postgres') ?? ''
  const schema = hasPostgres && stack.use(await openPostgresDatabase(server))
  const { hostname, port } = new URL(hasPostgres ? server : 'tcp://unused')
  const database = hasPostgres && stack.use(await startFaultyProxy(hostname, Number(port)))
  const url = schema && database && Object.assign(new URL(schema.url), { host: `127.0.0.1:${database.port}` }).href
  const withServer = models.map((model) => {
    const { engine } = model as { engine: { type: string } }
    return engine.type === 'openai' ? { ...model, engine: { base_url: `${upstream.url}/v1`, ...engine } } : model
  })
  const service = stack.use(
    await startSingleProcess({
      models: [ECHO_MODEL, ...withServer],
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
  const running: Omit<Running, 'over'> = {
    ...{ service, upstream, database: database || undefined, post },
    chat: (content, { model, stream = false, key } = {}) =>
      post(CHAT, { ...chatOf(content, model), stream }, key === undefined ? {} : { key }),
    submit: (content, more) => post('/v1/jobs', { endpoint: CHAT, body: chatOf(content), ...more }),
  }
  await until(async () => (await running.chat('ready?')) === 200, { withinMs: 60_000 })
  prometheus.scrape('sluice', service.url)
  for (const faults of steps) {
    const bound = faults.map(({ make, ...fault }) => ({
      ...fault,
      make: (over: AbortSignal) => make({ ...running, over }),
    }))
    await expectAlerts(prometheus, bound)
  }
}

const tool = hasDeployTool('prometheus') ? undefined : 'no Prometheus (apt-get install prometheus)'
const missing = process.env.SLUICE_TEST_LONG ? tool : 'SLUICE_TEST_LONG is not set'
if (missing) process.stderr.write(`Tests of alerts are skipped: ${missing}\n`)
const noFleet = missing ?? (inject('kafka') && inject('postgres') ? await whyNoLocalKafka() : 'no Kafka or no Postgres')

// At most five tests run concurrently. A test mostly waits, but the start of its processes needs CPU time.
vi.setConfig({ maxConcurrency: 5 })

describe.skipIf(missing).concurrent('alerts', { timeout: TEST_MS }, () => {
  it.skipIf(noFleet)('fire if a process dies, if workers are missing, or if Kafka fails', async () => {
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
    const after = (name: string, fires: readonly string[], make: (over: AbortSignal) => Promise<unknown>) =>
      expectAlerts(prometheus, [{ name, fires, make }])
    const remove = async (name: string, process: RoleProcess | undefined, signal: NodeJS.Signals) => {
      if (signal === 'SIGTERM') prometheus.forget(name)
      process?.kill(signal)
      await process?.exited
    }
    let replacement: RoleProcess | undefined
    await after('load, and a worker that is replaced', [], async (over) => {
      await repeat(over, 100, () => ask(CHAT, body).catch(() => 0))
      await remove('worker-2', second, 'SIGTERM')
      replacement = await start('worker-2', 'inference')
      await sleep(5_000)
    })
    await after('a killed scheduler', ['ProcessDown scheduler'], () => remove('scheduler', scheduler, 'SIGKILL'))
    await start('scheduler', 'scheduler')
    await after('a killed worker', ['ProcessDown worker-1', 'WorkerLost inference'], () =>
      remove('worker-1', first, 'SIGKILL'),
    )
    prometheus.forget('worker-1')
    await after('a record that no worker can read', ['DeadLetters inference'], async () => {
      const producer = new kafkajs.Kafka({ brokers: [kafka.address], logLevel: kafkajs.logLevel.NOTHING }).producer()
      await producer.connect()
      await producer.send({ topic: prefix + jobsTopic('inference'), messages: [{ value: 'no JSON' }] })
      await producer.disconnect()
    })
    await after('a pool without workers', ['NoWorker inference'], async () => {
      await remove('worker-2', replacement, 'SIGTERM')
      expect(await ask('/v1/jobs', { endpoint: CHAT, body })).toBe(202)
    })
    await start('worker-2', 'inference')
    await after('an outage of Kafka', ['DependencyDown kafka', 'Refusals kafka'], async (over) => {
      await kafka.down('SIGKILL')
      await repeat(over, 100, () => ask(CHAT, body).catch(() => 0))
    })
  })

  for (const each of CASES.filter(({ hasPostgres }) => !hasPostgres || inject('postgres'))) {
    const fires = each.steps.flat().flatMap((fault) => fault.fires)
    it(`${fires.length ? `fire if ${each.name}: ${fires.join(', ')}` : `do not fire if ${each.name}`}`, () => run(each))
  }
})
