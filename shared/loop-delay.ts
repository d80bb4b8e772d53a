import { monitorEventLoopDelay, performance } from 'node:perf_hooks'
import { every } from './ticks.ts'

/** Precision while there is something to do: the process wakes so often for it. */
const PRECISION_MS = 10
/** How often it is looked whether there is. */
const SAMPLE_INTERVAL_MS = 1_000
/** Milliseconds of work between two looks from which on there is. */
const BUSY_MS = 50
/** Looks that find nothing to do before it is measured no more. */
const IDLE_LOOKS = 5
const NANOS = 1e9

/** What is told of the rounds of the event loop. */
export const LOOP_DELAYS = ['min', 'max', 'mean', 'stddev', 'p50', 'p90', 'p99'] as const
type Told = (typeof LOOP_DELAYS)[number]

/**
 * Measures how long the rounds of the event loop take, with a precision of 10 ms, while the process has something to do: to wake
 * a hundred times a second would be most of the work of one that has not. The longest round of a second that was not measured
 * took at most as long as the loop worked in it, which counts as the longest.
 */
export class LoopDelay {
  readonly #histogram = monitorEventLoopDelay({ resolution: PRECISION_MS })
  #before = performance.eventLoopUtilization()
  /** Looks that it is still measured for; 0: it is not. */
  #measured = 0
  /** Longest round of what is not in the histogram. */
  #longestMs = 0

  constructor() {
    every(SAMPLE_INTERVAL_MS, () => this.#look(), { keepsAlive: false })
  }

  /** What was measured since the last call, in seconds; what was not is left out. */
  take(): Readonly<Partial<Record<Told, number>>> {
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

  #look(): void {
    const before = this.#measured
    this.#measured = this.#active() >= BUSY_MS ? IDLE_LOOKS : Math.max(0, before - 1)
    if (before === 0 && this.#measured > 0) this.#histogram.enable()
    else if (before > 0 && this.#measured === 0) this.#pause()
  }

  /** Of what was measured the longest round is kept. The histogram is emptied, or it would take the pause for a round. */
  #pause(): void {
    this.#histogram.disable()
    this.#longestMs = Math.max(this.#longestMs, (1_000 * this.#histogram.max) / NANOS)
    this.#histogram.reset()
  }

  /** Milliseconds that the loop has worked since it was last asked. */
  #active(): number {
    const now = performance.eventLoopUtilization()
    const { active } = performance.eventLoopUtilization(now, this.#before)
    this.#before = now
    if (this.#measured === 0) this.#longestMs = Math.max(this.#longestMs, active)
    return active
  }
}
