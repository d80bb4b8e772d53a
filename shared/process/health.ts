import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Metrics } from '#shared/lib/metrics.ts'

export interface Health {
  /** Returns the reasons why the process should receive no work now. Empty if the process is ready. */
  problems(): string[]
  /** Returns the names of models and environments whose preparation runs, with the progress of each. Undefined if this process prepares none. */
  preparing?(): string[]
  readonly metrics: Metrics | undefined
}

/**
 * Answers `/healthz` (alive, also under vLLM's name `/health`), `/readyz` (ready, or 503 with the reasons) and `/metrics` (Prometheus). No key is
 * checked here, so a caller that sets `metrics` must have checked the request.
 *
 * @returns False for any other path
 */
export function answerHealth(health: Health, req: IncomingMessage, res: ServerResponse): boolean {
  const path = req.url?.split('?')[0]
  if (path === '/healthz' || path === '/health') sendJson(res, 200, { status: 'ok' })
  else if (path === '/readyz') sendReady(health, res)
  else if (path === '/metrics' && health.metrics) void sendMetrics(health.metrics, res)
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

async function sendMetrics(metrics: Metrics, res: ServerResponse): Promise<void> {
  try {
    const text = await metrics.registry.metrics()
    res.writeHead(200, { 'content-type': metrics.registry.contentType })
    res.end(text)
  } catch (error) {
    // A gauge that throws must not end the process. Prometheus reports the scrape as failed.
    sendJson(res, 500, { status: 'metrics not available', reason: String(error) })
  }
}

function sendJson(res: ServerResponse, status: number, body: object): void {
  res.writeHead(status, { 'content-type': 'application/json' })
  res.end(JSON.stringify(body))
}
