import { hearClock } from './clock.ts'
import { apiKey, isOperator, know, ownKey, signIn, signOut } from './session.ts'
import type { OwnKey } from './types.ts'

/** An answer that is a failure, in the words of the service. */
export class ApiFailure extends Error {
  readonly status: number

  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

/** What a request may say beside its path. */
export interface Asking {
  readonly method?: 'GET' | 'POST' | 'DELETE'
  /** JSON, or a form. */
  readonly body?: unknown
  readonly signal?: AbortSignal
  readonly headers?: Readonly<Record<string, string>>
  /** Default: that of the session. */
  readonly key?: string
  /** Statuses that are answers as well, beside those of success. */
  readonly expects?: readonly number[]
}

/** How long a page waits for what it reads: it asks again by itself, but not before it has an answer. */
const PATIENCE_MS = 15_000
/** How soon what a key may see is asked again. */
const AGAIN_MS = 2_000

/** Asks the service, as the key of this tab. @throws ApiFailure for everything that is no success; TypeError without a connection */
export async function ask(
  path: string,
  { method = 'GET', body, signal, headers, key, expects = [] }: Asking = {},
): Promise<Response> {
  const isForm = body instanceof FormData
  const askedAtMs = Date.now()
  const response = await fetch(path, {
    method,
    headers: {
      authorization: `Bearer ${key ?? apiKey.value}`,
      ...(body !== undefined && !isForm && { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body !== undefined && { body: isForm ? body : JSON.stringify(body) }),
    ...(signal && { signal }),
  })
  hearClock(response.headers.get('date'), askedAtMs)
  if (response.ok || expects.includes(response.status)) return response
  const failure = await failureOf(response)
  if (failure.status === 401 && key === undefined) signOut(failure.message)
  throw failure
}

/** The same, for an answer in JSON. @throws DOMException `TimeoutError` also where what is read does not begin to come within 15 s */
export async function askJson<T>(path: string, asking: Asking = {}): Promise<T> {
  const { method = 'GET', signal } = asking
  if (method !== 'GET') return (await (await ask(path, asking)).json()) as T
  const patience = new AbortController()
  const timer = setTimeout(() => patience.abort(new DOMException('no answer', 'TimeoutError')), PATIENCE_MS)
  const either = signal ? AbortSignal.any([signal, patience.signal]) : patience.signal
  const response = await ask(path, { ...asking, signal: either }).finally(() => clearTimeout(timer))
  return (await response.json()) as T
}

/** Tries a key. @throws ApiFailure where it is not valid */
export async function trySignIn(key: string): Promise<void> {
  signIn(key, await askJson<OwnKey>('/v1/key', { key }))
}

/** Finds out what a key that was kept may see; until the service has said so it is one that may see little. */
export async function learnRights(): Promise<void> {
  while (!ownKey.value && apiKey.value) {
    const isKnown = await askJson<OwnKey>('/v1/key').then(
      (own) => {
        know(own)
        return true
      },
      () => false,
    )
    if (isKnown || !apiKey.value) return
    isOperator.value = false
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS))
  }
}

/** What went wrong, as a sentence. */
export function wordsOf(error: unknown): string {
  if (error instanceof ApiFailure) return error.message
  const isSilent = error instanceof TypeError || (error instanceof DOMException && error.name === 'TimeoutError')
  if (isSilent) return 'The service does not answer. It may be restarting.'
  if (error instanceof SyntaxError)
    return 'The answer is not one of the service: what stands before it may have made it.'
  return String(error)
}

async function failureOf(response: Response): Promise<ApiFailure> {
  const text = await response.text()
  try {
    const { error } = JSON.parse(text) as { error: { message: string } }
    return new ApiFailure(response.status, error.message)
  } catch {
    return new ApiFailure(response.status, `The service answered ${response.status}.`)
  }
}
