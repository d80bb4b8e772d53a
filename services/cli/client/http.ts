import { Agent, type Dispatcher, type FormData } from 'undici'
import { z } from 'zod'
import { CommandError, EXIT } from '#services/cli/failure.ts'
import { type ApiError, apiErrorFrom } from './api-error.ts'

const CONNECT_TIMEOUT_MS = 5_000
/**
 * Maximum time until the response headers, and between two chunks of a body. Longer than the 15 s between the comments of an event
 * stream.
 */
const IDLE_TIMEOUT_MS = 45_000
const JSON_BYTES_MAX = 64 * 1024 * 1024

export interface RequestOptions {
  readonly method?: 'GET' | 'POST' | 'DELETE'
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  /** Form that is streamed as the body, instead of `body`. */
  readonly form?: FormData
  /** Long poll: how long the service may wait before it responds. Added to the timeout for the headers. */
  readonly waitMs?: number
  readonly signal?: AbortSignal
}

export type HttpResponse = Dispatcher.ResponseData

/** HTTP client for one service and one API key. The caller closes it. */
export class HttpClient {
  readonly url: string
  readonly #key: string | undefined
  readonly #agent = new Agent({ connect: { timeout: CONNECT_TIMEOUT_MS }, bodyTimeout: IDLE_TIMEOUT_MS })

  constructor(url: string, key: string | undefined) {
    this.url = url.replace(/\/+$/, '')
    this.#key = key
  }

  async send(path: string, options: RequestOptions = {}): Promise<HttpResponse> {
    const { method = 'GET', headers, body, form, waitMs = 0, signal } = options
    const { origin, pathname, search } = new URL(this.url + path)
    try {
      return await this.#agent.request({
        origin,
        path: pathname + search,
        method,
        headers: {
          accept: 'application/json',
          ...(this.#key !== undefined && { authorization: `Bearer ${this.#key}` }),
          ...(body !== undefined && { 'content-type': 'application/json' }),
          ...headers,
        },
        body: form ?? (body === undefined ? null : JSON.stringify(body)),
        headersTimeout: IDLE_TIMEOUT_MS + waitMs,
        ...(signal && { signal }),
      })
    } catch (error) {
      signal?.throwIfAborted()
      throw unreachable(this.url, error)
    }
  }

  /** Sends a request and parses the JSON response. @throws CommandError for an error status or an unexpected body */
  async json<T>(schema: z.ZodType<T>, path: string, options: RequestOptions = {}): Promise<T> {
    const response = await this.send(path, options)
    if (response.statusCode >= 300) throw await readApiError(response)
    const parsed = schema.safeParse(await readJson(response))
    if (parsed.success) return parsed.data
    throw new CommandError(
      EXIT.unreachable,
      `Unexpected response from ${this.url}: ${z.prettifyError(parsed.error)}`,
      'Check --url or SLUICE_URL; another server or a proxy may have responded.',
    )
  }

  async close(): Promise<void> {
    await this.#agent.destroy()
  }
}

export async function readApiError(response: HttpResponse): Promise<ApiError> {
  const retryAfter = response.headers['retry-after']
  return apiErrorFrom(
    response.statusCode,
    await readJson(response),
    typeof retryAfter === 'string' ? retryAfter : undefined,
  )
}

/** The body as JSON, or undefined if it is not JSON or too large. */
async function readJson(response: HttpResponse): Promise<unknown> {
  const chunks: Buffer[] = []
  let bytes = 0
  try {
    for await (const chunk of response.body) {
      bytes += chunk.length
      if (bytes > JSON_BYTES_MAX) return undefined
      chunks.push(chunk)
    }
    return JSON.parse(Buffer.concat(chunks).toString('utf8'))
  } catch {
    // The body is truncated, or is an HTML page of a proxy. The caller then reports the HTTP status.
    return undefined
  }
}

function unreachable(url: string, error: unknown): CommandError {
  const reason = error instanceof Error ? error.message || ((error as NodeJS.ErrnoException).code ?? '') : String(error)
  return new CommandError(
    EXIT.unreachable,
    `Cannot reach ${url}: ${reason}`,
    'Start the service (npm start), or set its address with --url or SLUICE_URL. For a diagnosis: sluice doctor',
    error,
  )
}
