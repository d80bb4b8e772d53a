import type { Clock } from '#services/research/budget/clock.ts'
import type { IndexProgress, SearchBackend } from '#shared/search/search.ts'

/** Maximum duration of one poll in ms, and maximum number of polls per index. The polls of an index use at most 40 % of the run's time. */
const POLL_INTERVAL_MS = 3_000
const POLLS_MAX = 2
const TIME_SHARE = 0.4

/**
 * Waits a few seconds for indexes that are incomplete, such as after the first start with a large folder, and yields their progress. Each wait is a
 * recorded step, so that a resumed run yields the same events.
 *
 * @returns Progress of an index that is still incomplete. Undefined if all indexes are complete
 * @throws The signal's reason
 */
export async function* waitForIndexes(
  backends: readonly SearchBackend[],
  clock: Clock,
  signal: AbortSignal,
): AsyncGenerator<IndexProgress, IndexProgress | undefined> {
  const looks = Math.min(POLLS_MAX, Math.max(1, Math.floor((clock.totalMs * TIME_SHARE) / POLL_INTERVAL_MS)))
  let last: IndexProgress | undefined
  for (const backend of backends.filter((each) => each.indexed)) {
    for (let at = 0; at < looks; at++) {
      const waitMs = Math.min(POLL_INTERVAL_MS, clock.remainingMs * TIME_SHARE)
      last = await pollIndex(backend, at, clock, waitMs, signal)
      if (!last) break
      yield last
    }
  }
  return last
}

async function pollIndex(
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
