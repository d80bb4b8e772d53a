import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import { deleteTopic } from '../support/processes/kafka.ts'
import { until } from '../support/stack.ts'
import { countUnfinished, query } from './check/final-state.ts'
import { History } from './check/history.ts'
import { type Cluster, FLEET, startCluster, whyNoCluster } from './cluster.ts'
import { type Answer, chat, submit, submitMany } from './load/calls.ts'

const missing = await whyNoCluster()
if (missing && process.env.CI === 'true') throw new Error(`Outage tests cannot run: ${missing}`)
if (missing) process.stderr.write(`Outage tests are skipped: ${missing}\n`)

/** Duration of an outage. The default is short; CHAOS_OUTAGE_SECONDS=60 is used before a release. */
const OUTAGE_MS = Number(process.env.CHAOS_OUTAGE_SECONDS ?? 15) * 1_000
/** During an outage, calls must be refused within this time (docs/operate/reliability.md). */
const REFUSED_MS = 1_000
const TIMEOUT_MS = 240_000

describe.skipIf(missing)('a fleet during an outage', { timeout: TIMEOUT_MS + 2 * OUTAGE_MS }, () => {
  // All tests share one fleet, because its start is slow. After a failed test, a new fleet is started.
  let opened: Fleet | undefined
  let fleet: Fleet
  /** Ids of the jobs of earlier tests. Later tests exclude them from their counts. */
  let earlier: string[]
  beforeEach(async () => {
    opened ??= await openFleet()
    fleet = opened
    await fleet.cluster.ready()
    await until(async () => (await chat(fleet.url(0), 'well?')).status === 200, { withinMs: 60_000 })
    earlier = (await query<{ id: string }>(fleet.cluster.database, 'SELECT id FROM jobs')).map(({ id }) => id)
  }, TIMEOUT_MS)
  const close = async () => {
    await opened?.[Symbol.asyncDispose]()
    opened = undefined
  }
  afterEach(async ({ task }) => {
    if (task.result?.state === 'fail') await close()
  })
  afterAll(close)

  it('completes 1,000 queued jobs after Kafka lost all records', async () => {
    const { cluster } = fleet
    const workers = [1, 2, 3].map((i) => cluster.actor(`inference-${i}`))
    for (const worker of workers) await worker.down('SIGTERM')
    const ids = await submitMany(fleet.url(0), 1_000, '!echo delay_ms=5\nnever lost')
    await cluster.broker.wipe()
    for (const worker of workers) await worker.up()
    await finished(cluster)
    expect(await statesOf(cluster, earlier)).toEqual([{ state: 'completed', count: ids.length }])
  })

  it('loses no job and answers every call while its Kafka topics are deleted one by one', async () => {
    const { cluster } = fleet
    const topics = ['jobs.inference', 'jobs.inference.batch', 'replies', 'events', 'control', 'dead']
    const [jobs, calls]: [Answer[], Answer[]] = [[], []]
    for (const topic of topics) {
      const loading = during(6_000, async (i) => {
        const both = [submit(fleet.url(i), 'kept'), chat(fleet.url(i), '!echo first_ms=100\nanswered')] as const
        return await Promise.all(both)
      })
      await deleteTopic(cluster.broker.address, topic)
      const [accepted, answered] = await loading
      jobs.push(...accepted)
      calls.push(...answered)
    }
    const slowestMs = Math.max(...calls.map(({ tookMs }) => tookMs))
    printFigures(`${jobs.length} jobs and ${calls.length} calls, the slowest call in ${Math.round(slowestMs)} ms`)
    expect(new Set(jobs.map(({ status }) => status))).toEqual(new Set([202]))
    expect(new Set(calls.map(({ status }) => status))).toEqual(new Set([200]))
    await finished(cluster)
    expect(await statesOf(cluster, earlier)).toEqual([{ state: 'completed', count: jobs.length }])
  })

  it('accepts durable jobs and refuses other calls within a second while Kafka is down', async () => {
    const { cluster } = fleet
    await cluster.broker.down('SIGKILL')
    const [accepted, refused] = await during(OUTAGE_MS, async (i) => [
      await submit(fleet.url(i), 'kept for later'),
      await chat(fleet.url(i), 'who is there'),
    ])
    const slowestMs = Math.max(...refused.map(({ tookMs }) => tookMs))
    printFigures(
      `${accepted.length} jobs accepted, ${refused.length} calls refused, the slowest in ${Math.round(slowestMs)} ms`,
    )
    expect(new Set(accepted.map(({ status }) => status))).toEqual(new Set([202]))
    expect(new Set(refused.map(({ status }) => status))).toEqual(new Set([503]))
    expect(refused.every(({ retryAfter }) => Number(retryAfter) > 0)).toBe(true)
    expect(slowestMs).toBeLessThan(REFUSED_MS)
    await cluster.broker.up()
    await finished(cluster)
    expect(await statesOf(cluster, earlier)).toEqual([{ state: 'completed', count: accepted.length }])
  })

  it('answers attached calls and refuses durable jobs while Postgres is down', async () => {
    const { cluster } = fleet
    expect((await submit(fleet.url(0), '!echo first_ms=2000\nhalfway')).status).toBe(202)
    await cluster.actor('database').down('SIGKILL')
    const [answered, refused] = await during(OUTAGE_MS, async (i) => [
      await chat(fleet.url(i), 'still here'),
      await submit(fleet.url(i), 'not now'),
    ])
    printFigures(`${answered.length} calls answered, ${refused.length} jobs refused`)
    expect(new Set(answered.map(({ status }) => status))).toEqual(new Set([200]))
    expect(new Set(refused.map(({ status }) => status))).toEqual(new Set([503]))
    await cluster.actor('database').up()
    const again = await until(async () => (await submit(fleet.url(0), 'now')).status === 202, { withinMs: 30_000 })
    expect(again).toBe(true)
    await finished(cluster)
    expect(await statesOf(cluster, earlier)).toEqual([{ state: 'completed', count: 2 }])
  })

  it('waits at the start while Kafka and Postgres are down, and is ready when both run again', async () => {
    const { cluster } = fleet
    const names = ['ingress-1', 'inference-1', 'scheduler-1']
    await Promise.all([cluster.broker.down('SIGKILL'), cluster.actor('database').down('SIGKILL')])
    for (const name of names) {
      await cluster.actor(name).down('SIGKILL')
      await cluster.actor(name).up()
    }
    for (const name of names) await until(async () => (await fleet.logOf(name)).includes(WAITING), { withinMs: 30_000 })
    await Promise.all([cluster.broker.up(), cluster.actor('database').up()])
    await cluster.ready()
    for (const name of names) expect(await fleet.logOf(name)).not.toContain('Cannot start')
    expect((await chat(fleet.url(0), 'well again')).status).toBe(200)
  })
})

