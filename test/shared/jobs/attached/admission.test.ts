import fc from 'fast-check'
import { expect, it } from 'vitest'
import { Admission } from '#shared/jobs/attached/admission.ts'

it('a job waits as long as the jobs before it take at the measured rate', () => {
  const admission = new Admission()
  for (let now = 0; now <= 10_000; now += 100) admission.completed(now)
  // 101 completions in ten seconds: fifty jobs take five.
  expect(admission.estimateMs(50, 10_000)).toBeCloseTo(4_950, -2)
  expect(admission.estimateMs(0, 10_000)).toBe(0)
})

it('says nothing before there is something to measure, nor long after', () => {
  const admission = new Admission()
  for (let i = 0; i < 19; i++) admission.completed(i)
  expect(admission.estimateMs(1_000, 100)).toBe(0)
  admission.completed(20)
  expect(admission.estimateMs(1_000, 100)).toBeGreaterThan(0)
  expect(admission.estimateMs(1_000, 60_000)).toBe(0)
})

it('a pool that has stopped is estimated ever slower', () => {
  const admission = new Admission()
  for (let i = 0; i < 100; i++) admission.completed(i * 10)
  const estimates = [1_000, 5_000, 20_000].map((now) => admission.estimateMs(100, now))
  expect(estimates).toEqual([...estimates].sort((a, b) => a - b))
})

it('an estimate is finite and grows with the queue, however completions fall', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(2_000), { maxLength: 300 }), fc.integer({ min: 1, max: 10_000 }), (gaps, queued) => {
      const admission = new Admission()
      let now = 1_790_000_000_000
      for (const gap of gaps) {
        now += gap
        admission.completed(now)
      }
      const [one, two] = [admission.estimateMs(queued, now), admission.estimateMs(queued * 2, now)]
      return Number.isFinite(one) && one >= 0 && two >= one
    }),
  )
})

it('a busy ingress counts a completion in constant time', () => {
  const admission = new Admission()
  // Thirty thousand a second, for the whole window: this would take minutes if each one walked the others.
  for (let i = 0; i < 900_000; i++) admission.completed(Math.floor(i / 30))
  expect(admission.estimateMs(30_000, 30_000)).toBeCloseTo(1_000, -2)
})
