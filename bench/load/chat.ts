import type { Address } from './connection.ts'

const CALL_TIMEOUT_MS = 120_000

export interface ChatReply {
  readonly status: number
  readonly retryAfter: number
  readonly text: string
}

/** Sends one chat call through `fetch`. Use it only at rates at which the cost of `fetch` does not matter. */
export async function postChat(
  { url, key }: Address,
  model: string,
  content: string,
  fields: object = {},
  headers: Readonly<Record<string, string>> = {},
  signal: AbortSignal = AbortSignal.timeout(CALL_TIMEOUT_MS),
): Promise<ChatReply> {
  const response = await fetch(new URL('/v1/chat/completions', url), {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model, messages: [{ role: 'user', content }], ...fields }),
    signal,
  })
  const retryAfter = Number(response.headers.get('retry-after') ?? Number.NaN)
  return { status: response.status, retryAfter, text: await response.text() }
}
