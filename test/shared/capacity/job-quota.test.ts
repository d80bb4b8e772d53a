import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type JobBounds, JobQuota } from '#shared/capacity/job-quota.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import type { Created, Store } from '#shared/store/store.ts'
import { openScratch } from '../../simulation/scratch.ts'
import { HOUR_MS, newJob } from '../../support/jobs/stores.ts'
import { until } from '../../support/stack.ts'

let scratch: ReturnType<typeof openScratch>
let store: Store
beforeEach(() => {
  scratch = openScratch()
  store = openSqliteStore({ directory: scratch.path, boot: 'test' })
})
afterEach(async () => {
  await store.close()
  scratch[Symbol.dispose]()
})

function open(bounds: Partial<JobBounds> = {}): JobQuota {
  return new JobQuota(store, { jobsMax: 6, scheduledMax: 6, ...bounds })
}

async function enter(room: JobQuota, tenant: string, runAtMs?: number, keyId?: string): Promise<Created> {
  const job = newJob({ tenant, ...(keyId !== undefined && { keyId }), ...(runAtMs !== undefined && { runAtMs }) })
  return await room.enter(job, () => store.create(job))
}

/** Submits many jobs concurrently. Returns the number of admitted jobs, and the distinct HTTP statuses of the refusals. */
async function fill(room: JobQuota, tenant: string, count: number, runAtMs?: number, keyId?: string) {
  const asked = await Promise.allSettled(Array.from({ length: count }, () => enter(room, tenant, runAtMs, keyId)))
  const refused = asked.flatMap((each) => (each.status === 'rejected' ? [(each.reason as ServiceError).status] : []))
  return { made: count - refused.length, refused: [...new Set(refused)] }
}

const later = () => Date.now() + HOUR_MS

describe('the quota of durable jobs', () => {
  it('grants the first tenant half of the total, and each further tenant half of the rest', async () => {
    const room = open()
    expect(await fill(room, 'a', 10)).toEqual({ made: 3, refused: [429] })
    expect(await fill(room, 'b', 10)).toEqual({ made: 2, refused: [429] })
    expect(await fill(room, 'c', 10)).toEqual({ made: 1, refused: [503] })
    expect(await fill(room, 'd', 1)).toEqual({ made: 0, refused: [503] })
  })

  it('counts scheduled jobs separately from queued and running ones', async () => {
    const room = open({ scheduledMaxPerProject: 6 })
    expect(await fill(room, 'a', 10, later())).toEqual({ made: 6, refused: [429] })
    expect(await fill(room, 'b', 1, later())).toEqual({ made: 0, refused: [503] })
    expect(await fill(room, 'a', 1)).toEqual({ made: 1, refused: [] })
    expect(await fill(room, 'b', 1)).toEqual({ made: 1, refused: [] })
  })

  it('accepts jobs of other tenants even if many scheduled jobs of one tenant become due at once', async () => {
    await fill(open({ scheduledMaxPerProject: 20, scheduledMax: 20 }), 'a', 10, Date.now() + 20)
    await until(async () => {
      await store.startDue(100)
      return (await store.tenants.depth())[0]?.state === 'queued'
    })
    const room = open()
    expect(await fill(room, 'a', 1)).toEqual({ made: 0, refused: [429] })
    expect((await fill(room, 'b', 1)).made).toBe(1)
  })

  it('is limited by the maximum of the key if the key has one', async () => {
    const limits = new Map([
      ['one', { queued: 2, scheduled: 1 }],
      ['none', { queued: 0 }],
    ])
    const room = open({ jobsMax: 20, scheduledMax: 20, limitsOfKey: (id) => limits.get(id) })
    expect(await fill(room, 'a', 5, undefined, 'one')).toEqual({ made: 2, refused: [429] })
    expect(await fill(room, 'a', 5, later(), 'one')).toEqual({ made: 1, refused: [429] })
    expect(await fill(room, 'a', 1, undefined, 'none')).toEqual({ made: 0, refused: [403] })
    expect(await fill(room, 'a', 3, undefined, 'other')).toEqual({ made: 3, refused: [] })
  })

  it('is limited by the maximum of the project if the project has one', async () => {
    const limits = new Map([
      ['a', { queued: 2, scheduled: 1 }],
      ['b', { queued: 0 }],
    ])
    const room = open({ jobsMaxPerProject: 4, limitsOf: (tenant) => limits.get(tenant) })
    expect(await fill(room, 'a', 5)).toEqual({ made: 2, refused: [429] })
    expect(await fill(room, 'a', 5, later())).toEqual({ made: 1, refused: [429] })
    expect(await fill(room, 'b', 1)).toEqual({ made: 0, refused: [403] })
    expect((await fill(room, 'c', 5)).made).toBe(4)
  })

  it('counts jobs of all processes until they end', async () => {
    const room = open({ jobsMaxPerProject: 1 })
    const created = await enter(room, 'a')
    expect(created.outcome).toBe('created')
    await expect(enter(room, 'a')).rejects.toMatchObject({ code: 'rate_limit_exceeded', isUndone: true })
    await expect(enter(open({ jobsMaxPerProject: 1 }), 'a')).rejects.toMatchObject({ retryAfterMs: 10_000 })
    if (created.outcome === 'created') await store.cancel('a', created.job.id)
    await until(async () => await enter(room, 'a').catch(() => false))
  })

  it('is released if the creation of a job fails', async () => {
    const room = open({ jobsMaxPerProject: 1 })
    const error = new ServiceError('overloaded', 'Away.', { isUndone: true })
    const failing = () => Promise.reject(error)
    for (let i = 0; i < 3; i++) await expect(room.enter({ tenant: 'a' }, failing)).rejects.toBe(error)
    const { outcome } = await enter(room, 'a')
    expect(outcome).toBe('created')
  })
})
