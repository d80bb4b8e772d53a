import fc from 'fast-check'
import { expect, it } from 'vitest'
import { WaitEstimate } from '#shared/capacity/wait-estimate.ts'

it('the wait estimate is the number of jobs ahead divided by the measured completion rate', () => {
  const admission = new WaitEstimate()
  for (let now = 0; now <= 10_000; now += 100) admission.completed(now)
  // Ten jobs complete per second: 101 jobs completed in ten seconds. Fifty waiting jobs therefore take five seconds.
  expect(admission.estimateMs(50, 10_000)).toBeCloseTo(4_950, -2)
  expect(admission.estimateMs(0, 10_000)).toBe(0)
})

it('the wait estimate is 0 before 20 completions, and again if no job has completed for 60 s', () => {
  const admission = new WaitEstimate()
  for (let i = 0; i < 19; i++) admission.completed(i)
  expect(admission.estimateMs(1_000, 100)).toBe(0)
  admission.completed(20)
  expect(admission.estimateMs(1_000, 100)).toBeGreaterThan(0)
  expect(admission.estimateMs(1_000, 60_000)).toBe(0)
})

it('the wait estimate grows while no job completes', () => {
  const admission = new WaitEstimate()
  for (let i = 0; i < 100; i++) admission.completed(i * 10)
  const estimates = [1_000, 5_000, 20_000].map((now) => admission.estimateMs(100, now))
  expect(estimates).toEqual([...estimates].sort((a, b) => a - b))
})

