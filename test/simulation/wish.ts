import type { Random } from '../chaos/load/random.ts'
import type { Script } from './work.ts'

/** A job as a client wants it. */
export interface Wish {
  readonly script: Script
  readonly isStream: boolean
  readonly deadlineInMs: number
  readonly startInMs: number | undefined
  readonly runInMs: number | undefined
  readonly isLow: boolean
  readonly hasKey: boolean
}

/** Any job, now and then a bad one. @param ref Unique in the simulation */
export function wishOf(ref: string, random: Random): Wish {
  const isPoison = random.chance(0.06)
  const failures = random.chance(0.25) ? random.between(1, 4) : 0
  const isEndless = random.chance(0.05)
  return {
    script: {
      ref,
      tokens: random.between(isPoison || failures > 0 ? 2 : 0, 10),
      tokenMs: isEndless ? 200 : random.pick([0, 60, 400, 1_500, 1_500]),
      failures,
      isRetryable: random.chance(0.85),
      isPoison,
      isEndless,
      padding: isEndless && random.chance(0.3) ? 30_000 : 0,
    },
    isStream: random.chance(0.6),
    deadlineInMs: !isEndless && random.chance(0.5) ? 120_000 : random.between(8_000, 40_000),
    startInMs: random.chance(0.15) ? random.between(200, 6_000) : undefined,
    runInMs: random.chance(0.15) ? random.between(0, 8_000) : undefined,
    isLow: random.chance(0.25),
    hasKey: random.chance(0.7),
  }
}
