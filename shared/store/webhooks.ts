import type { DeliveryTry, WebhookDelivery } from '#schemas/durable-job.ts'

/** Webhook messages. Terminal state transitions create them as `pending`. */
export interface Webhooks {
  /** Takes due messages, each under a lease that ends at its new `next_at_ms`. For each job, only the first pending message is taken. */
  takeDeliveries(limit: number, leaseMs: number): Promise<WebhookDelivery[]>
  /**
   * Records the outcome of a taken message.
   *
   * @param history Recent tries including this one, at most `DELIVERY_TRIES_MAX`; undefined: nothing was sent, and tries, status and history are
   * unchanged.
   * @returns False if another process has taken the message since
   */
  recordDelivery(
    taken: Pick<WebhookDelivery, 'id' | 'next_at_ms'>,
    outcome: DeliveryOutcome,
    history?: readonly DeliveryTry[],
  ): Promise<boolean>
  listDeliveries(jobId: string): Promise<WebhookDelivery[]>
}

export type DeliveryOutcome =
  | { readonly state: 'delivered'; readonly status: number }
  | { readonly state: 'pending'; readonly retryInMs: number; readonly status?: number; readonly error?: string }
  | { readonly state: 'failed'; readonly status?: number; readonly error: string }
