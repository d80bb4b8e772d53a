import { setTimeout as delay } from 'node:timers/promises'
import type { Service } from './service.ts'

/** Calls of the other project a second. */
const RATE = 20
/** What a process is told before it has warmed up says nothing of a batch beside it. */
const WARM_UP_MS = 3_000

/**
 * Makes plain calls of another project, one after the other, until `signal` aborts.
 *
 * @returns How many milliseconds each took; those left out whose service was killed or started a moment ago.
 */
export async function callBeside(service: Service, key: string, signal: AbortSignal): Promise<number[]> {
  const took: number[] = []
  while (!signal.aborted) {
    const ms = await callOnce(service, key)
    if (ms !== undefined && service.upMs > WARM_UP_MS) took.push(ms)
    await delay(1_000 / RATE, undefined, { signal }).catch(() => {})
  }
  return took
}

async function callOnce(service: Service, key: string): Promise<number | undefined> {
  const body = JSON.stringify({ model: 'echo-1', messages: [{ role: 'user', content: 'beside' }] })
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
  const startedAt = performance.now()
  try {
    const response = await fetch(new URL('/v1/chat/completions', service.url), { method: 'POST', headers, body })
    await response.text()
    return response.ok ? performance.now() - startedAt : undefined
  } catch {
    // It was killed a moment ago.
    return undefined
  }
}
