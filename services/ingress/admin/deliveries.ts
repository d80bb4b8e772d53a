import { ListDeliveries } from '#schemas/admin/admin.ts'
import type { WebhookDelivery } from '#schemas/durable-job.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { projectIdNamed } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { firstPage } from '#services/ingress/calls/job-list.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { audit } from './audit.ts'
import { requireOperator } from './jobs.ts'

export async function listDeliveries(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListDeliveries, call.query)
  const { limit, after, project, status } = parseBody(ListDeliveries, { ...call.query }, 'openai')
  const tenant = project === undefined ? undefined : projectIdNamed(context.keys.known, project)
  const operator = requireOperator(context)
  const { page, next } = await firstPage(after, async (cursor) => {
    const found = await operator.listDeliveries({ limit, after: cursor, tenant, state: status })
    return { page: found.deliveries, next: found.next }
  })
  const data = page.map(deliveryObject)
  const last_id = next ?? data.at(-1)?.id ?? null
  await call.reply.whole({ object: 'list', data, first_id: data[0]?.id ?? null, last_id, has_more: next !== null })
}

/**
 * POST /v1/admin/deliveries/{id}/retry: delivers a webhook at once. If all attempts had failed, then their number is
 * reset.
 */
export async function retryDelivery(context: IngressContext, call: Call): Promise<void> {
  const id = String(call.params.id)
  const delivery = /^evt_[\w-]{8,100}$/.test(id) ? await requireOperator(context).retryDelivery(id) : undefined
  if (!delivery) {
    const message = `No pending or failed delivery has the id '${beginningOf(id, 100)}'. GET /v1/admin/deliveries lists them.`
    throw new ServiceError('not_found', message)
  }
  const { job_id, tenant } = delivery
  audit(context, call, 'retry_delivery', { delivery_id: id, job_id, of_project: tenant })
  await call.reply.whole(deliveryObject(delivery), 202)
}

/** Only the host of the URL is shown, because the rest may contain a secret. */
function deliveryObject(delivery: WebhookDelivery) {
  const { id, job_id, tenant, url, type, state, tries, status, error, next_at_ms, created_at_ms } = delivery
  return {
    id,
    object: 'webhook_delivery',
    project: tenant,
    job_id,
    type,
    host: URL.parse(url)?.host ?? null,
    status: state,
    attempts: tries,
    response_status: status,
    error,
    next_at: state === 'pending' ? Math.floor(next_at_ms / 1_000) : null,
    created_at: Math.floor(created_at_ms / 1_000),
    history: delivery.history.map(({ at_ms, duration_ms, ...said }) => ({
      ...{ at: Math.floor(at_ms / 1_000), duration_ms, response_status: said.status, error: said.error },
    })),
  }
}
