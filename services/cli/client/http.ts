import { openAsBlob } from 'node:fs'
import { basename } from 'node:path'
import { Agent, type Dispatcher, FormData } from 'undici'
import { z } from 'zod'
import { CommandError, EXIT, fileError, plain } from '#services/cli/text/output.ts'

const ErrorBody = z.looseObject({
  error: z.looseObject({ message: z.string(), code: z.string().nullish(), param: z.string().nullish() }),
})

/** Remedies by error code of the service, or by HTTP status if the error code has no entry. */
const REMEDIES: Readonly<Record<string, string>> = {
  model_not_found: 'To list the available models: sluice models',
  job_not_found:
    'Check the id; `sluice jobs` lists the jobs of your project. Jobs of other projects require a key with the admin scope.',
  job_not_finished: 'To wait for the job: sluice follow JOB, or sluice get JOB --wait 60',
  job_already_finished: 'To show the job: sluice get JOB, or sluice get JOB --result',
  job_cancelled: 'To run the job again: sluice redrive JOB',
  result_expired: 'Results expire after the time in JOB_RETENTION_MS, a setting of the service. Submit the job again.',
  insufficient_quota:
    'The message names the budget or quota that is used up. To show the spending and the budgets: sluice usage',
  idempotency_key_in_use: 'The first request with this key is still in progress. To find the job: sluice jobs',
  idempotency_key_reused: 'This key was used with a different request. Use another --idempotency-key.',
  jobs_unavailable:
    'This service has no store for durable jobs. Set DATABASE_URL in its settings, or run all roles in one process.',
  401: 'Set SLUICE_API_KEY or --key.',
  403: 'Set SLUICE_API_KEY or --key to a key with this permission. An operator creates such a key with sluice keys create.',
  404: 'Check --url or SLUICE_URL: the server has no such endpoint.',
  405: 'The service may be older than this tool. Upgrade the service.',
  413: 'The limit is the setting BODY_BYTES_MAX of the service. Send a smaller request or raise the limit.',
}
const FIX_REQUEST = 'Fix the request and try again.'

export class ApiError extends CommandError {
  readonly status: number
  /** Error code of the service, such as `jobs_unavailable`. Empty if the response has none. */
  readonly code: string

  constructor(status: number, code: string, message: string, next: string | undefined) {
    // A server error (5xx) gets the exit code `unreachable`, like a failed connection, because a later retry may help in both cases.
    super(status >= 500 ? EXIT.unreachable : EXIT.refused, message, next)
    this.status = status
    this.code = code
  }
}

function apiErrorFrom(status: number, body: unknown, headers: HttpResponse['headers']): ApiError {
  const parsed = ErrorBody.safeParse(body)
  const error = parsed.success ? parsed.data.error : undefined
  const code = error?.code ? ` (${error.code}${error.param ? `, ${error.param}` : ''})` : ''
  const message = error
    ? `${plain(error.message)}${plain(code) && ` ${plain(code)}`}`
    : `The service responded with HTTP status ${status}.`
  // A 404 with a message but without an error code means that a worker or job does not exist. The message already contains the remedy.
  const isResource = status === 404 && error !== undefined && !error.code && !error.message.startsWith('Invalid URL')
  const remedy = isResource ? undefined : remedyFor(status, error?.code ?? '', headers)
  return new ApiError(status, error?.code ?? '', message, remedy)
}

/**
 * Returns the remedy for an error response, from {@link REMEDIES} if there is one. Otherwise, a retry is suggested for the statuses 429 and
 * 503, and if there is a header `retry-after`. The header `x-should-retry: false` prevents this suggestion.
 */
function remedyFor(status: number, code: string, headers: HttpResponse['headers']): string | undefined {
  const known = REMEDIES[code] ?? REMEDIES[status]
  if (known) return known
  const { 'retry-after': seconds, 'x-should-retry': shouldRetry } = headers
  if (shouldRetry !== 'false') {
    if (typeof seconds === 'string' && /^\d+$/.test(seconds)) return `Try again in ${seconds} s.`
    if (status === 429 || status === 503) return 'Try again later.'
  }
  if (status >= 500) return 'Check the log of the service. To check its dependencies: sluice doctor'
  return status === 400 || status === 422 ? FIX_REQUEST : undefined
}

const CONNECT_TIMEOUT_MS = 5_000
/**
 * Maximum time in ms until the response headers, and between two chunks of a body. An event stream sends a comment every 15 s, so a live stream stays
 * within this time.
 */
const IDLE_TIMEOUT_MS = 45_000
const JSON_BYTES_MAX = 64 * 1024 * 1024

interface RequestOptions {
  readonly method?: 'GET' | 'POST' | 'DELETE'
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: unknown
  /** Multipart form that is streamed as the body. Replaces `body`. */
  readonly form?: FormData
  /** Time in ms for which the service may delay its response (long poll). The timeout of the response headers is extended by this time. */
  readonly waitMs?: number
  readonly signal?: AbortSignal
}

