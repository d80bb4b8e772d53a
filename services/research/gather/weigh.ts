import type { Clock } from '#services/research/clock.ts'
import type { SearchBackend, TermWeights } from '#shared/search/search.ts'

/** Longest time to learn how common words are, and its share of the time that is left. */
const WAIT_MS = 10_000
const TIME_SHARE = 0.5

/**
 * How common words are, where one backend knows the whole corpus; undefined elsewhere, and where it cannot say in time, such as
 * while it is still reading its folder. That it could not is remembered as a step, like any answer.
 *
 * @throws ServiceError Of the backend; the signal's reason
 */
export async function weighWords(
  backends: readonly SearchBackend[],
  words: readonly string[],
  clock: Clock,
  signal: AbortSignal,
): Promise<TermWeights | undefined> {
  const [backend] = backends
  if (backends.length !== 1 || !backend?.weigh) return undefined
  const weighed = await clock.composition.step('weigh', { backend: backend.name, words }, async (stepSignal) => {
    const signals = { hard: AbortSignal.any([stepSignal, signal]), soft: clock.cancelled }
    return { value: await inTime(backend, words, clock.leftMs * TIME_SHARE, signals) }
  })
  return weighed ?? undefined
}

/** @param signals `soft` ends it like its time, `hard` ends the run. */
async function inTime(
  backend: SearchBackend,
  words: readonly string[],
  leftMs: number,
  { hard, soft }: { readonly hard: AbortSignal; readonly soft: AbortSignal },
) {
  const over = AbortSignal.any([AbortSignal.timeout(Math.ceil(Math.min(WAIT_MS, leftMs))), soft])
  try {
    return (await backend.weigh?.(words, AbortSignal.any([hard, over]))) ?? null
  } catch (error) {
    if (hard.aborted || !over.aborted) throw error
    return null
  }
}
