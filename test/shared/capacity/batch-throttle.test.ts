import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { SubmitQueue } from '#shared/capacity/capacity.ts'

/** Rate at which lines of batches become jobs (docs/internals/design.md, Composed jobs). */

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
/** Milliseconds until a line starts. */
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

it('the batch throttle does not delay lines of a batch file if no calls arrive, however slow a line is', async () => {
  const pace = new SubmitQueue()
  expect(await pace.runLine(taking(200), never)).toBe(200)
  expect(await waited(pace)).toBe(0)
})

it('the batch throttle pauses for a limited time after a slow line if calls arrive', async () => {
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

it('the batch throttle ignores calls that arrived more than ten seconds before a line', async () => {
  const pace = new SubmitQueue()
  pace.recordCall('a')
  await pace.runLine(taking(300), never)
  await vi.advanceTimersByTimeAsync(10_001)
  await pace.runLine(taking(300), never)
  expect(await waited(pace)).toBe(0)
})

it('the batch throttle pauses after a failed line, and ends a pause if the signal aborts', async () => {
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
