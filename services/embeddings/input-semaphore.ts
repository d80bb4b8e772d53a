import { Slots } from '#shared/slots.ts'

/** Inputs whose vectors a worker holds at once: those of 16 of the largest jobs, 550 MB at 3,072 numbers each. */
const INPUTS_HELD_MAX = 16 * 2_048
/** Jobs of so many inputs need not wait: the slots of the worker bound them. */
const SMALL_MAX = 32

/**
 * Bounds what a worker holds of large jobs: a vector is kept until its job is done, and a worker runs hundreds of jobs.
 *
 * Large jobs begin in the order in which they came, when those before them leave room; small ones at once.
 */
export class InputSemaphore {
  readonly #held = new Slots(INPUTS_HELD_MAX)

  /** Resolves when there is room. @returns What leaves it again, to be called once @throws The signal's reason */
  async enter(inputs: number, signal: AbortSignal): Promise<() => void> {
    if (inputs <= SMALL_MAX) return () => {}
    await this.#held.take(signal, inputs)
    return () => this.#held.release(inputs)
  }
}
