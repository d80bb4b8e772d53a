import type { Call, IngressContext } from '#services/ingress/call.ts'

/** GET /v1/admin/metrics: what this process counts, in Prometheus' text format, also where METRICS_PORT has it on another port. */
export async function readMetrics({ metrics }: IngressContext, call: Call): Promise<void> {
  await call.reply.whole(await metrics.registry.metrics())
}
