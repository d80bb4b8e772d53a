import { describe, expect, it } from 'vitest'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { childCountsOf, currentRate, rateOf, roughRatesOf } from '#services/ingress/calls/child-counts.ts'
import { childJobId } from '#shared/store/jobs.ts'

type Times = Parameters<typeof rateOf>[0][number]
const NONE = { count: 0, recent: 0, recentRunMs: 0, recentFromMs: 0 }
type Run = readonly [startMs: number, endMs: number]

/** Returns the statistics of requests that ended in one state. The fields named `recent` cover only requests that ended since `sinceMs`. */
const ended = (runs: readonly Run[], sinceMs = 0, state: Times['state'] = 'completed'): Times => {
  const recent = runs.filter(([, end]) => end >= sinceMs)
  const recentRunMs = recent.reduce((sum, [start, end]) => sum + end - start, 0)
  const recentFromMs = recent.length === 0 ? 0 : Math.min(...recent.map(([start]) => start))
  return { ...NONE, state, count: runs.length, recent: recent.length, recentRunMs, recentFromMs }
}
const running = (starts: readonly number[]): Times => ({ ...NONE, state: 'in_progress', count: starts.length })
/** Returns the estimated rate at the time `now`, and the number of requests that have ended by then. */
const rateAt = async (runs: readonly Run[], now: number) => {
  const past = runs.filter(([, end]) => end <= now)
  const busy = runs.filter(([start, end]) => start <= now && end > now).map(([start]) => start)
  const rowsSince = async (sinceMs: number) => [ended(past, sinceMs), running(busy)]
  return { rate: await currentRate(await rowsSince(now - 300_000), rowsSince, now), done: past.length }
}

