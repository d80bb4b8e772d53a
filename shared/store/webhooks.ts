import type { DeliveryTry, WebhookDelivery } from '#schemas/durable-job.ts'

/** State of webhook messages; terminal moves write them (`pending`). */
export interface Webhooks {
  /** Takes due messages, each for `leaseMs`, and counts a try. Those of one job in order. */
  takeDeliveries(limit: number, leaseMs: number): Promise<WebhookDelivery[]>
  /**
   * Says how a try went. False: somebody else has taken it since.
   *
   * @param history The last tries with this one, at most `DELIVERY_TRIES_MAX`; undefined: it was none, and they stay as they are.
   */
  recordDelivery(
    id: string,
    tries: number,
    outcome: DeliveryOutcome,
    history?: readonly DeliveryTry[],
  ): Promise<boolean>
  listDeliveries(jobId: string): Promise<WebhookDelivery[]>
}

/** How one try of a webhook message ended: the receiver has it, it is tried again in `retryInMs`, or it is given up. */
export type DeliveryOutcome =
  | { readonly state: 'delivered'; readonly status: number }
  | { readonly state: 'pending'; readonly retryInMs: number; readonly status?: number; readonly error: string }
  | { readonly state: 'failed'; readonly status?: number; readonly error: string }
