import type { Clock } from '#services/research/clock.ts'
import type { IndexProgress, SearchBackend } from '#shared/search/search.ts'

/** Time between two looks at how far an index is, and the part of the run's time that is waited in all. */
const LOOK_MS = 3_000
const TIME_SHARE = 0.4

/**
 * Waits for indexes that are being made, as after the first start with a large folder, and says how far they are. Each look is a step:
 * a run that is taken up again says the same.
 *
 * @returns How far those are that are searched as they are, since the run has no more time for them
 * @throws The signal's reason
 */
export async function* waitForIndexes(
  backends: readonly SearchBackend[],
  clock: Clock,
  signal: AbortSignal,
): AsyncGenerator<IndexProgress, IndexProgress | undefined> {
  const looks = Math.max(1, Math.floor((clock.wholeMs * TIME_SHARE) / LOOK_MS))
  let last: IndexProgress | undefined
  for (const backend of backends.filter((each) => each.indexed)) {
    for (let at = 0; at < looks; at++) {
      const waitMs = Math.min(LOOK_MS, clock.leftMs * TIME_SHARE)
      last = await lookAt(backend, at, clock, waitMs, signal)
      if (!last) break
      yield last
    }
  }
  return last
}

async function lookAt(
  backend: SearchBackend,
  at: number,
  { composition }: Clock,
  waitMs: number,
  signal: AbortSignal,
): Promise<IndexProgress | undefined> {
  const progress = await composition.step('index', { backend: backend.name, at }, async (stepSignal) => {
    return { value: (await backend.indexed?.(waitMs, AbortSignal.any([stepSignal, signal]))) ?? null }
  })
  return progress ?? undefined
}
