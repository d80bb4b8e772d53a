import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { BatchThrottle } from '#services/ingress/batches/batch-throttle.ts'

/** How fast lines of batches become jobs (docs/internals/design.md, Composed jobs). */

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
/** Milliseconds until a line is begun. */
async function waited(pace: BatchThrottle): Promise<number> {
  const from = performance.now()
  let at = Number.NaN
  const line = pace.line(async () => {
    at = performance.now()
  }, never)
  await vi.advanceTimersByTimeAsync(60_000)
  await line
  return Math.round(at - from)
}

it('lines wait for nothing while no calls come, however long each takes', async () => {
  const pace = new BatchThrottle()
  expect(await pace.line(taking(200), never)).toBe(200)
  expect(await waited(pace)).toBe(0)
})

it('a line that takes long beside calls is followed by a rest, which is bounded', async () => {
  const pace = new BatchThrottle()
  pace.noteCall()
  await pace.line(taking(2), never)
  expect(await waited(pace)).toBe(0)
  pace.noteCall()
  await pace.line(taking(12), never)
  expect(await waited(pace)).toBe(20)
  pace.noteCall()
  for (let nth = 0; nth < 5; nth++) void pace.line(taking(1_000), never)
  await vi.advanceTimersByTimeAsync(1_000)
  pace.noteCall()
  expect(await waited(pace)).toBeLessThanOrEqual(500)
})

it('calls of a while ago hold back no line', async () => {
  const pace = new BatchThrottle()
  pace.noteCall()
  await pace.line(taking(300), never)
  await vi.advanceTimersByTimeAsync(10_001)
  await pace.line(taking(300), never)
  expect(await waited(pace)).toBe(0)
})

it('a line that fails rests as well, and one that waits ends with its signal', async () => {
  const pace = new BatchThrottle()
  pace.noteCall()
  const failing = async () => {
    await vi.advanceTimersByTimeAsync(102)
    throw new Error('full')
  }
  await expect(pace.line(failing, never)).rejects.toThrow('full')
  const aborts = new AbortController()
  const waiting = pace.line(taking(1), aborts.signal)
  const ended = expect(waiting).rejects.toThrow('over')
  aborts.abort(new Error('over'))
  await ended
  expect(await waited(pace)).toBe(200)
})
