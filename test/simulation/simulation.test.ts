/**
 * L2: durable jobs keep their promises whatever fails, and the simulation would notice if they did not.
 *
 * `SIMULATION_SEEDS=50000` runs so many seeds, 30 where it is not said; `SIMULATION_SEED=123` runs that one alone, the same as it always was.
 */
import { expect, it, test, vi } from 'vitest'
import { MUTANTS } from './mutants.ts'
import { type Report, simulate } from './simulation.ts'

vi.mock('node:timers/promises', async () => await import('./timers-promises.ts'))
vi.mock('#shared/id.ts', async () => ({ newId: (await import('./simulation.ts')).seededId }))

const SEEDS = Number(process.env.SIMULATION_SEEDS ?? 30)
const ONLY = process.env.SIMULATION_SEED === undefined ? undefined : Number(process.env.SIMULATION_SEED)
const BATCH = 50
/** For many times what a batch takes. */
const options = { timeout: 600_000 }

const batches =
  ONLY === undefined
    ? Array.from({ length: Math.ceil(SEEDS / BATCH) }, (_, batch) => [
        1 + batch * BATCH,
        Math.min(SEEDS, (batch + 1) * BATCH),
      ])
    : [[ONLY, ONLY]]

/** The first seed that shows each mutant, where it is not 1: it is tried first, and where it shows it no more, all others. */
const SHOWN_BY: Readonly<Record<string, number>> = {
  'a child that is submitted again is another job': 2,
  'an end is published before it is committed': 2,
  'nobody wakes a job whose children have ended': 2,
  'nothing expires': 2,
  'steps are forgotten': 2,
  'whoever has waited longest is served first': 2,
  'a cancel that was asked for is told as done': 4,
  'the family of a job is not cancelled': 11,
  'a wake that was cut short is not made good': 21,
  'the turn always begins with the same tenant': 22,
  'a write that is made again is another write': 23,
  'refused writes are published': 26,
  'writes of a run are taken whatever attempt is under way': 34,
}

/** How often what came of the seeds that ran without a mutant. */
const counts: Record<string, number> = {}

/** Runs a seed, and lets the rest of the program have its turn. */
async function run(seed: number, mutant = {}): Promise<Report> {
  await new Promise((resolve) => setImmediate(resolve))
  return await simulate(seed, mutant)
}

it.each(batches)('durable jobs keep every promise in seeds %i to %i', options, async (from = 0, to = 0) => {
  for (let seed = from; seed <= to; seed++) {
    const report = await run(seed)
    expect(report.failure).toBe('')
    for (const [what, count] of Object.entries(report.counts)) counts[what] = (counts[what] ?? 0) + count
  }
})

it.skipIf(ONLY !== undefined)('a seed is the same run each time', options, async () => {
  const [first, again] = [await simulate(1), await simulate(1)]
  expect(first.story().length).toBeGreaterThan(10_000)
  expect(again.story()).toBe(first.story())
})

it.skipIf(ONLY !== undefined)('jobs end in every way there is, and run again for every reason', () => {
  const ends = ['completed', 'failed', 'cancelled', 'expired']
  expect(Object.keys(counts)).toEqual(expect.arrayContaining([...ends, 'worker_lost', 'handed_back', 'upstream_error']))
})

test.skipIf(ONLY !== undefined).each(Object.keys(MUTANTS))('it is noticed when %s', options, async (name) => {
  const first = SHOWN_BY[name] ?? 1
  let { failure } = await run(first, MUTANTS[name])
  for (let seed = 1; seed <= 500 && failure === ''; seed++) failure = (await run(seed, MUTANTS[name])).failure
  expect(failure).not.toBe('')
  expect(failure).toContain(MUTANTS[name]?.breaks ?? '')
})
