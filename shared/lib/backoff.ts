/** Exponential backoff with a random delay between half of the ceiling and the ceiling ("equal jitter"). */
export interface Backoff {
  readonly baseMs: number
  readonly maxMs: number
}

/**
 * Returns the delay in ms after a failed try.
 *
 * @param tries Number of tries so far, at least 1
 * @param random Random number in [0, 1), which tests can fix
 */
export function backoffMs(tries: number, backoff: Backoff, random: number): number {
  const ceiling = Math.min(backoff.maxMs, backoff.baseMs * 2 ** (tries - 1))
  return Math.round(ceiling / 2 + (ceiling / 2) * random)
}
