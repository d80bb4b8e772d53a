/* Tests the rate at which the lines of batches become jobs (docs/internals/design.md, Composed jobs). */
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { SubmitQueue } from '#shared/capacity/capacity.ts'

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  vi.useRealTimers()
})

const never = new AbortController().signal
const taking = (ms: number) => async () => {
  await vi.advanceTimersByTimeAsync(ms)
  return ms
}
/** Returns the time in ms until a batch line starts. */
async function waited(pace: SubmitQueue): Promise<number> {
  const from = performance.now()
  let at = Number.NaN
  const line = pace.runLine(async () => {
    at = performance.now()
  }, never)
  await vi.advanceTimersByTimeAsync(60_000)
  await line
  return Math.round(at - from)
}

it('while no API calls arrive, a slow line of a batch does not delay the next line', async () => {
  const pace = new SubmitQueue()
  expect(await pace.runLine(taking(200), never)).toBe(200)
  expect(await waited(pace)).toBe(0)
})

it('while API calls arrive, a slow line of a batch delays the next line by at most 500 ms', async () => {
  const pace = new SubmitQueue()
  pace.recordCall('a')
  await pace.runLine(taking(2), never)
  expect(await waited(pace)).toBe(0)
  pace.recordCall('a')
  await pace.runLine(taking(12), never)
  expect(await waited(pace)).toBe(20)
  pace.recordCall('a')
  for (let nth = 0; nth < 5; nth++) void pace.runLine(taking(1_000), never)
  await vi.advanceTimersByTimeAsync(1_000)
  pace.recordCall('a')
  expect(await waited(pace)).toBeLessThanOrEqual(500)
})

it('a slow line of a batch delays no line if the last API call arrived more than ten seconds earlier', async () => {
  const pace = new SubmitQueue()
  pace.recordCall('a')
  await pace.runLine(taking(300), never)
  await vi.advanceTimersByTimeAsync(10_001)
  await pace.runLine(taking(300), never)
  expect(await waited(pace)).toBe(0)
})

it('while API calls arrive, a slow line of a batch delays the next line even if the slow line fails', async () => {
  const pace = new SubmitQueue()
  pace.recordCall('a')
  const failing = async () => {
    await vi.advanceTimersByTimeAsync(102)
    throw new Error('full')
  }
  await expect(pace.runLine(failing, never)).rejects.toThrow('full')
  const aborts = new AbortController()
  const waiting = pace.runLine(taking(1), aborts.signal)
  const ended = expect(waiting).rejects.toThrow('over')
  aborts.abort(new Error('over'))
  await ended
  expect(await waited(pace)).toBe(200)
})
