import { syncClock } from './clock.ts'
import { apiKey, isOperator, ownKey, setOwnKey, signIn, signOut } from './session.ts'
import type { OwnKey } from './types.ts'

export class ApiFailure extends Error {
  readonly status: number

  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

export interface RequestOptions {
  readonly method?: 'GET' | 'POST' | 'DELETE'
  /** Sent as JSON, or as a form if it is FormData. */
  readonly body?: unknown
  readonly signal?: AbortSignal
  readonly headers?: Readonly<Record<string, string>>
  /** Default: the key of the session. */
  readonly key?: string
  /** Error statuses that are returned to the caller as a response instead of an error. */
  readonly expects?: readonly number[]
}

/** Timeout of a GET. Limited, because pages poll, and the next poll waits for the previous response. */
const READ_TIMEOUT_MS = 15_000
const RETRY_DELAY_MS = 2_000

/**
 * Sends a request with the key of this tab. If the service rejects this key with 401, then the tab is signed out.
 *
 * @throws ApiFailure for an error status; TypeError without a connection
 */
export async function fetchApi(
  path: string,
  { method = 'GET', body, signal, headers, key, expects = [] }: RequestOptions = {},
): Promise<Response> {
  const isForm = body instanceof FormData
  const sentAtMs = Date.now()
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
  syncClock(response.headers.get('date'), sentAtMs)
  if (response.ok || expects.includes(response.status)) return response
  const failure = await failureOf(response)
  if (failure.status === 401 && key === undefined) signOut(failure.message)
  throw failure
}

/** Sends a request and parses the JSON response. @throws DOMException `TimeoutError` if a GET gets no response within 15 s */
export async function fetchJson<T>(path: string, options: RequestOptions = {}): Promise<T> {
  const { method = 'GET', signal } = options
  if (method !== 'GET') return (await (await fetchApi(path, options)).json()) as T
  const timeout = new AbortController()
  const timer = setTimeout(() => timeout.abort(new DOMException('no response', 'TimeoutError')), READ_TIMEOUT_MS)
  const either = signal ? AbortSignal.any([signal, timeout.signal]) : timeout.signal
  const response = await fetchApi(path, { ...options, signal: either }).finally(() => clearTimeout(timer))
  return (await response.json()) as T
}

export async function trySignIn(key: string): Promise<void> {
  signIn(key, await fetchJson<OwnKey>('/v1/key', { key }))
}

/**
 * Loads the permissions of a key restored from session storage. Until the service responds, the key is treated as one without the `admin`
 * scope.
 */
export async function loadOwnKey(): Promise<void> {
  while (!ownKey.value && apiKey.value) {
    const isLoaded = await fetchJson<OwnKey>('/v1/key').then(
      (own) => {
        setOwnKey(own)
        return true
      },
      () => false,
    )
    if (isLoaded || !apiKey.value) return
    isOperator.value = false
    await new Promise((resolve) => setTimeout(resolve, RETRY_DELAY_MS))
  }
}

/** The text that the page shows for an error. */
export function messageOf(error: unknown): string {
  if (error instanceof ApiFailure) return error.message
  const isUnreachable = error instanceof TypeError || (error instanceof DOMException && error.name === 'TimeoutError')
  if (isUnreachable) return 'The service is not responding; it may be restarting.'
  if (error instanceof SyntaxError) return 'Unexpected response; a proxy may have intercepted the request.'
  return String(error)
}

async function failureOf(response: Response): Promise<ApiFailure> {
  const text = await response.text()
  try {
    const { error } = JSON.parse(text) as { error: { message: string } }
    return new ApiFailure(response.status, error.message)
  } catch {
    return new ApiFailure(response.status, `The service returned HTTP ${response.status}.`)
  }
}
