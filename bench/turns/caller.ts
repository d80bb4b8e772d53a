import { setTimeout as sleep } from 'node:timers/promises'

const CALL_MS = 120_000

/** Sends one call of `echo-1` and reads its answer. @returns Its status. @throws Error when no answer comes */
export async function post(
  url: URL,
  key: string,
  content: string,
  headers: Record<string, string> = {},
): Promise<number> {
  const answer = await fetch(new URL('/v1/chat/completions', url), {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model: 'echo-1', messages: [{ role: 'user', content }] }),
    signal: AbortSignal.timeout(CALL_MS),
  })
  await answer.arrayBuffer()
  return answer.status
}

/** What a caller saw of its calls: how long each took, in milliseconds, and how many were refused. */
export interface Seen {
  readonly ms: number[]
  refused: number
}

/**
 * Calls at a pace, whether or not those before were answered, until a time; resolves when all are.
 *
 * @param send One call. @returns Its status
 */
export async function callAt(
  everyMs: number,
  untilMs: number,
  send: (index: number) => Promise<number>,
): Promise<Seen> {
  const seen: Seen = { ms: [], refused: 0 }
  const calls: Promise<void>[] = []
  for (let i = 0; performance.now() < untilMs; i++) {
    calls.push(note(seen, send(i)))
    await sleep(everyMs)
  }
  await Promise.all(calls)
  return seen
}

async function note(seen: Seen, call: Promise<number>): Promise<void> {
  const startedAt = performance.now()
  const status = await call.catch(() => 0)
  if (status === 200) seen.ms.push(performance.now() - startedAt)
  else seen.refused++
}
