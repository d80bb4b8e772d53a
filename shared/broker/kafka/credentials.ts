import type { KafkaConfig } from '#shared/config/config.ts'
import type { KafkaOptions } from './options.ts'

/* This file converts the TLS and SASL settings to the options that both Kafka clients take, and requests OAuth tokens. */

const TOKEN_TIMEOUT_MS = 10_000
/** Fraction of a token's lifetime after which a new token is requested. Otherwise a connection could start with a token that expires soon. */
const USED_SHARE = 0.8
/** After a failed token request, the old token is used for this time in ms, and no new request is made. */
const RETRY_DELAY_MS = 10_000
/** Lifetime of a token whose response states none (RFC 6749 section 5.1 only recommends `expires_in`). */
const DEFAULT_LIFETIME_S = 60
const ANSWER_CHARS_MAX = 64 * 1024

const TOKEN_REFUSED = 'KAFKA_TOKEN_REFUSED'
/** Error code of a temporary failure, after which connections are retried. After {@link TOKEN_REFUSED}, connections are not retried. */
export const TOKEN_UNAVAILABLE = 'KAFKA_TOKEN_UNAVAILABLE'

/** A failure of the token endpoint. If the start of the process fails, then the error names this endpoint instead of the Kafka broker. */
class KafkaTokenError extends Error {
  readonly code: typeof TOKEN_REFUSED | typeof TOKEN_UNAVAILABLE

  constructor(code: KafkaTokenError['code'], message: string) {
    super(message)
    this.code = code
  }
}

export function connectionOf({ tls, sasl }: KafkaConfig): Pick<KafkaOptions, 'tls' | 'sasl'> {
  return { ...(tls && { tls }), ...(sasl && { sasl: saslOf(sasl) }) }
}

function saslOf(sasl: NonNullable<KafkaConfig['sasl']>): NonNullable<KafkaOptions['sasl']> {
  const { mechanism } = sasl
  if (mechanism !== 'OAUTHBEARER') return { mechanism, username: sasl.username, password: sasl.password }
  return { mechanism, token: tokenProvider(sasl) }
}

/**
 * Requests tokens with the client credentials grant (RFC 6749 section 4.4). All connections share one token until most of its lifetime
 * has passed. Concurrent callers share one request. If the endpoint gives no new token, then the old token is used until it expires.
 *
 * @returns A function that rejects with {@link KafkaTokenError}
 */
export function tokenProvider(client: {
  readonly username: string
  readonly password: string
  readonly tokenUrl: string
  readonly scope: string | undefined
}): () => Promise<string> {
  let token: string | undefined
  let refreshAtMs = 0
  let expiresAtMs = 0
  let request: Promise<string> | undefined
  const refresh = async () => {
    const startedMs = performance.now()
    try {
      const { access_token, expires_in = DEFAULT_LIFETIME_S } = await requestToken(client)
      token = access_token
      refreshAtMs = startedMs + expires_in * 1_000 * USED_SHARE
      expiresAtMs = startedMs + expires_in * 1_000
      return access_token
    } catch (error) {
      const nowMs = performance.now()
      if (token === undefined || nowMs >= expiresAtMs) throw error
      refreshAtMs = Math.min(expiresAtMs, nowMs + RETRY_DELAY_MS)
      return token
    } finally {
      request = undefined
    }
  }
  return async () => {
    if (token !== undefined && performance.now() < refreshAtMs) return token
    request ??= refresh()
    return await request
  }
}

interface TokenAnswer {
  readonly access_token: string
  readonly expires_in?: number
}

async function requestToken({ username, password, tokenUrl, scope }: Parameters<typeof tokenProvider>[0]) {
  // The Basic scheme encodes id and secret in base64. Both must be form-encoded before (RFC 6749 section 2.3.1).
  const basic = Buffer.from(`${encodeURIComponent(username)}:${encodeURIComponent(password)}`).toString('base64')
  const body = new URLSearchParams({ grant_type: 'client_credentials', ...(scope && { scope }) })
  const init = {
    method: 'POST',
    headers: { authorization: `Basic ${basic}`, accept: 'application/json' },
    body,
    redirect: 'error',
    signal: AbortSignal.timeout(TOKEN_TIMEOUT_MS),
  } as const
  const host = new URL(tokenUrl).host
  const failed = (error: unknown) => {
    const { cause, message } = error as Error
    const reason = cause instanceof Error ? cause.message : message
    throw new KafkaTokenError(TOKEN_UNAVAILABLE, `no answer from the token endpoint at ${host}: ${reason}`)
  }
  const response = await fetch(tokenUrl, init).catch(failed)
  if (response.status >= 500 || response.status === 429)
    throw new KafkaTokenError(TOKEN_UNAVAILABLE, `the token endpoint at ${host} answered ${response.status}`)
  const answer = answerOf(await textOf(response).catch(failed))
  if (response.ok && answer) return answer
  const problem = response.ok ? 'without an access_token' : String(response.status)
  throw new KafkaTokenError(TOKEN_REFUSED, `the token endpoint at ${host} answered ${problem}`)
}

async function textOf(response: Response): Promise<string> {
  let text = ''
  const decoder = new TextDecoder()
  for await (const chunk of response.body ?? []) {
    text += decoder.decode(chunk, { stream: true })
    if (text.length > ANSWER_CHARS_MAX) throw new Error('the answer is too long')
  }
  return text
}

function answerOf(text: string): TokenAnswer | undefined {
  try {
    const { access_token, expires_in } = JSON.parse(text)
    if (typeof access_token !== 'string' || access_token === '') return undefined
    const lifetime = Number(expires_in)
    return lifetime > 0 && Number.isFinite(lifetime) ? { access_token, expires_in: lifetime } : { access_token }
  } catch {
    return undefined
  }
}