export type HttpResponse = Dispatcher.ResponseData

/** Matches the error codes of undici and of the operating system for a connection that cannot be opened, or that broke. */
const CONNECTION_CODE = /^(UND_ERR_|ECONN|EPIPE$|ENOTFOUND$|EAI_AGAIN$|EHOSTUNREACH$|ENETUNREACH$|ETIMEDOUT$)/
/** Error codes of requests that fail because this process has closed the client. */
const CLOSED_CODES: readonly unknown[] = ['UND_ERR_DESTROYED', 'UND_ERR_CLOSED']
const TEMPORARY_STATUSES: readonly number[] = [429, 502, 503, 504]

/** Whether the error or its cause is a connection that could not be opened, or that broke while a body was read. */
export function isConnectionError(error: unknown): error is Error {
  if (!(error instanceof Error)) return false
  const isBroken = [error, error.cause].some((one) => {
    const code = (one as NodeJS.ErrnoException | undefined)?.code
    return typeof code === 'string' && CONNECTION_CODE.test(code) && !CLOSED_CODES.includes(code)
  })
  return isBroken || (error instanceof TypeError && error.message === 'terminated')
}

/** Whether a later retry may succeed: the service is overloaded, restarts, or the connection broke. */
export function isTemporary(error: unknown): boolean {
  return error instanceof ApiError ? TEMPORARY_STATUSES.includes(error.status) : isConnectionError(error)
}

export class HttpClient {
  readonly url: string
  /** Time of the last response in ms, by the clock of the service. */
  serverTimeMs = Date.now()
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
      const response = await this.#agent.request({
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
      this.serverTimeMs = Date.parse(String(response.headers.date)) || Date.now()
      return response
    } catch (error) {
      signal?.throwIfAborted()
      throw unreachable(this.url, error)
    }
  }

  /**
   * Sends a request and parses the JSON response.
   *
   * @throws CommandError for an error status or an unexpected body
   */
  async json<T>(schema: z.ZodType<T>, path: string, options: RequestOptions = {}): Promise<T> {
    const response = await this.send(path, options)
    if (response.statusCode >= 300) throw await readApiError(response)
    const body = await readJson(response).catch((error: unknown) => {
      throw unreachable(this.url, error)
    })
    const parsed = schema.safeParse(body)
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
  return apiErrorFrom(response.statusCode, await readJson(response).catch(() => undefined), response.headers)
}

