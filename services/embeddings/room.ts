/** Inputs whose vectors a worker holds at once: those of 16 of the largest jobs, 550 MB at 3,072 numbers each. */
const INPUTS_HELD_MAX = 16 * 2_048
/** Jobs of so many inputs need not wait: the slots of the worker bound them. */
const SMALL_MAX = 32

/**
 * Bounds what a worker holds of large jobs: a vector is kept until its job is done, and a worker runs hundreds of jobs.
 *
 * Large jobs begin in the order in which they came, when those before them leave room; small ones at once.
 */
export class Room {
  readonly #waiting = new Set<{ readonly inputs: number; readonly enter: () => void }>()
  #free = INPUTS_HELD_MAX

  /** Resolves when there is room. @returns What leaves it again, to be called once @throws The signal's reason */
  async enter(inputs: number, signal: AbortSignal): Promise<() => void> {
    if (inputs <= SMALL_MAX) return () => {}
    if (this.#waiting.size > 0 || inputs > this.#free) await this.#wait(inputs, signal)
    else this.#free -= inputs
    return () => {
      this.#free += inputs
      this.#letIn()
    }
  }

  #wait(inputs: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted()
      const onAbort = () => {
        this.#waiting.delete(guest)
        reject(signal.reason)
        // Whoever came after a larger one may fit.
        this.#letIn()
      }
      const guest = {
        inputs,
        enter: () => {
          signal.removeEventListener('abort', onAbort)
          resolve()
        },
      }
      signal.addEventListener('abort', onAbort, { once: true })
      this.#waiting.add(guest)
    })
  }

  #letIn(): void {
    for (const guest of this.#waiting) {
      if (guest.inputs > this.#free) return
      this.#free -= guest.inputs
      this.#waiting.delete(guest)
      guest.enter()
    }
  }
}
