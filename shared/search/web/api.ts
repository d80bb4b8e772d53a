import { request } from 'undici'
import type { z } from 'zod'
import { ServiceError } from '#shared/lib/error.ts'

export interface ApiCall<T> {
  readonly url: string
  readonly method?: 'GET' | 'POST'
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  readonly schema: z.ZodType<T>
  /** Advice for the operator that is logged after a 401 or 403, such as a setting of the search service. Callers do not receive it. */
  readonly refusedHint?: string
}

const TIMEOUT_MS = 15_000
const BYTES_MAX = 4 * 1024 * 1024

/**
 * Calls a search service.
 *
 * @throws ServiceError `rate_limit_exceeded` (with the delay of Retry-After), `upstream_refused`, `upstream_error`, `upstream_timeout`. The signal's
 * reason
 */
export async function callApi<T>(name: string, call: ApiCall<T>, signal: AbortSignal): Promise<T> {
  const timeout = AbortSignal.timeout(TIMEOUT_MS)
  const { url, method = 'GET', body, schema, refusedHint } = call
  const json = body === undefined ? {} : { body: JSON.stringify(body) }
  const type = body === undefined ? {} : { 'content-type': 'application/json' }
  try {
    const answer = await request(url, {
      method,
      headers: { accept: 'application/json', ...type, ...call.headers },
      ...json,
      signal: AbortSignal.any([signal, timeout]),
    })
    const text = await textOf(answer.body)
    if (answer.statusCode !== 200) throw refusal(name, answer.statusCode, answer.headers['retry-after'], refusedHint)
    return parsed(name, text, schema)
  } catch (error) {
    signal.throwIfAborted()
    if (error instanceof ServiceError) throw error
    if (timeout.aborted)
      throw new ServiceError('upstream_timeout', `The search backend ${name} did not respond in time.`)
    throw new ServiceError('upstream_error', `The search backend ${name} cannot be reached.`, { cause: error })
  }
}

async function textOf(body: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of body) {
    bytes += chunk.length
    if (bytes > BYTES_MAX)
      throw new ServiceError('upstream_error', `The search backend sent more than ${BYTES_MAX} bytes.`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}

function parsed<T>(name: string, text: string, schema: z.ZodType<T>): T {
  try {
    return schema.parse(JSON.parse(text))
  } catch (cause) {
    throw new ServiceError('upstream_error', `The search backend ${name} sent a response without valid results.`, {
      cause,
    })
  }
}

/**
 * Returns the error for a status other than 200.
 *
 * @param after Value of the header Retry-After. Ignored unless it is a number of seconds
 */
export function refusal(name: string, status: number, after: unknown, hint?: string): ServiceError {
  const seconds = Number(after)
  const retry = Number.isFinite(seconds) && seconds > 0 ? { retryAfterMs: seconds * 1_000 } : {}
  const cause = new Error(
    `The search service responded with status ${status}.${hint && (status === 401 || status === 403) ? ` ${hint}` : ''}`,
  )
  if (status === 429)
    return new ServiceError(
      'rate_limit_exceeded',
      `The search backend ${name} is throttled because of its rate limit.`,
      { cause, ...retry },
    )
  if (status >= 500)
    return new ServiceError('upstream_error', `The search backend ${name} failed.`, { cause, ...retry })
  return new ServiceError('upstream_refused', `The search backend ${name} refused the search.`, { cause })
}
