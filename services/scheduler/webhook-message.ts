import { createHmac } from 'node:crypto'
import type { DurableEventType, DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'

/**
 * Body of a message (docs/guides/webhooks.md, What arrives). The body is equal in every try: its status is that of the event and not the current
 * one of the job.
 */
export function messageOf(delivery: WebhookDelivery, job: DurableJob): string {
  return JSON.stringify({
    id: delivery.id,
    object: 'event',
    type: delivery.type,
    created_at: Math.floor(delivery.created_at_ms / 1_000),
    data: { id: job.id, status: statusOf(delivery.type), endpoint: job.endpoint, metadata: job.metadata },
  })
}

/**
 * Headers of one try by Standard Webhooks 1.0.
 *
 * The signature is `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`. There is one signature per key, separated by spaces, so
 * that a key can be rotated without a gap.
 *
 * @param nowMs Time of this try: receivers refuse messages older than five minutes.
 */
export function signedHeaders(
  id: string,
  body: string,
  keys: readonly Buffer[],
  nowMs: number,
): Record<string, string> {
  const timestamp = String(Math.floor(nowMs / 1_000))
  const sign = (key: Buffer) => createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest('base64')
  return {
    'content-type': 'application/json',
    'webhook-id': id,
    'webhook-timestamp': timestamp,
    'webhook-signature': keys.map((key) => `v1,${sign(key)}`).join(' '),
  }
}

/** Webhook events are named after the status that they begin, except `job.started`. */
function statusOf(type: DurableEventType): string {
  return type === 'job.started' ? 'in_progress' : type.replace(/^job\./, '')
}
