import type { IncomingMessage } from 'node:http'
import type { Call, IngressContext } from '#services/ingress/call.ts'

/** Address of {@link readMetrics}. */
export const ADMIN_METRICS = '/v1/admin/metrics'

const LOOPBACK_ADDRESS = /^(127\.|::1$|::ffff:127\.)/
/** Loopback names in the `Host` header. A page of another site that resolves its own name to this machine has another one (DNS rebinding). */
const LOOPBACK_HOST = /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$/i
/** Headers of proxies: the connection comes from this machine, the request does not. */
const FORWARDED = ['forwarded', 'via', 'x-forwarded-for', 'x-real-ip'] as const

/** Whether a request for `/metrics` came from elsewhere, and so needs what {@link ADMIN_METRICS} needs. */
export function isMetricsOfOthers({ url = '', headers, socket }: IncomingMessage): boolean {
  if (url.split('?', 1)[0] !== '/metrics') return false
  const isLocal = LOOPBACK_ADDRESS.test(socket.remoteAddress ?? '') && LOOPBACK_HOST.test(headers.host ?? '')
  return !isLocal || FORWARDED.some((name) => headers[name] !== undefined)
}

/** GET /v1/admin/metrics: what this process counts, in Prometheus' text format, also where METRICS_PORT has it on another port. */
export async function readMetrics({ metrics }: IngressContext, call: Call): Promise<void> {
  await call.reply.whole(await metrics.registry.metrics())
}
