import { MinuteWindow } from './minute-window.ts'
import { Running } from './running.ts'

/** Counts kept at most before those are let go of that count nothing: more than there are keys with limits. */
const KEPT_MAX = 50_000

/** The counts of one ingress, by the name that the fleet knows them by. */
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
      // A call that runs holds on to its own count.
      if (this.#running.size >= KEPT_MAX) this.#running.clear()
      running = new Running(name)
      this.#running.set(name, running)
    }
    return running
  }
}
