import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { DurableJob } from '#schemas/durable-job.ts'
import { Positions } from '#shared/jobs/durable/durable.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import type { NewJob, Store } from '#shared/store/store.ts'
import { openScratch } from '../../../simulation/scratch.ts'
import { alive, HOUR_MS, newJob } from '../../../support/jobs/stores.ts'
import { until } from '../../../support/stack.ts'

let scratch: ReturnType<typeof openScratch>
let store: Store
let calls: number
let positions: Positions
beforeEach(() => {
  scratch = openScratch()
  store = openSqliteStore({ directory: scratch.path, boot: 'test' })
  calls = 0
  positions = new Positions(store, () => calls)
})
afterEach(async () => {
  await store.close()
  scratch[Symbol.dispose]()
})

async function queue(tenant: string, count: number, more: Partial<NewJob> = {}): Promise<DurableJob[]> {
  const jobs: DurableJob[] = []
  for (let i = 0; i < count; i++) {
    const created = await store.create(newJob({ tenant, ...more }))
    if (created.outcome === 'created') jobs.push(created.job)
  }
  // Jobs that were created in the same millisecond are ordered by their ids.
  return jobs.toSorted((a, b) => (a.id < b.id ? -1 : 1))
}

async function placesOf(jobs: readonly DurableJob[]): Promise<(number | null)[]> {
  return await Promise.all(jobs.map((job) => positions.of(job)))
}

describe('the queue position of a durable job', () => {
  it('is the number of earlier jobs if only one tenant has jobs', async () => {
    expect(await placesOf(await queue('a', 4))).toEqual([0, 1, 2, 3])
  })

  it('counts jobs of another tenant only up to the fair share of that tenant', async () => {
    const [flood, own] = [await queue('flood', 100), await queue('own', 2)]
    expect(await placesOf(own)).toEqual([1, 3])
    expect((await placesOf(flood)).slice(0, 3)).toEqual([1, 3, 4])
    expect(await positions.of(flood[99] as DurableJob)).toBe(101)
  })

  it('counts the jobs and attached calls that wait for the same slots, and no others', async () => {
    await queue('a', 3, { model: 'other' })
    await queue('a', 3, { priority: 'low' })
    await queue('a', 3, { runAtMs: Date.now() + HOUR_MS })
    const jobs = await queue('a', 3)
    expect(await placesOf(jobs)).toEqual([0, 1, 2])
    calls = 2
    expect(await placesOf(jobs)).toEqual([1, 3, 4])
  })

  it('decreases when an earlier job starts, and is null for a running or scheduled job', async () => {
    const [first, second] = (await queue('a', 2)) as [DurableJob, DurableJob]
    expect(await positions.of(second)).toBe(1)
    await store.claim(first.id, await alive(store))
    await until(async () => (await positions.of(second)) === 0)
    const running = await store.find('a', first.id)
    const [later] = (await queue('a', 1, { runAtMs: Date.now() + HOUR_MS })) as [DurableJob]
    expect(await placesOf([running as DurableJob, later])).toEqual([null, null])
  })

  it('is known even for a job that was queued after the last read of the store', async () => {
    const [first] = (await queue('a', 1)) as [DurableJob]
    vi.useFakeTimers({ now: Date.now(), toFake: ['Date'] })
    try {
      expect(await positions.of(first)).toBe(0)
      const more = await queue('a', 3)
      for (const job of more) await positions.added(job)
      expect((await placesOf([first, ...more])).toSorted()).toEqual([0, 1, 2, 3])
      const [other] = (await queue('b', 1)) as [DurableJob]
      await positions.added(other)
      expect(await positions.of(other)).toBe(1)
    } finally {
      vi.useRealTimers()
    }
  })

  it('is read from the store once for 100 concurrent requests, and is null if the store fails', async () => {
    const [job] = (await queue('a', 1)) as [DurableJob]
    const places = vi.spyOn(store.tenants, 'positions')
    await placesOf(Array.from({ length: 100 }, () => job))
    expect(places).toHaveBeenCalledTimes(1)
    places.mockRejectedValue(new Error('away'))
    await until(async () => (await positions.of(job)) === null)
  })
})
