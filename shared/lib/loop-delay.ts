import { monitorEventLoopDelay, performance } from 'node:perf_hooks'
import { atAlignedInterval } from './aligned-interval.ts'

/** Resolution of the event-loop measurement in ms. During a measurement, a timer wakes the process at this interval. */
const PRECISION_MS = 10
const SAMPLE_INTERVAL_MS = 1_000

/** Minimum active time of the event loop, in ms per second, at which the process counts as busy. */
const BUSY_MS = 50

const IDLE_SAMPLES_MAX = 5
const NANOS = 1e9
export const LOOP_DELAYS = ['min', 'max', 'mean', 'stddev', 'p50', 'p90', 'p99'] as const

type Statistic = (typeof LOOP_DELAYS)[number]

/**
 * Measures the delay of the event loop with a resolution of 10 ms, but only while the process is busy. In an idle process, the hundred wake-ups per
 * second would be most of its work. While the measurement is off, the active time of the event loop is reported instead, which is an upper bound of
 * the delay.
 */
export class LoopDelay {
  readonly #histogram = monitorEventLoopDelay({ resolution: PRECISION_MS })
  #before = performance.eventLoopUtilization()
  #measured = 0
  #longestMs = 0

  constructor() {
    atAlignedInterval(SAMPLE_INTERVAL_MS, () => this.#check(), { keepsAlive: false })
  }

  /** Returns statistics since the last call, in seconds. A statistic that was not measured is missing. */
  take(): Readonly<Partial<Record<Statistic, number>>> {
    this.#active()
    const { count, min, max, mean, stddev } = this.#histogram
    const percentile = (percent: number) => this.#histogram.percentile(percent) / NANOS
    const measured = count > 0 && {
      ...{ min: min / NANOS, mean: mean / NANOS, stddev: stddev / NANOS },
      ...{ p50: percentile(50), p90: percentile(90), p99: percentile(99) },
    }
    const taken = { ...measured, max: Math.max(max / NANOS, this.#longestMs / 1_000) }
    this.#histogram.reset()
    this.#longestMs = 0
    return taken
  }

  #check(): void {
    const before = this.#measured
    this.#measured = this.#active() >= BUSY_MS ? IDLE_SAMPLES_MAX : Math.max(0, before - 1)
    if (before === 0 && this.#measured > 0) this.#histogram.enable()
    else if (before > 0 && this.#measured === 0) this.#pause()
  }

  /** Stores the maximum and resets the histogram. Otherwise the histogram would count the pause of the measurement as one long delay. */
  #pause(): void {
    this.#histogram.disable()
    this.#longestMs = Math.max(this.#longestMs, (1_000 * this.#histogram.max) / NANOS)
    this.#histogram.reset()
  }

  #active(): number {
    const now = performance.eventLoopUtilization()
    const { active } = performance.eventLoopUtilization(now, this.#before)
    this.#before = now
    if (this.#measured === 0) this.#longestMs = Math.max(this.#longestMs, active)
    return active
  }
}
