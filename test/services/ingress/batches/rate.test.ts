import { describe, expect, it } from 'vitest'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { childCountsOf, rateOf } from '#services/ingress/calls/child-counts.ts'
import { childJobId } from '#shared/store/jobs.ts'

describe('the rate of a batch', () => {
  const NOW = 1_000_000
  const row = (ends: readonly number[], runMs: number) => ({
    recent: ends.length,
    recentRunMs: ends.length * runMs,
    recentFromMs: Math.min(...ends),
  })

  it('is unknown until a few requests have ended', () => {
    expect(rateOf([], 0, NOW)).toBeNull()
    expect(rateOf([row([NOW - 3, NOW - 2, NOW - 1, NOW], 1_000)], 0, NOW)).toBeNull()
  })

  it('is near the true rate after the first requests, with few slots and with many', () => {
    // Two slots, 3 s per request.
    const pairs = [9, 9, 6, 6, 3, 3, 0, 0].map((seconds) => NOW - 1_000 * seconds)
    expect(rateOf([row(pairs, 3_000)], 0, NOW)).toBeCloseTo(8 / 12)
    // 256 slots, 10 s per request, of which the first wave has just ended.
    const wave = Array.from({ length: 256 }, () => NOW)
    expect(rateOf([row(wave, 10_000)], 0, NOW)).toBeCloseTo(25.6)
  })

  it('ignores the time before the window, and falls while no request ends', () => {
    const ends = Array.from({ length: 300 }, (_, i) => NOW - 1_000 * i)
    expect(rateOf([row(ends, 60_000)], NOW - 300_000, NOW)).toBeCloseTo(1)
    const stalled = [row(ends, 1_000)]
    expect(rateOf(stalled, NOW - 300_000, NOW + 300_000)).toBeCloseTo(0.5, 1)
  })
})

describe('the counts of a batch', () => {
  const id = 'job_00000000000000000000'
  const ends = [{ parent: childJobId(id, '0'), state: 'completed', count: 50 }]
  const context = { store: { countChildren: async () => ends.map((row) => ({ ...row, recent: 0 })) } }
  const countsAfter = (completed: number) => {
    const progress = { progress: { counts: { total: 50, completed, failed: 0 } } }
    const job = { id, tenant: 'a', kind: 'batch', state: 'running', progress }
    return childCountsOf(context as unknown as IngressContext, job as unknown as DurableJob)
  }

  it('contain each request of the last part once, before and after the part is recorded', async () => {
    expect(await countsAfter(0)).toMatchObject({ total: 50, completed: 50, failed: 0 })
    expect(await countsAfter(50)).toMatchObject({ total: 50, completed: 50, failed: 0 })
  })
})
