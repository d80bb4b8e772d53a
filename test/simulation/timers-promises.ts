/** Replacement of `node:timers/promises`, whose timers cannot be replaced from outside: it delegates to the global timers. */

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
