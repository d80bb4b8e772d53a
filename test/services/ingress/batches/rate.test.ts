import { describe, expect, it } from 'vitest'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { childCountsOf, rateOf } from '#services/ingress/calls/child-counts.ts'
import { childJobId } from '#shared/store/jobs.ts'

type Times = Parameters<typeof rateOf>[0][number]
const NONE = { count: 0, recent: 0, recentRunMs: 0, recentFromMs: 0, startedSumMs: 0 }
type Run = readonly [startMs: number, endMs: number]

/** The row of requests that ended in one state. */
const ended = (runs: readonly Run[], sinceMs = 0, state: Times['state'] = 'completed'): Times => {
  const recent = runs.filter(([, end]) => end >= sinceMs)
  const recentRunMs = recent.reduce((sum, [start, end]) => sum + end - start, 0)
  const recentFromMs = recent.length === 0 ? 0 : Math.min(...recent.map(([start]) => start))
  return { ...NONE, state, count: runs.length, recent: recent.length, recentRunMs, recentFromMs }
}
const running = (starts: readonly number[]): Times => {
  return { ...NONE, state: 'in_progress', count: starts.length, startedSumMs: starts.reduce((sum, at) => sum + at, 0) }
}

describe('the rate of a batch', () => {
  const NOW = 1_000_000
  const pairs = (seconds: readonly number[], runMs: number) =>
    seconds.map((before): Run => [NOW - 1_000 * before - runMs, NOW - 1_000 * before])

  it('is unknown until the first wave of answers has ended', () => {
    expect(rateOf([], 0, NOW)).toBeNull()
    expect(rateOf([ended(pairs([0, 0, 0, 0], 1_000))], 0, NOW)).toBeNull()
    expect(rateOf([ended(pairs([0, 0, 0, 0, 0], 1_000))], 0, NOW)).not.toBeNull()
    expect(rateOf([ended(pairs([0], 20_000)), running([NOW - 20_000, NOW])], 0, NOW)).toBeNull()
    expect(rateOf([ended(pairs([0, 0], 20_000)), running([NOW, NOW])], 0, NOW)).toBeCloseTo(0.1)
    expect(rateOf([ended(pairs([9, 9, 9, 9, 9], 3), 0, 'failed'), running([NOW])], 0, NOW)).toBeNull()
  })

  it('is near the true rate after the first requests, with few slots and with many', () => {
    // Two slots, and 3 s per request.
    expect(rateOf([ended(pairs([9, 9, 6, 6, 3, 3, 0, 0], 3_000))], 0, NOW)).toBeCloseTo(8 / 12)
    // 256 slots, and 10 s per request. The first 256 requests have just ended.
    const wave = ended(pairs(Array(256).fill(0), 10_000))
    expect(rateOf([wave, running(Array(256).fill(NOW))], 0, NOW)).toBeCloseTo(25.6)
    // The first requests took longer than the window over which the rate is measured.
    const long = ended(pairs([0, 0], 600_000), NOW - 300_000)
    expect(rateOf([long, running([NOW, NOW])], NOW - 300_000, NOW)).toBeCloseTo(1 / 300)
  })

  it('ignores the time before the window, and falls while no request ends', () => {
    const runs = pairs([...Array(600).keys()], 60_000)
    expect(rateOf([ended(runs, NOW - 300_000)], NOW - 300_000, NOW)).toBeCloseTo(1, 1)
    const short = ended(pairs([...Array(300).keys()], 1_000))
    expect(rateOf([short], NOW - 300_000, NOW + 300_000)).toBeCloseTo(0.5, 1)
  })

  it('counts failures that took as long as answers, and no others', () => {
    const answers = ended(pairs([9, 6, 3, 0], 3_000))
    const slow = ended(pairs([9, 6, 3, 0], 3_000), 0, 'failed')
    expect(rateOf([answers, slow], 0, NOW)).toBeCloseTo(8 / 12)
    expect(rateOf([answers, ended(pairs(Array(50).fill(9), 5), 0, 'failed')], 0, NOW)).toBeCloseTo(4 / 12)
  })

  it.each([1, 2, 3, 8, 32])(
    'estimates the end within a factor of 2, with rows of 40 to 90 s and %i slots',
    (places) => {
      for (let seed = 1; seed <= 8; seed++) {
        const { runs, endMs } = simulated(places, 40 + places * 6, seed)
        const instant = ended(Array(5).fill([0, 3]), 0, 'failed')
        let estimates = 0
        for (let now = 1_000; now < endMs - 180_000; now += 5_000) {
          const since = now - 300_000
          const done = runs.filter(([, end]) => end <= now)
          const busy = runs.filter(([start, end]) => start <= now && end > now).map(([start]) => start)
          const rate = rateOf([ended(done, since), running(busy), ...(since <= 3 ? [instant] : [])], since, now)
          if (done.length < places) expect(rate, `before the first wave, at ${now}`).toBeNull()
          if (rate === null) continue
          estimates++
          const factor = (runs.length - done.length) / rate / ((endMs - now) / 1_000)
          expect(factor, `estimate of seed ${seed} at ${now} of ${endMs} ms`).toBeGreaterThan(0.5)
          expect(factor, `estimate of seed ${seed} at ${now} of ${endMs} ms`).toBeLessThan(2)
        }
        expect(estimates, 'estimates').toBeGreaterThan(20)
      }
    },
  )
})

/** Simulates rows that take 40 to 90 s each. `places` is the number of rows that run at the same time. */
function simulated(places: number, rows: number, seed: number): { runs: Run[]; endMs: number } {
  let state = seed
  const random = () => {
    state = (state * 48_271) % 2_147_483_647
    return state / 2_147_483_647
  }
  const freeAt = Array(places).fill(0)
  const runs = Array.from({ length: rows }, (): Run => {
    const place = freeAt.indexOf(Math.min(...freeAt))
    const start = freeAt[place]
    freeAt[place] = start + 40_000 + 50_000 * random()
    return [start, freeAt[place]]
  })
  return { runs, endMs: Math.max(...freeAt) }
}

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
