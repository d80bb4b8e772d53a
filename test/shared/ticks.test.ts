import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { atAlignedInterval, untilAligned } from '#shared/aligned-interval.ts'

beforeEach(() => vi.useFakeTimers())
afterEach(() => vi.useRealTimers())

describe('ticks', () => {
  it('are aligned, whenever they were requested', async () => {
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

  it('are never doubled by a timer that fires a little early', async () => {
    await vi.advanceTimersByTimeAsync(1_000 - (performance.now() % 1_000) - 2)
    expect(untilAligned(1_000)).toBe(1_002)
  })

  it('fire once after a pause of the process', async () => {
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
