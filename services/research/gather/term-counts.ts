import type { Clock } from '#services/research/budget/clock.ts'
import type { SearchBackend, TermCounts } from '#shared/search/search.ts'

/** Maximum time in ms for the word counts, which may also take at most half of the run's remaining time. */
const COUNT_TIMEOUT_MS = 10_000
const TIME_SHARE = 0.5

/**
 * Counts how many passages of the corpus contain each word. The result, including a timeout, is a recorded
 * step, so a resumed run continues with the same counts.
 *
 * @returns The counts. Undefined if there are several backends, or if the backend cannot count its whole corpus in time
 * @throws ServiceError of the backend, or the signal's reason
 */
export async function fetchTermCounts(
  backends: readonly SearchBackend[],
  words: readonly string[],
  clock: Clock,
  signal: AbortSignal,
): Promise<TermCounts | undefined> {
  const [backend] = backends
  if (backends.length !== 1 || !backend?.countTerms) return undefined
  const weighed = await clock.composition.step('weigh', { backend: backend.name, words }, async (stepSignal) => {
    const signals = { hard: AbortSignal.any([stepSignal, signal]), soft: clock.cancelled }
    return { value: await countInTime(backend, words, clock.remainingMs * TIME_SHARE, signals) }
  })
  return weighed ?? undefined
}

/**
 * @param signals Two abort signals. If `soft` aborts, then the function returns null, as after a timeout. If `hard` aborts, then the function throws.
 */
async function countInTime(
  backend: SearchBackend,
  words: readonly string[],
  leftMs: number,
  { hard, soft }: { readonly hard: AbortSignal; readonly soft: AbortSignal },
) {
  const over = AbortSignal.any([AbortSignal.timeout(Math.ceil(Math.min(COUNT_TIMEOUT_MS, leftMs))), soft])
  try {
    return (await backend.countTerms?.(words, AbortSignal.any([hard, over]))) ?? null
  } catch (error) {
    if (hard.aborted || !over.aborted) throw error
    return null
  }
}
