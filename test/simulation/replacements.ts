/**
 * Replacements of functions that would make a simulation depend on real time or real randomness. The file imports no product code, so
 * that a mock is complete before product code imports the mocked module.
 */
import { openRandom, type Random } from '../chaos/load/random.ts'

let ids: Random = openRandom(0)

/** Sets the seed of the ids of the next simulation. */
export function seedIds(seed: number): void {
  ids = openRandom(seed)
}

/** Replaces `newId`. The order of jobs depends on their ids, so random ids would make runs with equal seeds differ. */
export function seededId(prefix: string, length = 24): string {
  let id = prefix
  for (let i = 0; i < length; i++) id += ids.between(0, 35).toString(36)
  return id
}

/**
 * Replaces `yieldToEventLoop`. The original has one queue for the whole program. If a simulated process died while it served the queue, then all
 * other processes would wait forever.
 */
export function yieldToEventLoop(): Promise<void> {
  return new Promise((resolve) => void setImmediate(resolve))
}

/**
 * Replaces `setTimeout` of `node:timers/promises` by one that uses the global timers, which the virtual clock controls. The original cannot be
 * controlled.
 */
export function setTimeout<T>(ms?: number, value?: T, options: { signal?: AbortSignal } = {}): Promise<T> {
  const { signal } = options
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const onAbort = () => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = globalThis.setTimeout(() => {
      signal?.removeEventListener('abort', onAbort)
      resolve(value as T)
    }, ms)
    signal?.addEventListener('abort', onAbort, { once: true })
  })
}