/**
 * Reads the body as JSON. Returns undefined if the body is not JSON.
 *
 * @throws The error of the connection if the connection breaks
 */
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
  } catch (error) {
    if (isConnectionError(error)) throw error
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

/** Rough estimate of the end of a batch, in Unix seconds. */
export const EndRange = z.looseObject({ earliest: z.number(), latest: z.number() })

export const BatchView = z.looseObject({
  id: z.string(),
  status: z.string(),
  endpoint: z.string(),
  created_at: z.number(),
  completed_at: z.number().nullish(),
  failed_at: z.number().nullish(),
  cancelled_at: z.number().nullish(),
  expired_at: z.number().nullish(),
  usage: z.looseObject({ input_tokens: z.number(), output_tokens: z.number() }).nullish(),
  cost_usd: z.number().nullish(),
  invalid_answers: z.number().nullish(),
  model: z.string().nullish(),
  project: z.string().nullish().describe('Admin API only'),
  project_name: z.string().nullish().describe('Admin API only'),
  progress: z
    .looseObject({
      requests_per_second: z.number().nullish(),
      estimated_end_at: z.number().nullish(),
      estimated_end_range: EndRange.nullish(),
    })
    .nullish(),
  waiting_for: z.string().nullish(),
  metadata: z.record(z.string(), z.string()).nullish(),
  input_file_id: z.string().nullish(),
  output_file_id: z.string().nullish(),
  error_file_id: z.string().nullish(),
  errors: z
    .looseObject({ data: z.array(z.looseObject({ message: z.string(), line: z.number().nullish() })) })
    .nullish(),
  request_counts: z.looseObject({ total: z.number(), completed: z.number(), failed: z.number() }),
})
export type BatchView = z.infer<typeof BatchView>

export const BATCHES = '/v1/batches'
const PAGE_MAX = 100
export const BatchPage = z.looseObject({
  data: z.array(BatchView),
  has_more: z.boolean(),
  last_id: z.string().nullish(),
})
const FileView = z.looseObject({ filename: z.string() })
const ModelView = z.looseObject({ capabilities: z.array(z.string()).nullish(), status: z.string().nullish() })
const JobIds = z.looseObject({ data: z.array(z.looseObject({ id: z.string() })) })

const GONE: readonly number[] = [404, 410]

/** Whether the error means that a file or a result does not exist any more. */
export function isGone(error: unknown): boolean {
  return error instanceof ApiError && GONE.includes(error.status)
}

const LINE_FEED = 0x0a

/** Splits a stream into lines, without their line feeds. */
export async function* linesIn(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let held: Buffer[] = []
  for await (const chunk of source) {
    let from = 0
    for (let end = chunk.indexOf(LINE_FEED); end >= 0; end = chunk.indexOf(LINE_FEED, from)) {
      yield Buffer.concat([...held, chunk.subarray(from, end)])
      held = []
      from = end + 1
    }
    held.push(chunk.subarray(from))
  }
  const rest = Buffer.concat(held)
  if (rest.length > 0) yield rest
}

/** Id of the batch that a job runs. An id of a batch is returned unchanged. */
export function batchIdOf(jobId: string): string {
  return jobId.replace(/^job_/, 'batch_')
}

/**
 * Client of the files and batches APIs (docs/guides/batches.md).
 *
 * @throws CommandError for every error response
 */
export class BatchesApi {
  readonly #http: HttpClient

  constructor(http: HttpClient) {
    this.#http = http
  }

  /** @param name Name of the stored file. Default: the name in `path` */
  async upload(path: string, purpose: 'batch' | 'user_data' = 'batch', name = basename(path)): Promise<string> {
    const blob = await openAsBlob(path).catch((error: Error) => {
      throw fileError(path, error)
    })
    const form = new FormData()
    form.append('purpose', purpose)
    form.append('file', blob, name)
    return (await this.#http.json(z.looseObject({ id: z.string() }), '/v1/files', { method: 'POST', form })).id
  }

  async create(request: object): Promise<BatchView> {
    return await this.#http.json(BatchView, '/v1/batches', { method: 'POST', body: request })
  }

  /** @param id Id of a batch, or of the job that runs it */
  async get(id: string): Promise<BatchView> {
    return await this.#http.json(BatchView, `/v1/batches/${encodeURIComponent(batchIdOf(id))}`)
  }

  async cancel(id: string): Promise<BatchView> {
    return await this.#http.json(BatchView, `/v1/batches/${encodeURIComponent(id)}/cancel`, { method: 'POST' })
  }

  /** Lists at most `max` batches, newest first; fetches pages on demand. */
  async *list(max: number): AsyncGenerator<BatchView> {
    for (let left = max, after = ''; left > 0; ) {
      const query = new URLSearchParams({ limit: String(Math.min(left, PAGE_MAX)), ...(after && { after }) })
      const page = await this.#http.json(BatchPage, `/v1/batches?${query}`)
      yield* page.data
      left -= page.data.length
      after = page.last_id ?? ''
      if (!page.has_more || after === '') return
    }
  }

  /** Returns the newest batches with this metadata, newest first. */
  async findByMetadata(name: string, value: string, max: number): Promise<BatchView[]> {
    const query = new URLSearchParams({ endpoint: BATCHES, limit: String(max), [`metadata[${name}]`]: value })
    const { data } = await this.#http.json(JobIds, `/v1/jobs?${query}`)
    const found: BatchView[] = []
    for (const { id } of data) found.push(await this.get(id))
    return found
  }

  /**
   * Reads what a batch must know about its model. Structured output is assumed if the key may not read models.
   *
   * @throws CommandError for an unknown model
   */
  async model(id: string): Promise<{ readonly hasStructuredOutput: boolean; readonly isFailing: boolean }> {
    const path = `/v1/models/${encodeURIComponent(id)}`
    const view = await this.#http.json(ModelView, path).catch((error: unknown) => {
      if (error instanceof ApiError && error.status === 403) return undefined
      throw error
    })
    return { hasStructuredOutput: view?.capabilities?.includes('json') ?? true, isFailing: view?.status === 'failing' }
  }

  async file(id: string): Promise<{ readonly filename: string }> {
    return await this.#http.json(FileView, `/v1/files/${encodeURIComponent(id)}`)
  }

  async fileContent(id: string): Promise<HttpResponse> {
    return await this.#read(`/v1/files/${encodeURIComponent(id)}/content`)
  }

  /** Returns the results of a batch that exist so far. With `include: 'earlier'`, also the results of the batches that it retries. */
  async results(id: string, query: Readonly<Record<string, string>> = {}): Promise<HttpResponse> {
    return await this.#read(`${BATCHES}/${encodeURIComponent(id)}/results?${new URLSearchParams(query)}`)
  }

  async messagesResults(id: string): Promise<HttpResponse> {
    return await this.#read(`/v1/messages/batches/${encodeURIComponent(id)}/results`)
  }

  async #read(path: string): Promise<HttpResponse> {
    const response = await this.#http.send(path, { headers: { accept: '*/*' } })
    if (response.statusCode >= 300) throw await readApiError(response)
    return response
  }
}
