import type { DeliveryTry, WebhookDelivery } from '#schemas/durable-job.ts'

/** State of webhook messages; terminal moves write them (`pending`). */
export interface Webhooks {
  /** Takes due messages under a lease until their `next_at_ms`. Of one job only the first that is pending. */
  takeDeliveries(limit: number, leaseMs: number): Promise<WebhookDelivery[]>
  /**
   * Records what became of a message that was taken.
   *
   * @param history The last tries with this one, at most `DELIVERY_TRIES_MAX`; undefined: nothing was sent, so that tries, status
   *   and history stay.
   * @returns False if another process has taken the message since
   */
  recordDelivery(
    taken: Pick<WebhookDelivery, 'id' | 'next_at_ms'>,
    outcome: DeliveryOutcome,
    history?: readonly DeliveryTry[],
  ): Promise<boolean>
  listDeliveries(jobId: string): Promise<WebhookDelivery[]>
}

/** The receiver has the message, the next try is in `retryInMs`, or there is none. */
export type DeliveryOutcome =
  | { readonly state: 'delivered'; readonly status: number }
  | { readonly state: 'pending'; readonly retryInMs: number; readonly status?: number; readonly error?: string }
  | { readonly state: 'failed'; readonly status?: number; readonly error: string }
