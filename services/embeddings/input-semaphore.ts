import { Slots } from '#shared/slots.ts'

/** Maximum inputs whose vectors a worker holds at once: 16 jobs of maximum size, 550 MB at 3,072 dimensions. */
const INPUTS_HELD_MAX = 16 * 2_048
/** Jobs with at most this many inputs need no permits. The worker's slots bound them. */
const SMALL_MAX = 32

/**
 * Bounds the memory of large jobs. A job's vectors are held until the job ends, and a worker runs hundreds of jobs.
 *
 * Large jobs start in order of arrival, as soon as enough permits are free. Small jobs start at once.
 */
export class InputSemaphore {
  readonly #held = new Slots(INPUTS_HELD_MAX)

  /** Waits for the permits of a job. @returns A function that releases them; call it once @throws The signal's reason */
  async enter(inputs: number, signal: AbortSignal): Promise<() => void> {
    if (inputs <= SMALL_MAX) return () => {}
    await this.#held.take(signal, inputs)
    return () => this.#held.release(inputs)
  }
}
