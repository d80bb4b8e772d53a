import fc from 'fast-check'
import { expect, test } from 'vitest'
import { AdaptiveLimit, type Permit } from '#shared/capacity/adaptive-limit.ts'
import { partsOf } from '#shared/engines/upstream/limit-partition.ts'

/** Opens an adaptive concurrency limit with a clock that the test controls. */
function openLimit(max: number) {
  const clock = { ms: 0 }
  return { clock, limit: new AdaptiveLimit(max, () => clock.ms) }
}

/** Starts as many calls as the limit permits. */
function fill(limit: AdaptiveLimit, isTimed = true): Permit[] {
  const permits: Permit[] = []
  while (limit.hasFreePermit) permits.push(limit.begin(isTimed))
  return permits
}

/** Runs one round: starts as many calls as permitted, and answers all of them after `afterMs`. Returns their number. */
function answerAll(limit: AdaptiveLimit, clock: { ms: number }, afterMs: number): number {
  const permits = fill(limit)
  clock.ms += afterMs
  for (const permit of permits) limit.answered(permit)
  for (const permit of permits) limit.end(permit)
  return permits.length
}

test('the concurrency limit of an upstream stays between 1 and its maximum for any sequence of call results', () => {
  const step = fc.record({
    what: fc.constantFrom('begin', 'answered', 'overloaded', 'timedOut', 'end', 'pause'),
    which: fc.nat(50),
    waitMs: fc.nat(30_000),
  })
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 64 }), fc.array(step, { maxLength: 300 }), (max, steps) => {
      const { clock, limit } = openLimit(max)
      const open: Permit[] = []
      for (const { what, which, waitMs } of steps) {
        clock.ms += waitMs
        const permit = open[which % Math.max(1, open.length)]
        if (what === 'begin' && limit.hasFreePermit) open.push(limit.begin(which % 3 > 0))
        else if (what === 'pause') limit.pause(waitMs)
        else if (permit && what === 'end') limit.end(...(open.splice(open.indexOf(permit), 1) as [Permit]))
        else if (permit && what !== 'begin' && what !== 'end') limit[what](permit)
        expect(limit.permits).toBeGreaterThanOrEqual(1)
        expect(limit.permits).toBeLessThanOrEqual(max)
        expect(limit.inFlight).toBe(open.length)
        expect(limit.pausedMs).toBeLessThanOrEqual(60_000)
      }
    }),
  )
})

test('the concurrency limit is halved once if 20 concurrent calls receive an overload response', () => {
  const { clock, limit } = openLimit(64)
  const permits = fill(limit).slice(0, 20)
  clock.ms += 100
  for (const permit of permits) limit.overloaded(permit)
  expect(limit.permits).toBe(32)
})

test('the concurrency limit drops to 1 if no call is answered for 11 s, before the calls time out', () => {
  const { clock, limit } = openLimit(64)
  answerAll(limit, clock, 200)
  const permits = fill(limit)
  clock.ms += 9_000
  expect(limit.permits).toBe(64)
  clock.ms += 2_000
  expect(limit.permits).toBe(1)
  for (const permit of permits) limit.timedOut(permit)
  for (const permit of permits) limit.end(permit)
  expect(limit.permits).toBe(1)
})

test('the concurrency limit stays unchanged if one call hangs while others are answered', () => {
  const { clock, limit } = openLimit(8)
  answerAll(limit, clock, 200)
  limit.begin(true)
  for (let round = 0; round < 20; round++) answerAll(limit, clock, 2_000)
  expect(limit.permits).toBe(8)
})

test('the concurrency limit is halved if one call times out while others are answered', () => {
  const { clock, limit } = openLimit(16)
  const [slow, quick] = fill(limit) as [Permit, Permit]
  clock.ms += 100
  limit.answered(quick)
  limit.timedOut(slow)
  expect(limit.permits).toBe(8)
  clock.ms += 100
  const next = limit.begin(false)
  clock.ms += 100
  limit.timedOut(next)
  expect(limit.permits).toBe(1)
})

test.each([1, 5, 64, 512])(
  'the concurrency limit returns to its maximum of %i within 30 rounds after the server has recovered',
  (max) => {
    const { clock, limit } = openLimit(max)
    const permits = fill(limit)
    clock.ms += 120_000
    for (const permit of permits) limit.timedOut(permit)
    for (const permit of permits) limit.end(permit)
    let rounds = 0
    for (; limit.permits < max && rounds < 100; rounds++) answerAll(limit, clock, 1_000)
    expect(limit.permits).toBe(max)
    // After the recovery, the limit grows by one per round for ten rounds, then by half per round.
    expect(rounds).toBeLessThan(10 + 20)
  },
)