describe('the rate of a batch', () => {
  const NOW = 1_000_000
  const pairs = (seconds: readonly number[], runMs: number) =>
    seconds.map((before): Run => [NOW - 1_000 * before - runMs, NOW - 1_000 * before])

  it('is unknown until the first concurrent requests have ended', () => {
    expect(rateOf([], 0, NOW)).toBeNull()
    expect(rateOf([ended(pairs([0, 0, 0, 0], 1_000))], 0, NOW)).toBeNull()
    expect(rateOf([ended(pairs([0, 0, 0, 0, 0], 1_000))], 0, NOW)).not.toBeNull()
    expect(rateOf([ended(pairs([0], 20_000)), running([NOW - 20_000, NOW])], 0, NOW)).toBeNull()
    expect(rateOf([ended(pairs([0, 0], 20_000)), running([NOW, NOW])], 0, NOW)).toBeCloseTo(0.1)
    // The rate is known although more requests run (50) than have ended (20), because the first request started 25 s ago. This is at least
    // twice the mean run time of 6 s.
    expect(rateOf([ended(pairs([...Array(20).keys()], 6_000)), running(Array(50).fill(NOW))], 0, NOW)).toBeCloseTo(
      20 / 25,
    )
    expect(rateOf([ended(pairs([9, 9, 9, 9, 9], 3), 0, 'failed'), running([NOW])], 0, NOW)).toBeNull()
  })

  it('is near the true rate after the first requests, with 2 and with 256 slots', () => {
    // Two slots and 3 s per request: eight requests have ended in 12 s.
    expect(rateOf([ended(pairs([9, 9, 6, 6, 3, 3, 0, 0], 3_000))], 0, NOW)).toBeCloseTo(8 / 12)
    // 256 slots and 10 s per request: the first 256 requests have just ended, so the rate is 25.6 per second.
    const wave = ended(pairs(Array(256).fill(0), 10_000))
    expect(rateOf([wave, running(Array(256).fill(NOW))], 0, NOW)).toBeCloseTo(25.6)
    // All ended requests took 600 s, longer than the window of 300 s in which ended requests are counted. The rate must be 2 / 600 s, not 2
    // / 300 s.
    const long = ended(pairs([0, 0], 600_000), NOW - 300_000)
    expect(rateOf([long, running([NOW, NOW])], NOW - 300_000, NOW)).toBeCloseTo(1 / 300)
  })

  it('is measured over the last 300 s only, and falls while no request ends', () => {
    const runs = pairs([...Array(600).keys()], 60_000)
    expect(rateOf([ended(runs, NOW - 300_000)], NOW - 300_000, NOW)).toBeCloseTo(1, 1)
    const short = ended(pairs([...Array(300).keys()], 1_000))
    expect(rateOf([short], NOW - 300_000, NOW + 300_000)).toBeCloseTo(0.5, 1)
  })

  it('counts failed requests only if they took as long as successful requests', () => {
    const answers = ended(pairs([9, 6, 3, 0], 3_000))
    const slow = ended(pairs([9, 6, 3, 0], 3_000), 0, 'failed')
    expect(rateOf([answers, slow], 0, NOW)).toBeCloseTo(8 / 12)
    expect(rateOf([answers, ended(pairs(Array(50).fill(9), 5), 0, 'failed')], 0, NOW)).toBeCloseTo(4 / 12)
  })

  it('is correct while 40 requests wait at the model server', async () => {
    // The model server has 8 slots and needs 2 s per request. The service counts 48 requests as running, 40 of which wait at the model
    // server. Except for the first 48, each request therefore takes 12 s.
    const runs = Array.from({ length: 500 }, (_, nth): Run => {
      const end = 2_000 * (Math.floor(nth / 8) + 1)
      return [Math.max(0, end - 12_000), end]
    })
    for (let now = 14_000; now < 120_000; now += 700) {
      const { rate, done } = await rateAt(runs, now)
      const elapsed = Math.min(30, now / 1_000)
      if (now < 30_000) expect((rate ?? 0) * elapsed, `rate × time at ${now} ms`).toBeCloseTo(done, 5)
      const factor = (500 - done) / (rate ?? 0) / ((126_000 - now) / 1_000)
      expect(factor, `estimate at ${now} ms`).toBeGreaterThan(0.8)
      expect(factor, `estimate at ${now} ms`).toBeLessThan(1.25)
    }
  })

  it('stays known during an outage, and is correct again 30 s after the outage', async () => {
    // 8 slots and 2 s per request. During an outage from 60 s to 962 s no request ends; the 8 requests that run during the outage end after
    // it.
    const wave = (atMs: number) => Array.from({ length: 8 }, (): Run => [atMs, atMs + 2_000])
    const before = Array.from({ length: 30 }, (_, nth) => wave(2_000 * nth)).flat()
    const stuck = Array.from({ length: 8 }, (): Run => [60_000, 962_000])
    const after = Array.from({ length: 60 }, (_, nth) => wave(962_000 + 2_000 * nth)).flat()
    const runs = [...before, ...stuck, ...after]
    for (let now = 10_000; now < 1_080_000; now += 5_000) {
      const { rate } = await rateAt(runs, now)
      expect(rate, `rate at ${now} ms`).not.toBeNull()
      if (now >= 995_000) expect(rate, `rate at ${now} ms`).toBeCloseTo(4, 0)
    }
  })

  it('stays known while only a few slow requests of the batch still run', async () => {
    const quick = Array.from({ length: 160 }, (_, nth): Run => [250 * nth, 250 * nth + 2_000])
    const slow = Array.from({ length: 6 }, (_, nth): Run => [20_000, 400_000 + 60_000 * nth])
    for (let now = 10_000; now < 700_000; now += 10_000) {
      const { rate } = await rateAt([...quick, ...slow], now)
      expect(rate, `rate at ${now} ms`).not.toBeNull()
    }
  })

  it.each([
    { places: 8, queued: 0 },
    { places: 64, queued: 0 },
    { places: 256, queued: 0 },
    { places: 8, queued: 56 },
  ])('lies between its two estimated bounds once three requests have ended: %o', ({ places, queued }) => {
    for (let seed = 1; seed <= 8; seed++) {
      const { runs, endMs } = simulated(places, 40 * places, seed)
      // Requests that wait at the model server count as running from the start.
      const counted = runs.map(
        ([start, end]): Run => [start === 0 ? 0 : Math.max(0, start - (queued / places) * 65_000), end],
      )
      const ends = runs.map(([, end]) => end).toSorted((a, b) => a - b)
      for (const nth of [2, 4, 9, 19, 39, 79]) {
        const now = (ends[nth] as number) + 1
        const done = counted.filter(([, end]) => end <= now)
        const busy = counted.filter(([start, end]) => start <= now && end > now).map(([start]) => start)
        const rates = roughRatesOf([ended(done), running(busy)], now)
        const left = (runs.length - done.length) / ((endMs - now) / 1_000)
        expect(rates?.least, `lower bound of seed ${seed} after ${nth + 1} answers`).toBeLessThan(left)
        expect(rates?.most, `upper bound of seed ${seed} after ${nth + 1} answers`).toBeGreaterThan(left)
      }
    }
    expect(
      roughRatesOf(
        [
          ended([
            [0, 9],
            [0, 9],
          ]),
          running([0]),
        ],
        10,
      ),
    ).toBeNull()
  })

  it.each([1, 2, 3, 8, 32])(
    'predicts the end of the batch within a factor of 2, with requests of 40 to 90 s and %i slots',
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

/** Simulates a batch of `rows` requests that take 40 to 90 s each. At most `places` requests run at the same time. */
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

  it('include an ended request once, before and after the progress of the batch includes the request', async () => {
    expect(await countsAfter(0)).toMatchObject({ total: 50, completed: 50, failed: 0 })
    expect(await countsAfter(50)).toMatchObject({ total: 50, completed: 50, failed: 0 })
  })
})
