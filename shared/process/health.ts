import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Metrics } from '#shared/lib/metrics.ts'

export interface Health {
  /** Reasons why the process should receive no work now; empty if ready. */
  problems(): string[]
  /** Models and environments that are being prepared, with their progress. Absent if this process prepares none. */
  preparing?(): string[]
  /** Metrics to serve; undefined if another port of the process serves them. */
  readonly metrics: Metrics | undefined
}

/**
 * Answers `/healthz` (alive; `/health` is its name in vLLM), `/readyz` (ready, or 503 with the reasons) and `/metrics` (Prometheus). Requires no key:
 * a caller that passes `metrics` has checked the request.
 *
 * @returns False if the path is none of these.
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
    // A gauge that throws must not end the process. Prometheus shows the scrape as failed.
    sendJson(res, 500, { status: 'metrics not available', reason: String(error) })
  }
}

function sendJson(res: ServerResponse, status: number, body: object): void {
  res.writeHead(status, { 'content-type': 'application/json' })
  res.end(JSON.stringify(body))
}
