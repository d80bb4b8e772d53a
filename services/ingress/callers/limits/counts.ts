import { MinuteWindow } from './minute-window.ts'
import { Running } from './running.ts'

/** Maximum counters, which exceeds the number of keys with limits. At the maximum, all counters are dropped. */
const KEPT_MAX = 50_000

export class Counts {
  readonly #windows = new Map<string, MinuteWindow>()
  readonly #running = new Map<string, Running>()

  window(name: string): MinuteWindow {
    let window = this.#windows.get(name)
    if (!window) {
      if (this.#windows.size >= KEPT_MAX) this.#windows.clear()
      window = new MinuteWindow(name)
      this.#windows.set(name, window)
    }
    return window
  }

  running(name: string): Running {
    let running = this.#running.get(name)
    if (!running) {
      // Running calls stay counted: each has a reference to its counter.
      if (this.#running.size >= KEPT_MAX) this.#running.clear()
      running = new Running(name)
      this.#running.set(name, running)
    }
    return running
  }
}
