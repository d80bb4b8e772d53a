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
    return { value: await inTime(backend, words, clock.leftMs * TIME_SHARE, AbortSignal.any([stepSignal, signal])) }
  })
  return weighed ?? undefined
}

async function inTime(backend: SearchBackend, words: readonly string[], leftMs: number, signal: AbortSignal) {
  const timeout = AbortSignal.timeout(Math.ceil(Math.min(WAIT_MS, leftMs)))
  try {
    return (await backend.weigh?.(words, AbortSignal.any([signal, timeout]))) ?? null
  } catch (error) {
    if (signal.aborted || !timeout.aborted) throw error
    return null
  }
}
