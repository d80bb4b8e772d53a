/* Tests the counts of calls over all ingresses, on Postgres: each guarantee that shared/capacity/fleet-counts.ts documents. */
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { RUNNING_MS, WINDOW_MS } from '#shared/capacity/fleet-counts.ts'
import { openPostgresCounts } from '#shared/store/postgres/fleet-counts.ts'
import { openPostgresDatabase } from '../../support/jobs/stores.ts'

const postgres = inject('postgres')

describe.skipIf(!postgres)('the rate limit counters of a fleet in Postgres', () => {
  async function openCounts() {
    const database = await openPostgresDatabase(postgres ?? '')
    onTestFinished(() => database[Symbol.asyncDispose]())
    await database.open()
    const counts = openPostgresCounts(database.url, () => undefined)
    onTestFinished(() => counts.close())
    const add = async (amount: number) => (await counts.add([{ name: 'requests key k', amount }]))[0]
    const run = async (boot: string, count: number) =>
      (await counts.setRunning(boot, [{ name: 'key k', count }]))[0]?.elsewhere
    return { database, counts, add, run }
  }

  it('count exactly even with 20 concurrent writers', async () => {
    const { add, run } = await openCounts()
    const seen = await Promise.all(Array.from({ length: 20 }, () => add(3)))
    expect(seen.map((window) => window?.used).toSorted((a = 0, b = 0) => a - b)).toEqual(
      Array.from({ length: 20 }, (_, i) => 3 * (i + 1)),
    )
    const elsewhere = await Promise.all(Array.from({ length: 10 }, (_, i) => run(`boot_${i}`, 1)))
    expect(elsewhere.toSorted()).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
  })

  it('start a one-minute window at the first use, and subtract released amounts', async () => {
    const { database, add } = await openCounts()
    expect(await add(5)).toEqual({ name: 'requests key k', used: 5, remainingMs: WINDOW_MS })
    await database.advance(WINDOW_MS - 1_000)
    const late = await add(-2)
    expect(late?.used).toBe(3)
    expect(late?.remainingMs).toBeLessThanOrEqual(1_000)
    await database.advance(1_000)
    expect(await add(1)).toMatchObject({ used: 1, remainingMs: WINDOW_MS })
    expect((await add(-7))?.used).toBe(0)
  })

  it('start a new window if the clock of the database was set back', async () => {
    const { database, add, run } = await openCounts()
    await add(100)
    await run('a', 4)
    await database.advance(-3_600_000)
    expect(await add(1)).toMatchObject({ used: 1, remainingMs: WINDOW_MS })
    expect(await run('b', 1)).toBe(0)
  })

  it('omit the running calls of a process that no longer publishes its counts', async () => {
    const { database, run } = await openCounts()
    await run('dead', 7)
    expect(await run('alive', 1)).toBe(7)
    await database.advance(RUNNING_MS)
    expect(await run('alive', 1)).toBe(0)
    await run('other', 0)
    expect(await database.query('SELECT said FROM running_calls')).toEqual([
      { said: { alive: expect.anything(), other: expect.anything() } },
    ])
  })
})
