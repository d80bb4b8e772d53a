import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { stringify } from 'yaml'
import { ECHO_MODEL, TEST_KEY, until } from '../stack.ts'
import { RoleActor } from './actor.ts'
import { type Cluster, freePorts, startCluster, whyNoCluster } from './cluster.ts'
import { countUnfinished, query } from './final-state.ts'
import { History } from './history.ts'

const missing = await whyNoCluster()
if (missing && process.env.CI === 'true') throw new Error(`Outage tests cannot run: ${missing}`)
if (missing) process.stderr.write(`Outage tests are skipped: ${missing}\n`)

/** Seconds of an outage: 60 for a release, less where it is run often. */
const OUTAGE_MS = Number(process.env.CHAOS_OUTAGE_SECONDS ?? 15) * 1_000
/** An outage is noticed at the first call that meets it; from then on calls are refused at once. */
const REFUSED_MS = 1_000
const TIMEOUT_MS = 240_000

describe.skipIf(missing)('while a part of the fleet is away', { timeout: TIMEOUT_MS + 2 * OUTAGE_MS }, () => {
  it('Kafka loses everything with 1,000 jobs queued, and all of them finish', async () => {
    await using fleet = await openFleet()
    const { cluster } = fleet
    const workers = [1, 2, 3].map((i) => cluster.actor(`inference-${i}`))
    for (const worker of workers) await worker.down('SIGTERM')
    const ids = await submitMany(fleet.url(0), 1_000, '!echo delay_ms=5\nnever lost')
    await cluster.broker.wipe()
    for (const worker of workers) await worker.up()
    await finished(cluster)
    expect(await statesOf(cluster)).toEqual([{ state: 'completed', count: ids.length }])
  })

  it('Kafka is down: durable jobs are accepted, other calls refused within a second', async () => {
    await using fleet = await openFleet()
    const { cluster } = fleet
    await cluster.broker.down('SIGKILL')
    const [accepted, refused] = await during(OUTAGE_MS, async (i) => [
      await submit(fleet.url(i), 'kept for later'),
      await chat(fleet.url(i), 'who is there'),
    ])
    expect(new Set(accepted.map(({ status }) => status))).toEqual(new Set([202]))
    expect(new Set(refused.map(({ status }) => status))).toEqual(new Set([503]))
    expect(refused.every(({ retryAfter }) => Number(retryAfter) > 0)).toBe(true)
    expect(Math.max(...refused.map(({ tookMs }) => tookMs))).toBeLessThan(REFUSED_MS)
    await cluster.broker.up()
    await finished(cluster)
    expect(await statesOf(cluster)).toEqual([{ state: 'completed', count: accepted.length }])
  })

  it('Postgres is down: other calls go on, and durable jobs are refused until it is back', async () => {
    await using fleet = await openFleet()
    const { cluster } = fleet
    expect((await submit(fleet.url(0), '!echo first_ms=2000\nhalfway')).status).toBe(202)
    await cluster.actor('database').down('SIGKILL')
    const [answered, refused] = await during(OUTAGE_MS, async (i) => [
      await chat(fleet.url(i), 'still here'),
      await submit(fleet.url(i), 'not now'),
    ])
    expect(new Set(answered.map(({ status }) => status))).toEqual(new Set([200]))
    expect(new Set(refused.map(({ status }) => status))).toEqual(new Set([503]))
    await cluster.actor('database').up()
    const again = await until(async () => (await submit(fleet.url(0), 'now')).status === 202, { withinMs: 30_000 })
    expect(again).toBe(true)
    await finished(cluster)
    expect(await statesOf(cluster)).toEqual([{ state: 'completed', count: 2 }])
  })
})

describe('one process with everything in it', { timeout: 120_000 }, () => {
  it('is killed with 100 slow jobs, and finishes all of them when it is started again', async () => {
    await using single = await openSingle()
    await single.process.up()
    await until(() => single.process.isReady(), { withinMs: 30_000 })
    const ids = await submitMany(single.process.url, 100, '!echo first_ms=3000\nslow and sure')
    await until(async () => (await read(single.process.url, ids[0] ?? '')).status === 'in_progress')
    await single.process.down('SIGKILL')
    await single.process.up()
    await until(() => single.process.isReady(), { withinMs: 30_000 })
    for (const id of ids) {
      const done = await until(
        async () => {
          const job = await read(single.process.url, id)
          return job.status === 'completed' && job
        },
        { withinMs: 60_000 },
      )
      expect(JSON.stringify(done)).toContain('slow and sure')
    }
  })

  it('keeps a second process off its data directory, and says who has it', async () => {
    await using single = await openSingle()
    await single.process.up()
    await until(() => single.process.isReady(), { withinMs: 30_000 })
    const second = single.another()
    await second.actor.up()
    const code = await second.exited
    await second.actor.down('SIGKILL')
    expect(code).toBe('2')
    expect(await readFile(second.logFile, 'utf8')).toMatch(
      new RegExp(`${single.dataDir}.* is open in process ${single.process.pid} `),
    )
  })
})