it('the wait estimate is finite and grows with the queue for any sequence of completions', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(2_000), { maxLength: 300 }), fc.integer({ min: 1, max: 10_000 }), (gaps, queued) => {
      const admission = new WaitEstimate()
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

it('the wait estimate counts a completion in constant time at 30,000 completions per second', () => {
  const admission = new WaitEstimate()
  // Thirty thousand jobs complete per second over the whole window. If the time of the algorithm were quadratic, then this loop would take
  // minutes.
  for (let i = 0; i < 900_000; i++) admission.completed(Math.floor(i / 30))
  expect(admission.estimateMs(30_000, 30_000)).toBeCloseTo(1_000, -2)
})

const PLACES = 2
const TAKES_MS = 5_000

/** Runs `count` jobs one after the other, none of which waits. Returns the time of the last end. */
function ran(admission: WaitEstimate, count: number, takesMs: number, fromMs = 0): number {
  let now = fromMs
  for (let i = 0; i < count; i++) {
    const job = {}
    admission.entered(job, now)
    admission.started(job, now)
    now += takesMs
    admission.completed(now)
    admission.left(job, now)
  }
  return now
}

it('the wait estimate after six completions is jobs ahead × mean duration / slots', () => {
  const admission = new WaitEstimate()
  const now = ran(admission, 6, TAKES_MS)
  expect(admission.estimateMs(10, now, PLACES)).toBe((10 * TAKES_MS) / PLACES)
  // The estimate stays the same after an hour without jobs.
  expect(admission.estimateMs(10, now + 3_600_000, PLACES)).toBe((10 * TAKES_MS) / PLACES)
})

it('the wait estimate uses all slots of the pool, even if only few calls run concurrently', () => {
  const admission = new WaitEstimate()
  const now = ran(admission, 25, 1_000)
  expect(admission.estimateMs(50, now, 100)).toBe(500)
})

it('the wait estimate before any completion uses a tenth of the age of the oldest running job', () => {
  const admission = new WaitEstimate()
  for (const startedAtMs of [0, 1_000]) admission.started({}, startedAtMs)
  expect(admission.estimateMs(10, 4_000, PLACES)).toBe(2_000)
  expect(admission.estimateMs(10, 8_000, PLACES)).toBe(4_000)
  expect(new WaitEstimate().estimateMs(1_000, 8_000, PLACES)).toBe(0)
})

it('the wait estimate uses only a tenth of the duration of a job that may have loaded the model, until other jobs are measured', () => {
  const admission = new WaitEstimate()
  let now = ran(admission, 1, 60_000)
  expect(admission.estimateMs(10, now, PLACES)).toBe(30_000)
  expect(admission.everyMs(now, PLACES), 'expected interval after a job that may have loaded the model').toBeUndefined()
  now = ran(admission, 5, TAKES_MS, now)
  expect(admission.estimateMs(10, now, PLACES)).toBe((10 * TAKES_MS) / PLACES)
  // After five minutes without a job, the next job may have to load the model again, so its long duration does not count.
  now = ran(admission, 1, 60_000, now + 301_000)
  expect(admission.estimateMs(10, now, PLACES)).toBe((10 * TAKES_MS) / PLACES)
})

it('the wait estimate grows to its full value over five measured jobs, although the expected interval is constant', () => {
  const admission = new WaitEstimate()
  let now = ran(admission, 1, TAKES_MS)
  for (const part of [1, 2, 3, 4, 5, 5]) {
    now = ran(admission, 1, TAKES_MS, now)
    expect(admission.estimateMs(10, now, PLACES)).toBeCloseTo((10 * TAKES_MS * part) / 5 / PLACES)
    expect(admission.everyMs(now, PLACES)).toBe(TAKES_MS / PLACES)
  }
})

it('the duration of a job excludes the preparation of its model', () => {
  const admission = new WaitEstimate()
  const job = {}
  admission.started(job, 0)
  admission.preparing(job)
  expect(admission.estimateMs(10, 60_000, PLACES)).toBe(0)
  admission.prepared(job, 60_000)
  admission.left(job, 62_000)
  expect(admission.estimateMs(10, 62_000, PLACES)).toBe(1_000)
})

it('the duration of a job excludes its wait at a worker for a permit', () => {
  const admission = new WaitEstimate()
  let now = ran(admission, 1, 1)
  const jobs = Array.from({ length: 12 }, () => ({}))
  for (const job of jobs) admission.started(job, now, PLACES)
  for (const [at, job] of jobs.entries()) {
    if (at % PLACES === 0) now += TAKES_MS
    admission.completed(now)
    admission.left(job, now)
  }
  expect(admission.estimateMs(10, now, PLACES)).toBe((10 * TAKES_MS) / PLACES)
})

it('the wait estimate grows with the age of hanging jobs, even if earlier jobs were fast', () => {
  const admission = new WaitEstimate()
  const now = ran(admission, 10, 1_000)
  for (let i = 0; i < PLACES; i++) admission.started({}, now)
  const estimates = [1_000, 30_000, 300_000].map((ms) => admission.estimateMs(10, now + ms, PLACES))
  expect(estimates[0]).toBe(5_000)
  expect(estimates[1]).toBeGreaterThan(20_000)
  expect(estimates[2]).toBeGreaterThan(200_000)
})

it('the wait estimate excludes slots that calls of other ingresses occupy', () => {
  const admission = new WaitEstimate()
  const now = ran(admission, 6, TAKES_MS)
  admission.started({}, now)
  admission.entered({}, now)
  expect(admission.estimateMs(10, now + 1_000, PLACES)).toBe(25_000)
  expect(admission.estimateMs(10, now + 3 * TAKES_MS, PLACES)).toBeGreaterThanOrEqual(50_000)
})

it('the wait estimate does not count requeued attempts as durations', () => {
  const admission = new WaitEstimate()
  const now = ran(admission, 6, TAKES_MS)
  const job = {}
  for (let i = 0; i < 40; i++) {
    admission.started(job, now)
    admission.entered(job, now)
  }
  expect(admission.estimateMs(10, now, PLACES)).toBe((10 * TAKES_MS) / PLACES)
})

const byName = (jobs: readonly string[]) => jobs.toSorted().map((job, before): [string, number] => [job, before])

it('the position of a waiting job is after all jobs that wait at a worker for a permit', () => {
  const waits = new WaitEstimate<string>(byName)
  for (const job of ['r1', 'r2', 'r3']) {
    waits.entered(job, 0)
    waits.started(job, 0, 2)
  }
  waits.entered('b', 0)
  waits.entered('a', 0)
  const positions = () => ['r1', 'r2', 'r3', 'a', 'b'].map((job) => waits.positionOf(job, 0))
  expect(positions()).toEqual([undefined, undefined, 1, 2, 3])
  waits.left('r1', 1)
  expect(positions()).toEqual([undefined, undefined, undefined, 1, 2])
})

it('each job of a queue with 5,000 jobs has its own position, and the queue is sorted once per second', () => {
  const sorts: number[] = []
  const waits = new WaitEstimate<number>((jobs) => {
    sorts.push(jobs.length)
    return jobs.map((job, before) => [job, before])
  })
  const jobs = Array.from({ length: 5_000 }, (_, job) => job)
  for (const job of jobs) waits.entered(job, 0)
  expect(jobs.map((job) => waits.positionOf(job, 0))).toEqual(jobs.map((job) => job + 1))
  for (const job of jobs.slice(0, 1_000)) waits.started(job, 500)
  expect(waits.positionOf(4_999, 900), 'position before the queue is sorted again').toBe(4_000)
  expect(jobs.slice(1_000).map((job) => waits.positionOf(job, 1_000))).toEqual(
    jobs.slice(0, 4_000).map((job) => job + 1),
  )
  expect(sorts).toEqual([5_000, 4_000])
})
