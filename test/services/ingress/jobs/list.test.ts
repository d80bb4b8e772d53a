import { describe, expect, it } from 'vitest'
import type { DurableJob } from '#schemas/durable-job.ts'
import { firstPage, pageOf } from '#services/ingress/calls/job-list.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import type { ListQuery } from '#shared/store/store.ts'

/** Simulates a store of `count` jobs. Their ids are the numbers from 0, and the job with the highest number is the newest. */
function jobsUpTo(count: number): DurableJobs {
  const list = async (_tenant: string, { after, limit }: ListQuery) => {
    const from = after === undefined ? count : Number(after)
    const jobs = Array.from({ length: Math.min(limit, from) }, (_, i) => ({ id: String(from - 1 - i) }) as DurableJob)
    return { jobs, hasMore: from > limit }
  }
  return { list } as unknown as DurableJobs
}

const look = (matches: (id: number) => boolean, needsScan = true) => ({
  matches: ({ id }: DurableJob) => matches(Number(id)),
  group: undefined,
  needsScan,
})

describe('a page of the job list', () => {
  it.each([true, false])(
    'contains the next match even if the match is 40,000 rows away (scan: %s)',
    async (needsScan) => {
      const page = await pageOf(
        jobsUpTo(50_000),
        'a',
        { limit: 5 },
        look((id) => id < 10_000, needsScan),
      )
      expect(page.jobs.map(({ id }) => id)).toContain('9999')
      expect(page.hasMore).toBe(true)
    },
  )

  it('is empty only if no later page has a match', async () => {
    const page = await pageOf(
      jobsUpTo(20_000),
      'a',
      { limit: 5 },
      look(() => false),
    )
    expect([page.jobs, page.hasMore]).toEqual([[], false])
  })

  it('is replaced by an error with a cursor if no job matches within the scan limit', async () => {
    const looking = pageOf(
      jobsUpTo(200_000),
      'a',
      { limit: 5 },
      look((id) => id < 10),
    )
    await expect(looking).rejects.toMatchObject({ code: 'invalid_request', param: 'after' })
    await expect(looking).rejects.toThrow('after=100000')
  })
})

it('a page of batches or dead letters in the admin API is empty only if no later page has an entry', async () => {
  const pages = [[], [], [7], [8]]
  const read = async (after: string | undefined) => {
    const nth = Number(after ?? 0)
    return { page: pages[nth] ?? [], next: nth + 1 < pages.length ? String(nth + 1) : null }
  }
  expect(await firstPage(undefined, read)).toEqual({ page: [7], next: '3' })
  expect(await firstPage('1', async () => ({ page: [], next: null }))).toEqual({ page: [], next: null })
})
