import type { WebhookDelivery } from '#schemas/durable-job.ts'

/** State of webhook messages; terminal moves write them (`pending`). */
export interface Webhooks {
  /** Takes due messages, each for `leaseMs`, and counts a try. Those of one job in order. */
  takeDeliveries(limit: number, leaseMs: number): Promise<WebhookDelivery[]>
  /** Says how a try went. False: somebody else has taken it since. */
  recordDelivery(id: string, tries: number, outcome: DeliveryOutcome): Promise<boolean>
  listDeliveries(jobId: string): Promise<WebhookDelivery[]>
}

/** How one try of a webhook message ended: the receiver has it, it is tried again in `retryInMs`, or it is given up. */
export type DeliveryOutcome =
  | { readonly state: 'delivered'; readonly status: number }
  | { readonly state: 'pending'; readonly retryInMs: number; readonly status?: number; readonly error: string }
  | { readonly state: 'failed'; readonly status?: number; readonly error: string }
