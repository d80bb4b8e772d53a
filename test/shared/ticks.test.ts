import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { atAlignedInterval, untilAligned } from '#shared/lib/aligned-interval.ts'

beforeEach(() => vi.useFakeTimers())
afterEach(() => vi.useRealTimers())

describe('aligned interval ticks', () => {
  it('fire at multiples of the interval, regardless of the time at which they were started', async () => {
    const at: number[] = []
    const stops = [atAlignedInterval(500, () => at.push(performance.now()))]
    await vi.advanceTimersByTimeAsync(170)
    stops.push(atAlignedInterval(1_000, () => at.push(performance.now())))
    await vi.advanceTimersByTimeAsync(3_000)
    expect(new Set(at.map((ms) => Math.round(ms) % 500))).toEqual(new Set([0]))
    expect(at.length).toBe(6 + 3)
    for (const stop of stops) stop()
    await vi.advanceTimersByTimeAsync(3_000)
    expect(at.length).toBe(6 + 3)
  })

  it('fire once per interval even if the timer fires 2 ms early', async () => {
    await vi.advanceTimersByTimeAsync(1_000 - (performance.now() % 1_000) - 2)
    expect(untilAligned(1_000)).toBe(1_002)
  })

  it('fire once after the process was suspended for several intervals', async () => {
    let count = 0
    const stop = atAlignedInterval(100, () => {
      count++
    })
    vi.advanceTimersByTime(1_000)
    const before = count
    const real = performance.now.bind(performance)
    vi.spyOn(performance, 'now').mockImplementation(() => real() + 5_000)
    await vi.advanceTimersByTimeAsync(100)
    expect(count - before).toBe(1)
    stop()
  })
})
