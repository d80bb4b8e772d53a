import type { IncomingMessage } from 'node:http'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'

export const ADMIN_METRICS = '/v1/admin/metrics'

const LOOPBACK_ADDRESS = /^(127\.|::1$|::ffff:127\.)/
/**
 * Loopback names in a `Host` header. The check prevents DNS rebinding: a page of another site that resolves its name to
 * this machine sends that name.
 */
const LOOPBACK_HOST = /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$/i
/** Headers that proxies add. A request with one of them is not local, although its connection is. */
const FORWARDED = ['forwarded', 'via', 'x-forwarded-for', 'x-real-ip'] as const

/**
 * Whether a request for `/metrics` comes from another machine. Such a request needs a key with access to {@link
 * ADMIN_METRICS}.
 */
export function isMetricsOfOthers({ url = '', headers, socket }: IncomingMessage): boolean {
  if (url.split('?', 1)[0] !== '/metrics') return false
  const isLocal = LOOPBACK_ADDRESS.test(socket.remoteAddress ?? '') && LOOPBACK_HOST.test(headers.host ?? '')
  return !isLocal || FORWARDED.some((name) => headers[name] !== undefined)
}

/**
 * GET /v1/admin/metrics: metrics of this process in the Prometheus text format. Also available if METRICS_PORT is set.
 */
export async function readMetrics({ metrics }: IngressContext, call: Call): Promise<void> {
  await call.reply.whole(await metrics.registry.metrics())
}
