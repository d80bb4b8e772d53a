import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { Config } from '#shared/config/config.ts'
import type { Metrics } from '#shared/lib/metrics.ts'
import type { StoreView } from '#shared/store/store.ts'

export interface Health {
  /** Returns the reasons why the process cannot accept work now. Empty if the process is ready. */
  problems(): string[]
  /** Returns the models and environments that this process is preparing, each with its progress. Undefined if the process never prepares any. */
  preparing?(): string[]
  readonly metrics: Metrics | undefined
}

/**
 * Answers the paths `/healthz` (also `/health`, its name in vLLM), `/readyz` (ready, or 503 with the reasons) and `/metrics` (Prometheus). No key is
 * checked here. If `metrics` is set, then the caller must have checked that the request may read them.
 *
 * @returns False for any other path
 */
export function answerHealth(health: Health, req: IncomingMessage, res: ServerResponse): boolean {
  const path = req.url?.split('?')[0]
  if (path === '/healthz' || path === '/health') sendJson(res, 200, { status: 'ok' })
  else if (path === '/readyz') sendReady(health, res)
  else if (path === '/metrics' && health.metrics) void sendMetrics(health.metrics, req, res)
  else return false
  return true
}

function sendReady(health: Health, res: ServerResponse): void {
  const problems = health.problems()
  const preparing = health.preparing?.() ?? []
  const more = preparing.length > 0 ? { preparing } : {}
  if (problems.length === 0) sendJson(res, 200, { status: 'ready', ...more })
  else sendJson(res, 503, { status: 'not ready', problems, ...more })
}

async function sendMetrics(metrics: Metrics, { headers }: IncomingMessage, res: ServerResponse): Promise<void> {
  try {
    const { type, text } = await metrics.text(headers.accept)
    res.writeHead(200, { 'content-type': type })
    res.end(text)
  } catch (error) {
    // If a gauge throws, then only the scrape fails, with status 500. Otherwise the error would end the process.
    sendJson(res, 500, { status: 'metrics not available', reason: String(error) })
  }
}

function sendJson(res: ServerResponse, status: number, body: object): void {
  res.writeHead(status, { 'content-type': 'application/json' })
  res.end(JSON.stringify(body))
}

const TIMEOUT_MS = 2_000
/** Time in ms for which the result of a check is reused, so that frequent scrapes do not load Kafka, Postgres and S3. */
const RESULT_TTL_MS = 10_000
/** Key of a blob that never exists. If the blob store is reachable, then its answer is that this blob is missing. */
const MISSING_BLOB = 'sluice-check'

interface Dependencies {
  readonly config: Pick<Config, 'kafka' | 'databaseUrl' | 'blobs'>
  readonly metrics: Metrics
  readonly broker: Broker
  readonly store: StoreView | undefined
  readonly blobs: Blobs
}

interface Result {
  readonly isUp: boolean
  readonly seconds: number
}

/** Exports whether Kafka, Postgres and S3 answer this process, and how fast. A scrape sends one small request to each, at most every 10 seconds. */
export function showDependencies({ config, metrics, broker, store, blobs }: Dependencies): void {
  const checks: [name: string, check: () => Promise<unknown>][] = []
  if (config.kafka)
    checks.push([
      'kafka',
      async () => {
        // The request measures only the duration. A failure of the request is ignored, because it may have other reasons than an outage.
        // `isReachable` shows an outage.
        await broker.lag('jobs.inference')
        if (!broker.isReachable) throw new Error('no broker answers')
      },
    ])
  if (config.databaseUrl !== undefined && store) checks.push(['postgres', () => store.operator.listPauses()])
  if (config.blobs) checks.push(['s3', () => blobs.size(MISSING_BLOB).catch(ignoreMissing)])
  const cached = checks.map(([dependency, check]) => [{ dependency }, cachedCheck(check)] as const)
  const rows = (value: (result: Result) => number) => async () =>
    await Promise.all(cached.map(async ([labels, check]) => [labels, value(await check())] as const))
  metrics.rows(
    'sluice_dependency_up',
    rows(({ isUp }) => Number(isUp)),
  )
  metrics.rows(
    'sluice_dependency_latency_seconds',
    rows(({ seconds }) => seconds),
  )
}

function ignoreMissing(error: unknown): void {
  if ((error as { code?: string }).code !== 'not_found') throw error
}

function cachedCheck(check: () => Promise<unknown>): () => Promise<Result> {
  let last: { readonly atMs: number; readonly result: Promise<Result> } | undefined
  return async () => {
    if (!last || Date.now() - last.atMs > RESULT_TTL_MS) last = { atMs: Date.now(), result: resultOf(check) }
    return await last.result
  }
}

async function resultOf(check: () => Promise<unknown>): Promise<Result> {
  const startedAt = performance.now()
  const late = Promise.withResolvers<boolean>()
  const timer = setTimeout(() => late.resolve(false), TIMEOUT_MS)
  const isUp = await Promise.race([
    check().then(
      () => true,
      () => false,
    ),
    late.promise,
  ])
  clearTimeout(timer)
  return { isUp, seconds: (performance.now() - startedAt) / 1_000 }
}
