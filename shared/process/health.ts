import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Metrics } from '#shared/metrics.ts'

/** What a process says about its health. */
export interface Health {
  /** Sentences that say why it should get no work now; none when it should. */
  problems(): string[]
  /** What is still being prepared while it works, with how far that is; undefined: it is not known here. */
  preparing?(): string[]
  /** Undefined: another port of the process shows them. */
  readonly metrics: Metrics | undefined
}

/**
 * Answers `/healthz` (the process lives; `/health` is its name in vLLM), `/readyz` (it makes progress; 503 with the reasons when it does not) and
 * `/metrics` (Prometheus). Needs no key: a caller that passes `metrics` has checked the request.
 *
 * @returns False when the path is none of these.
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
    // One gauge that cannot be read must not end the process; Prometheus shows the scrape as failed.
    sendJson(res, 500, { status: 'metrics not available', reason: String(error) })
  }
}

function sendJson(res: ServerResponse, status: number, body: object): void {
  res.writeHead(status, { 'content-type': 'application/json' })
  res.end(JSON.stringify(body))
}
