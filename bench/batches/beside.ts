/**
 * Plain calls of another project, one after the other.
 *
 * @param where The service, which may be another one the next time.
 * @returns Makes one and gives how many milliseconds it took; undefined where nobody answered.
 */
export function callsOf(where: () => URL | undefined, key: string): () => Promise<number | undefined> {
  const body = JSON.stringify({ model: 'echo-1', messages: [{ role: 'user', content: 'beside' }] })
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
  return async () => {
    const startedAt = performance.now()
    try {
      const response = await fetch(new URL('/v1/chat/completions', where()), { method: 'POST', headers, body })
      await response.text()
      return response.ok ? performance.now() - startedAt : undefined
    } catch {
      // It was killed a moment ago.
      return undefined
    }
  }
}

/** A quantile of some numbers, by rank. */
export function quantile(numbers: readonly number[], share: number): number {
  const sorted = numbers.toSorted((a, b) => a - b)
  return Math.round((sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0) * 10) / 10
}