/** Log message of a process that starts during an outage and waits for its end. */
const WAITING = 'dependency unavailable; waiting to start'

function printFigures(what: string): void {
  process.stderr.write(`During an outage of ${OUTAGE_MS / 1_000} s: ${what}.\n`)
}

/** Repeats a pair of calls for `ms` milliseconds, and returns all answers of the first and of the second call. */
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

async function finished(cluster: Cluster): Promise<void> {
  await until(async () => (await countUnfinished(cluster.database)) === 0, { withinMs: 120_000 })
}

/** Counts jobs by state, without those of earlier tests. */
function statesOf(cluster: Cluster, earlier: readonly string[]): Promise<{ state: string; count: number }[]> {
  const sql = 'SELECT state, count(*)::int AS count FROM jobs WHERE id <> ALL($1::text[]) GROUP BY state'
  return query(cluster.database, sql, [earlier])
}

type Fleet = Awaited<ReturnType<typeof openFleet>>

async function openFleet() {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-outage-'))
  const history = await History.open(directory, 0)
  const cluster = await startCluster({ history, fleet: { ...FLEET, research: 0 } })
  return {
    cluster,
    url: (turn: number) => cluster.ingresses[turn % cluster.ingresses.length] ?? '',
    logOf: (name: string) => readFile(join(directory, `${name}.log`), 'utf8'),
    async [Symbol.asyncDispose]() {
      await cluster[Symbol.asyncDispose]()
      await history.close()
      await rm(directory, { recursive: true, force: true })
    },
  }
}