/** What one call came to. */
interface Answer {
  readonly status: number
  readonly retryAfter: string | null
  readonly tookMs: number
  readonly body: Record<string, unknown>
}

async function post(url: string, path: string, body: object): Promise<Answer> {
  const startedAt = performance.now()
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(30_000),
  })
  const answer = (await response.json()) as Record<string, unknown>
  const retryAfter = response.headers.get('retry-after')
  return { status: response.status, retryAfter, tookMs: performance.now() - startedAt, body: answer }
}

function chat(url: string, content: string): Promise<Answer> {
  return post(url, '/v1/chat/completions', requestOf(content))
}

function submit(url: string, content: string): Promise<Answer> {
  return post(url, '/v1/jobs', { endpoint: '/v1/chat/completions', body: requestOf(content) })
}

function requestOf(content: string): object {
  return { model: 'echo-1', messages: [{ role: 'user', content }] }
}

/** Submits jobs a few at a time. @returns their ids */
async function submitMany(url: string, count: number, content: string): Promise<string[]> {
  const ids: string[] = []
  const submitter = async () => {
    while (ids.length < count) {
      const index = ids.push('') - 1
      const { status, body } = await submit(url, content)
      if (status !== 202) throw new Error(`${status}: ${JSON.stringify(body)}`)
      ids[index] = String(body.id)
    }
  }
  await Promise.all(Array.from({ length: 16 }, submitter))
  return ids
}

async function read(url: string, id: string): Promise<Record<string, unknown>> {
  const response = await fetch(`${url}/v1/jobs/${id}`, { headers: { authorization: `Bearer ${TEST_KEY}` } })
  return (await response.json()) as Record<string, unknown>
}

/** Makes the same two calls again and again for a time. */
async function during(
  ms: number,
  calls: (turn: number) => Promise<[Answer, Answer]>,
): Promise<[first: Answer[], second: Answer[]]> {
  const both: [Answer, Answer][] = []
  for (const end = Date.now() + ms; Date.now() < end; ) {
    both.push(await calls(both.length))
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
  return [both.map(([first]) => first), both.map(([, second]) => second)]
}

/** Waits until no job is left to do. */
async function finished(cluster: Cluster): Promise<void> {
  await until(async () => (await countUnfinished(cluster.database)) === 0, { withinMs: 120_000 })
}

function statesOf(cluster: Cluster): Promise<{ state: string; count: number }[]> {
  return query(cluster.database, 'SELECT state, count(*)::int AS count FROM jobs GROUP BY state')
}

async function openFleet() {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-outage-'))
  const history = await History.open(directory, 0)
  const cluster = await startCluster({ history })
  return {
    cluster,
    url: (turn: number) => cluster.ingresses[turn % cluster.ingresses.length] ?? '',
    async [Symbol.asyncDispose]() {
      await cluster[Symbol.asyncDispose]()
      await history.close()
      await rm(directory, { recursive: true, force: true })
    },
  }
}

/** `npm start` on an own data directory, on the embedded adapters. */
async function openSingle() {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-single-'))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: [ECHO_MODEL] }))
  const [first, second] = await freePorts(2)
  const actorOn = (port: number | undefined, logFile: string, onExit: (code: string) => void) =>
    new RoleActor({
      name: 'single',
      roles: [],
      env: {
        PATH: process.env.PATH,
        PORT: String(port),
        DATA_DIR: dataDir,
        MODELS_FILE: modelsFile,
        SLUICE_API_KEY: TEST_KEY,
      },
      logFile,
      url: `http://127.0.0.1:${port}`,
      onExit: (_name, code) => onExit(code),
    })
  const process1 = actorOn(first, join(dataDir, 'first.log'), () => undefined)
  return {
    dataDir,
    process: process1,
    another() {
      const { promise, resolve } = Promise.withResolvers<string>()
      const logFile = join(dataDir, 'second.log')
      return { actor: actorOn(second, logFile, resolve), exited: promise, logFile }
    },
    async [Symbol.asyncDispose]() {
      await process1.down('SIGKILL')
      await rm(dataDir, { recursive: true, force: true })
    },
  }
}
