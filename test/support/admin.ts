/** Helper for tests of the admin API. Starts a service with three API keys: two callers in different projects (alice, bob) and an operator (op). */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Writable } from 'node:stream'
import { pino } from 'pino'
import { keyOf } from '#shared/keys/keys.ts'
import type { RequestRow } from '#shared/store/requests.ts'
import { ECHO_MODEL, type Stack, startStack, until } from './stack.ts'

const WHO = ['alice', 'bob', 'op'] as const
type Who = (typeof WHO)[number]

/** Returns the API key of a caller, such as `sk-alice-0123456789`. */
export const secretOf = (who: string) => `sk-${who}-0123456789`

/** A page of jobs; only the fields that tests read. */
export interface Page {
  readonly data: readonly Record<string, unknown>[]
  readonly has_more: boolean
  readonly last_id: string | null
}

/** Sends HTTP requests with the API key of one caller. */
export interface Caller {
  get(path: string): Promise<Response>
  post(path: string, body?: unknown): Promise<Response>
}

export interface Admin extends AsyncDisposable {
  readonly stack: Stack
  as(who: string): Caller
  /**
   * Submits a chat job.
   *
   * @param more Fields of the job, and its `model`
   */
  submit(who: string, prompt: string, more?: Record<string, unknown>): Promise<string>
  /** Reads a job with the caller's key from `/v1/jobs/:id`, not from the admin API. */
  job(who: string, id: string): Promise<Record<string, unknown>>
  /** Log lines of the service that record an admin action (audit events). */
  auditEvents(): Record<string, unknown>[]
}

/**
 * Starts a service with the keys of {@link secretOf}.
 * @param options `models` is the number of echo models, named echo-1, echo-2 and so on. `aliases` are further names of echo-1. `dataDir` is an
 * existing data directory, which is not deleted at the end.
 */
export async function openAdmin(
  options: {
    models?: number
    aliases?: string[]
    price?: object
    settings?: Record<string, string>
    dataDir?: string
  } = {},
): Promise<Admin> {
  const lines: Record<string, unknown>[] = []
  const log = pino(
    { level: 'info' },
    new Writable({
      write(chunk, _encoding, done) {
        lines.push(JSON.parse(String(chunk)))
        done()
      },
    }),
  )
  const models = Array.from({ length: options.models ?? 1 }, (_, nth) => ({
    ...ECHO_MODEL,
    id: `echo-${nth + 1}`,
    ...(options.aliases && nth === 0 && { aliases: options.aliases }),
    ...(options.price && { price: options.price }),
  }))
  const { settings = {}, dataDir } = options
  const stack = await startStack({ models, settings, log, ...(dataDir !== undefined && { dataDir }) })
  await addKeys(stack)
  const as = (who: string): Caller => ({
    get: (path) => stack.get(path, bearer(who)),
    post: (path, body = {}) => stack.post(path, body, bearer(who)),
  })
  return {
    stack,
    as,
    async submit(who, prompt, { model = 'echo-1', ...more } = {}) {
      const body = { model, max_tokens: 100_000, messages: [{ role: 'user', content: prompt }] }
      const response = await as(who).post('/v1/jobs', { endpoint: '/v1/chat/completions', body, ...more })
      const job = (await response.json()) as { id: string }
      if (response.status !== 202) throw new Error(`not submitted: ${JSON.stringify(job)}`)
      return job.id
    },
    async job(who, id) {
      return (await (await as(who).get(`/v1/jobs/${id}`)).json()) as Record<string, unknown>
    },
    auditEvents: () => lines.filter(({ msg }) => msg === 'admin API action performed'),
    async [Symbol.asyncDispose]() {
      await stack[Symbol.asyncDispose]()
    },
  }
}

const bearer = (who: string) => ({ headers: { authorization: `Bearer ${secretOf(who)}` } })

async function addKeys(stack: Stack): Promise<void> {
  const keys = WHO.map((who: Who) => {
    const isOperator = who === 'op'
    return keyOf(secretOf(who), {
      id: who,
      project: isOperator ? 'ops' : who,
      ...(isOperator && { scopes: ['admin'] as const }),
    })
  })
  writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys }))
  await until(async () => (await stack.get('/v1/admin/workers', bearer('op'))).status === 200)
}

/** A row of the request log: a call of the model `m1` that has just failed, after it returned output. */
export const requestRow = (id: string, changes: Partial<RequestRow> = {}): RequestRow => ({
  ...{ id, project: 'p1', keyId: 'key_1', endpoint: '/v1/chat/completions', kind: 'generate', model: 'm1' },
  ...{
    worker: 'inf_1',
    server: '1',
    status: 502,
    errorCode: 'upstream_error',
    startedAtMs: Date.now(),
    endedAtMs: Date.now(),
  },
  ...{ queueMs: 1, firstOutputMs: 20, durationMs: 100, inputTokens: 0, cachedInputTokens: 0, outputTokens: 0 },
  ...{ costNanos: 0, attempts: 1, jobId: null, batchId: null, traceId: null, userAgent: 'sdk/1' },
  ...{ errorMessage: null, errorParam: null, upstreamMessage: null, failedAttempts: null, sdkRetry: null },
  ...{ unknownParameters: null, formatIgnored: null },
  ...{ batchCalls: null, batchFailed: null },
  ...changes,
})
