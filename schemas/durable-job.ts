/*
 * A durable job as its row in the store, with its events and webhook deliveries.
 *
 * A `scheduled` job waits for the time `run_at_ms`, a `queued` job for a worker, and a `waiting` job for its child jobs. A `waiting` job has no
 * slot. A job `in_progress` runs on one worker. The other states are final (docs/internals/design.md, States). The API reports `scheduled` as
 * `queued`, and `waiting` as `in_progress`.
 *
 * The invariant: `attempt` never decreases, and output of older attempts is rejected. `seq` starts at 1 and continues across attempts, without
 * gaps.
 */

import { z } from 'zod'
import { ErrorBody } from './error.ts'
import { PoolName } from './job.ts'
import { recordOf } from './lib/record.ts'
import { BUDGET_EVENT } from './usage.ts'

export const DurableState = z.enum([
  'queued',
  'scheduled',
  'in_progress',
  'waiting',
  'completed',
  'failed',
  'cancelled',
  'expired',
])
export type DurableState = z.infer<typeof DurableState>

/** Queue priority. Jobs of priority `low` get a quarter of the slots while jobs of priority `normal` wait. */
export const Priority = z.enum(['normal', 'low'])
export type Priority = z.infer<typeof Priority>

const Time = z.int().describe('Unix milliseconds, by the clock of the database')

/** A durable job in the store, without request and result. */
export const DurableJob = z.strictObject({
  id: z.string().startsWith('job_'),
  tenant: z.string().describe('Project id'),
  parent_id: z.string().nullable().describe('Parent job, or the job that this one redrives or replays'),
  pool: PoolName,
  kind: z.string().describe('Work in the pool, such as generate'),
  endpoint: z.string().describe('Endpoint path, such as /v1/chat/completions'),
  model: z.string(),
  priority: Priority,
  stream: z.boolean().describe('Output deltas are recorded as events'),
  state: DurableState,
  attempt: z
    .int()
    .min(0)
    .describe('Number of executions started. Never decreases. Fencing token: output of older attempts is rejected'),
  tries: z.int().min(0).describe('Attempts that ended in a retryable error, counted against the retry budget'),
  crashes: z.int().min(0).describe('Known worker crashes during the job. Detects poison jobs'),
  owner: z.string().nullable().describe('Boot id of the worker that runs the job. Terminal jobs: that ran it last'),
  chunk: z.int().min(0).describe('Number of writes by the owner in this attempt'),
  has_output: z.boolean().describe('The current or last attempt recorded output'),
  last_seq: z.int().min(0).describe('Sequence number of the latest event'),
  cancel_requested_at_ms: Time.nullable(),
  run_at_ms: Time.describe('Earliest start'),
  expires_at_ms: Time.describe(
    'Expiry of the current state: the start deadline before the first start, then the deadline. Cancelling: end of the grace period for a partial result',
  ),
  deadline_ms: Time.describe('Deadline. Output after the deadline and its grace period is rejected'),
  published_at_ms: Time.nullable().describe('Time of the last publication to the broker, written before the send'),
  created_at_ms: Time,
  started_at_ms: Time.nullable().describe('First start'),
  finished_at_ms: Time.nullable(),
  retention_ms: z.int().min(0).describe('Retention after the end, in milliseconds'),
  purge_at_ms: Time.nullable(),
  erased_at_ms: Time.nullable().describe('Time at which request, result and events were erased'),
  progress: z.unknown().describe('Last reported progress'),
  error: ErrorBody.nullable(),
  usage: z.unknown(),
  metadata: recordOf(z.string(), z.string()),
  webhook_url: z.string().nullable(),
  webhook_events: z.array(z.string()).describe('Event types that the webhook receives'),
  request_id: z.string().nullable(),
  traceparent: z.string().nullable(),
  depth: z.int().min(0).describe('Levels below the job of the client. Above 0: `parent_id` is the parent job'),
  children: z.int().min(0).describe('Number of submitted child jobs'),
  steps: z.int().min(0).describe('Number of completed steps'),
  partial_ms: z
    .int()
    .min(0)
    .nullable()
    .describe('Grace period after a cancel for a partial result, in milliseconds. null: the job ends at once'),
})
export type DurableJob = z.infer<typeof DurableJob>

export const DurableEventType = z.enum([
  'job.queued',
  'job.started',
  'job.retrying',
  'job.waiting',
  'job.progress',
  'job.output.delta',
  'job.cancelling',
  'job.completed',
  'job.failed',
  'job.cancelled',
  'job.expired',
])
export type DurableEventType = z.infer<typeof DurableEventType>

export const DurableEvent = z.strictObject({
  job_id: z.string(),
  seq: z.int().min(1),
  attempt: z.int().min(0),
  type: DurableEventType,
  data: z.unknown().describe('Fields by type. null for terminal events, whose data is the job'),
  at_ms: Time,
})
export type DurableEvent = z.infer<typeof DurableEvent>

/** Maximum number of delivery attempts that are stored per webhook message. */
export const DELIVERY_TRIES_MAX = 20

export const DeliveryTry = z.strictObject({
  at_ms: Time,
  duration_ms: z.int().min(0),
  status: z.int().nullable().describe('HTTP status. null: no response'),
  error: z.string().nullable().describe('Error. null: success'),
})
export type DeliveryTry = z.infer<typeof DeliveryTry>

export const WebhookDelivery = z.strictObject({
  id: z
    .string()
    .startsWith('evt_')
    .describe('Message id. Equal in all attempts, so that receivers can drop duplicates'),
  job_id: z.string(),
  tenant: z.string(),
  url: z.string(),
  type: z.union([DurableEventType, z.literal(BUDGET_EVENT)]),
  state: z.enum(['pending', 'delivered', 'failed']),
  tries: z.int().min(0),
  next_at_ms: Time,
  status: z.int().nullable().describe('HTTP status of the last attempt'),
  error: z.string().nullable().describe('Error of the last attempt'),
  created_at_ms: Time,
  data: z.unknown().describe('Data of a message without a job. null: the message reports an event of its job'),
  history: z.array(DeliveryTry).max(DELIVERY_TRIES_MAX).describe('Last attempts, oldest first'),
})
export type WebhookDelivery = z.infer<typeof WebhookDelivery>
