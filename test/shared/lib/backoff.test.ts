import fc from 'fast-check'
import { describe, expect, it, test } from 'vitest'
import { RetryBudget } from '#shared/jobs/decide.ts'
import { backoffMs } from '#shared/lib/backoff.ts'

describe('the retry delay', () => {
  const backoff = { baseMs: 250, maxMs: 4_000 }

  test.each([
    [1, 125, 250],
    [2, 250, 500],
    [3, 500, 1_000],
    [5, 2_000, 4_000],
    [6, 2_000, 4_000],
    [2_000, 2_000, 4_000],
  ])('after attempt %i is between %i and %i ms', (tries, least, most) => {
    expect(backoffMs(tries, backoff, 0)).toBe(least)
    expect(backoffMs(tries, backoff, 1 - Number.EPSILON)).toBe(most)
  })

  it('is random between half of a ceiling and the ceiling, which doubles per attempt up to maxMs', () => {
    const bounds = fc.record({
      baseMs: fc.integer({ min: 1, max: 10_000 }),
      maxMs: fc.integer({ min: 1, max: 100_000 }),
    })
    const random = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true })
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 5_000 }), bounds, random, (tries, limits, r) => {
        const ms = backoffMs(tries, limits, r)
        const ceiling = Math.min(limits.maxMs, limits.baseMs * 2 ** (tries - 1))
        return Number.isInteger(ms) && ms >= Math.floor(ceiling / 2) && ms <= Math.ceil(ceiling)
      }),
    )
  })
})

describe('the retry budget', () => {
  it('allows retries without previous calls until the initial budget is spent', () => {
    const budget = new RetryBudget(0.1, 3)
    for (let i = 0; i < 3; i++) {
      expect(budget.canSpend).toBe(true)
      budget.spend()
    }
    expect(budget.canSpend).toBe(false)
  })

  it('accumulates no more retries than its maximum, however many calls add to it', () => {
    const budget = new RetryBudget(1, 2)
    for (let i = 0; i < 100; i++) budget.earn()
    budget.spend()
    budget.spend()
    expect(budget.canSpend).toBe(false)
  })

  it('never allows more retries than its initial budget plus 10 % of the calls', () => {
    fc.assert(
      fc.property(fc.array(fc.boolean(), { maxLength: 2_000 }), fc.integer({ min: 1, max: 20 }), (events, saved) => {
        const budget = new RetryBudget(0.1, saved)
        let [calls, retries] = [0, 0]
        for (const isCall of events) {
          if (isCall) {
            budget.earn()
            calls++
          } else if (budget.canSpend) {
            budget.spend()
            retries++
          }
        }
        return retries <= saved + calls * 0.1 + 1e-6
      }),
    )
  })
})
