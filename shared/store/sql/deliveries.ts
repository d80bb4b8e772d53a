import type { DeliveryTry, WebhookDelivery } from '#schemas/durable-job.ts'
import type { DeliveryOutcome } from '#shared/store/webhooks.ts'
import { deliveryOf, jsonText } from './rows.ts'
import type { Row, SqlDatabase } from './sql.ts'
import * as statements from './statements.ts'

/** Due messages per statement, and maximum statements per call that postpone blocked messages. */
const LOOK = 100
const PUT_OFF_MAX = 30

export async function takeDeliveries(db: SqlDatabase, limit: number, leaseMs: number): Promise<WebhookDelivery[]> {
  const taken: Row[] = []
  const look = Math.max(LOOK, limit)
  for (let tries = 0; tries < PUT_OFF_MAX; tries++) {
    const params = { limit: limit - taken.length, lease_ms: leaseMs, look }
    taken.push(...(await db.pick(statements.takeDeliveries, params)))
    if (taken.length === limit) break
    // Fewer than the limit: all remaining due messages are taken by others.
    if ((await db.pick(statements.putOffDeliveries, { look })).length < look) break
  }
  return taken.map(deliveryOf)
}

export async function recordDelivery(
  db: SqlDatabase,
  taken: Pick<WebhookDelivery, 'id' | 'next_at_ms'>,
  outcome: DeliveryOutcome,
  history?: readonly DeliveryTry[],
): Promise<boolean> {
  const isPending = outcome.state === 'pending'
  const [row] = await db.run(statements.RECORD_DELIVERY, {
    id: taken.id,
    taken_until_ms: taken.next_at_ms,
    state: outcome.state,
    status: outcome.status ?? null,
    error: outcome.state === 'delivered' ? null : (outcome.error ?? null),
    history: jsonText(history),
    retry_in_ms: isPending ? Math.ceil(outcome.retryInMs) : 0,
  })
  if (row && !isPending) await db.run(statements.RELEASE_DELIVERY, { job_id: String(row.job_id) })
  return row !== undefined
}
