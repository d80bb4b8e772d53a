import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { type ChaosOptions, runChaos } from './chaos.ts'
import { whyNoCluster } from './cluster.ts'
import { tableOf } from './figures.ts'

const missing = await whyNoCluster()
if (missing && process.env.CI === 'true') throw new Error(`The chaos run cannot start: ${missing}`)
if (missing) process.stderr.write(`The chaos run is skipped: ${missing}\n`)

/** A constant default seed makes a failure reproducible on another machine. CHAOS_SEED selects another one. */
const seed = Number(process.env.CHAOS_SEED ?? 4)
/** Number of jobs. The default is small enough for a frequent run; `test/chaos/run.ts` makes larger runs. */
const jobs = Number(process.env.CHAOS_JOBS ?? 800)
const researches = Number(process.env.CHAOS_RESEARCHES ?? 50)
const kills = Number(process.env.CHAOS_KILLS ?? 12)
const topicDeletions = Number(process.env.CHAOS_TOPICS ?? 5)
const durationMs = Number(process.env.CHAOS_SECONDS ?? 60) * 1_000
const POOLER_KILLS = 4

const noPooler = await whyNoCluster(true)
if (noPooler && process.env.CI === 'true') throw new Error(`The chaos run behind PgBouncer cannot start: ${noPooler}`)
/**
 * True if the test also runs without PgBouncer: in the long form, or if PgBouncer is not installed. Otherwise the run with PgBouncer suffices,
 * because it has the same faults.
 */
const isDirect = noPooler !== undefined || Boolean(process.env.SLUICE_TEST_LONG)

describe.skipIf(missing)('durable jobs while every process is killed at random', () => {
  const run = { jobs, researches, kills, durationMs, topicDeletions }

  it.skipIf(noPooler)(
    'are never lost, end once, and send their events in order, even if PgBouncer is killed as well',
    {
      timeout: 600_000,
    },
    async () => {
      await expectNoViolation({ ...run, poolerKills: POOLER_KILLS })
    },
  )

  it.runIf(isDirect)('are never lost, end once, and send their events in order', { timeout: 600_000 }, async () => {
    await expectNoViolation(run)
  })
})

/** Runs jobs under faults, and expects that the histories break no rule of the checker. */
async function expectNoViolation(options: Omit<ChaosOptions, 'seed' | 'directory'>): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-history-'))
  const { figures, story } = await runChaos({ ...options, seed, directory })
  process.stderr.write(`${tableOf(figures)}\n`)
  expect(story, `violations of the rules of a durable job; the histories are in ${directory}`).toBe('')
  expect(figures['accepted jobs']).toBe(options.jobs + options.researches)
  expect(figures['researches among them']).toBe(options.researches)
  expect(figures['processes killed with -9']).toBe(options.kills + (options.poolerKills ?? 0))
  expect(figures['topics deleted']).toBe(options.topicDeletions)
  expect(figures).toMatchObject({ 'faults that could not be done': 0, 'processes that ended by themselves': 0 })
  expect(figures).toMatchObject({ 'doubled children': 0, 'children that outlived their parent': 0 })
  expect(figures).toMatchObject({ 'lost jobs': 0, 'jobs with two ends': 0, 'gaps or repeats': 0 })
  await rm(directory, { recursive: true, force: true })
}
