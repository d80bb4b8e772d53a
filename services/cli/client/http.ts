import { Agent, type Dispatcher, type FormData } from 'undici'
import { z } from 'zod'
import { CommandError, EXIT } from '#services/cli/failure.ts'
import { type Refusal, refusal } from './refusal.ts'

const CONNECT_TIMEOUT_MS = 5_000
/** Longest silence of the service before an answer, and inside one. Event streams say something every 15 s. */
const SILENCE_MS_MAX = 45_000
/** More of an answer that should be JSON is not read. */
const JSON_BYTES_MAX = 64 * 1024 * 1024

/** What a request may say. */
export interface RequestOptions {
  readonly method?: 'GET' | 'POST' | 'DELETE'
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  /** Sent in the place of a body, as it is read. */
  readonly form?: FormData
  /** Added to the silence that is allowed before the answer: a request that asks the service to wait. */
  readonly waitMs?: number
  readonly signal?: AbortSignal
}

/** An answer whose body has not been read. Read it or dump it. */
export type Answer = Dispatcher.ResponseData

/** HTTP to one service with one key. The caller closes it. */
export class HttpClient {
  readonly url: string
  readonly #key: string | undefined
  readonly #agent = new Agent({ connect: { timeout: CONNECT_TIMEOUT_MS }, bodyTimeout: SILENCE_MS_MAX })

  constructor(url: string, key: string | undefined) {
    this.url = url.replace(/\/+$/, '')
    this.#key = key
  }

  /** Sends a request. @throws CommandError when nobody answers */
  async send(path: string, options: RequestOptions = {}): Promise<Answer> {
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
        headersTimeout: SILENCE_MS_MAX + waitMs,
        ...(signal && { signal }),
      })
    } catch (error) {
      signal?.throwIfAborted()
      throw unreachable(this.url, error)
    }
  }

  /** Sends a request and reads its answer. @throws CommandError for every answer but the expected ones */
  async json<T>(schema: z.ZodType<T>, path: string, options: RequestOptions = {}): Promise<T> {
    const answer = await this.send(path, options)
    if (answer.statusCode >= 300) throw await refusalOf(answer)
    const parsed = schema.safeParse(await readJson(answer))
    if (parsed.success) return parsed.data
    throw new CommandError(
      EXIT.unreachable,
      `What answers at ${this.url} is not this service: ${z.prettifyError(parsed.error)}`,
      'Check --url or SLUICE_URL.',
    )
  }

  async close(): Promise<void> {
    await this.#agent.destroy()
  }
}

/** Why an answer refuses, as it says itself. Reads its body. */
export async function refusalOf(answer: Answer): Promise<Refusal> {
  const retryAfter = answer.headers['retry-after']
  return refusal(answer.statusCode, await readJson(answer), typeof retryAfter === 'string' ? retryAfter : undefined)
}

/** The body as JSON; undefined when it is none. */
async function readJson(answer: Answer): Promise<unknown> {
  const chunks: Buffer[] = []
  let bytes = 0
  try {
    for await (const chunk of answer.body) {
      bytes += chunk.length
      if (bytes > JSON_BYTES_MAX) return undefined
      chunks.push(chunk)
    }
    return JSON.parse(Buffer.concat(chunks).toString('utf8'))
  } catch {
    // Cut off, or a page of some proxy: the status says enough.
    return undefined
  }
}

function unreachable(url: string, error: unknown): CommandError {
  const why = error instanceof Error ? error.message || ((error as NodeJS.ErrnoException).code ?? '') : String(error)
  return new CommandError(
    EXIT.unreachable,
    `${url} cannot be reached: ${why}`,
    'Start the service (npm start), or say where it is with --url or SLUICE_URL. `sluice doctor` looks closer.',
    error,
  )
}
