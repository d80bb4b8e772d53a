import { createHmac } from 'node:crypto'
import type { DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'

/** What a receiver gets (docs/webhooks.md, What arrives): thin, the same in every try as long as the job stays as it is. */
export function messageOf(delivery: WebhookDelivery, job: DurableJob): string {
  return JSON.stringify({
    id: delivery.id,
    object: 'event',
    type: delivery.type,
    created_at: Math.floor(delivery.created_at_ms / 1_000),
    data: { id: job.id, status: statusOf(job), endpoint: job.endpoint, metadata: job.metadata },
  })
}

/**
 * Headers of one try by Standard Webhooks 1.0: `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`, one for each key
 * with a space between them, so that a key can be changed without a gap.
 *
 * @param nowMs Time of this try: receivers refuse what is older than five minutes.
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

/** The state as the API shows it: a job that waits for its next attempt is queued, one that waits for children in progress. */
function statusOf({ state, cancel_requested_at_ms }: DurableJob): string {
  if (!TERMINAL.has(state) && cancel_requested_at_ms !== null) return 'cancelling'
  if (state === 'scheduled') return 'queued'
  return state === 'waiting' ? 'in_progress' : state
}