test('the concurrency limit does not grow while fewer calls than the limit are in flight', () => {
  const { clock, limit } = openLimit(64)
  const permits = fill(limit)
  clock.ms += 100
  for (const permit of permits) limit.overloaded(permit)
  for (const permit of permits) limit.end(permit)
  clock.ms += 60_000
  for (let call = 0; call < 100; call++) {
    const permit = limit.begin(true)
    limit.answered(permit)
    limit.end(permit)
  }
  expect(limit.permits).toBe(32)
})

test('the concurrency limits of two clients of one server converge to equal values', () => {
  const capacity = 60
  const [a, b] = [openLimit(100), openLimit(100)]
  // Client b lowers its limit before client a starts, so that the two limits differ at first.
  const early = fill(b.limit)
  b.clock.ms += 1
  for (const permit of early) b.limit.timedOut(permit)
  for (const permit of early) b.limit.end(permit)
  let shares: number[] = []
  for (let round = 0; round < 400; round++) {
    const all = [a, b].map(({ limit }) => ({ limit, permits: fill(limit) }))
    const isTooMuch = all.reduce((sum, { permits }) => sum + permits.length, 0) > capacity
    for (const { clock } of [a, b]) clock.ms += 500
    for (const { limit, permits } of all) {
      for (const permit of permits) isTooMuch ? limit.overloaded(permit) : limit.answered(permit)
      for (const permit of permits) limit.end(permit)
    }
    shares = all.map(({ permits }) => permits.length)
  }
  const [first = 0, second = 0] = shares
  expect(Math.abs(first - second)).toBeLessThanOrEqual(2)
})

test('the concurrency limit falls until queueing delays the first byte by at most 350 ms', () => {
  const { clock, limit } = openLimit(64)
  for (let call = 0; call < 16; call++) {
    const permit = limit.begin(true)
    clock.ms += 100
    limit.answered(permit)
    limit.end(permit)
  }
  const waits = (inFlight: number) => 100 * Math.max(1, inFlight / 8)
  let sent = 64
  for (let round = 0; round < 60; round++) {
    sent = answerAll(limit, clock, waits(sent))
    expect(limit.permits).toBeGreaterThanOrEqual(4)
  }
  // The limit tolerates a delay of up to 350 ms, which 28 concurrent calls cause. The limit must therefore settle near 28.
  expect(sent).toBeLessThanOrEqual(32)
  expect(sent).toBeGreaterThanOrEqual(24)
})

test('the concurrency limit keeps its maximum if the time to the first byte is long, but constant', () => {
  const { clock, limit } = openLimit(32)
  for (let round = 0; round < 10; round++) answerAll(limit, clock, 100)
  for (let round = 0; round < 100; round++) answerAll(limit, clock, 1_000)
  expect(limit.permits).toBe(32)
})

test('a worker adopts a published concurrency limit of a higher generation, or a higher limit of the same generation', () => {
  const { limit, clock } = openLimit(64)
  limit.applyPublished({ generation: 1, limit: 8 })
  expect(limit.permits).toBe(8)
  limit.applyPublished({ generation: 1, limit: 12 })
  limit.applyPublished({ generation: 1, limit: 4 })
  limit.applyPublished({ generation: 0, limit: 64 })
  expect([limit.permits, limit.published.generation]).toEqual([12, 1])
  clock.ms += 10
  for (const permit of fill(limit)) limit.overloaded(permit)
  expect(limit.published).toEqual({ generation: 2, limit: 6 })
})

test('a concurrency limit is divided among workers into parts that add up to the limit and differ by at most 1', () => {
  const member = fc.record({ boot: fc.uuid(), slots: fc.integer({ min: 1, max: 20 }) })
  const members = fc.uniqueArray(member, { minLength: 1, maxLength: 12, selector: ({ boot }) => boot })
  fc.assert(
    fc.property(members, fc.integer({ min: 0, max: 300 }), (all, limit) => {
      const parts = partsOf(limit, all)
      const sum = all.reduce((slots, one) => slots + one.slots, 0)
      expect([...parts.values()].reduce((total, part) => total + part, 0)).toBe(Math.min(limit, sum))
      for (const { boot, slots } of all) expect(parts.get(boot)).toBeLessThanOrEqual(slots)
      expect(new Map([...partsOf(limit, all.toReversed())].sort())).toEqual(new Map([...parts].sort()))
      const free = all
        .filter(({ boot, slots }) => (parts.get(boot) ?? 0) < slots)
        .map(({ boot }) => parts.get(boot) ?? 0)
      if (free.length > 0) expect(Math.max(...parts.values()) - Math.min(...free)).toBeLessThanOrEqual(1)
    }),
  )
})
