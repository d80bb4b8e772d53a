import { z } from 'zod'
import { recordOf } from '#schemas/record.ts'
import { ErrorBody } from './error.ts'
import { PoolName } from './job.ts'

/** Where a durable job is (docs/design.md, States). On the wire `scheduled` shows as queued, `waiting` as in_progress. */
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

/** Which lane a job waits in: `low` is the batch lane. */
export const Priority = z.enum(['normal', 'low'])
export type Priority = z.infer<typeof Priority>

const Time = z.int().describe('Unix milliseconds of the database')

/** A durable job as the store keeps it, without its request and its result. */
export const DurableJob = z.strictObject({
  id: z.string().startsWith('job_'),
  tenant: z.string().describe('Id of the project the job belongs to'),
  parent_id: z.string().nullable().describe('The job that submitted this one, or the one it runs again'),
  pool: PoolName,
  kind: z.string().describe('What to do in the pool, such as generate'),
  endpoint: z.string().describe('Path of the call it stands for, such as /v1/chat/completions'),
  model: z.string(),
  priority: Priority,
  stream: z.boolean().describe('Output deltas are recorded as events'),
  state: DurableState,
  attempt: z.int().min(0).describe('Executions begun; never lowered; fences the output of older ones'),
  tries: z.int().min(0).describe('Attempts that ended in a retryable failure; budgets retries'),
  crashes: z.int().min(0).describe('Workers that died while they ran it, as far as is known; finds poison'),
  owner: z.string().nullable().describe('Boot id of the worker that runs it, or that ran it last when it is terminal'),
  chunk: z.int().min(0).describe('Writes the owner has made in this attempt'),
  has_output: z.boolean().describe('This attempt, or the last, recorded output'),
  last_seq: z.int().min(0).describe('Number of its latest event'),
  cancel_requested_at_ms: Time.nullable(),
  run_at_ms: Time.describe('It is not started before this'),
  expires_at_ms: Time.describe(
    'It stops waiting at this: its start deadline before the first start, then its deadline; cancelled, the end of its time to write what there is',
  ),
  deadline_ms: Time.describe('No output counts after this and the grace'),
  published_at_ms: Time.nullable().describe('When it was last put on the broker, or was about to be'),
  created_at_ms: Time,
  started_at_ms: Time.nullable().describe('First start'),
  finished_at_ms: Time.nullable(),
  retention_ms: z.int().min(0).describe('How long it is kept after its end'),
  purge_at_ms: Time.nullable(),
  erased_at_ms: Time.nullable().describe('Its request, result and events were erased'),
  progress: z.unknown().describe('The last progress its handler reported'),
  error: ErrorBody.nullable(),
  usage: z.unknown(),
  metadata: recordOf(z.string(), z.string()),
  webhook_url: z.string().nullable(),
  webhook_events: z.array(z.string()).describe('Types of events the webhook wants'),
  request_id: z.string().nullable(),
  traceparent: z.string().nullable(),
  depth: z.int().min(0).describe('Above 0: a child of `parent_id`, that many levels below a job of a caller'),
  children: z.int().min(0).describe('Jobs it has submitted'),
  steps: z.int().min(0).describe('Steps it has done'),
  partial_ms: z
    .int()
    .min(0)
    .nullable()
    .describe('A cancel lets it write what there is, for as long; null: it ends at once'),
})
export type DurableJob = z.infer<typeof DurableJob>

/** What a job's history is made of (docs/jobs.md, Follow it). */
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

/** One numbered event of a durable job. `seq` counts from 1 over all attempts, without gaps. */
export const DurableEvent = z.strictObject({
  job_id: z.string(),
  seq: z.int().min(1),
  attempt: z.int().min(0),
  type: DurableEventType,
  data: z.unknown().describe('Fields of the type; null for the terminal ones, whose data is the job'),
  at_ms: Time,
})
export type DurableEvent = z.infer<typeof DurableEvent>

/** Tries of one message that are kept. */
export const DELIVERY_TRIES_MAX = 20

/** What came of one try of a webhook message. */
export const DeliveryTry = z.strictObject({
  at_ms: Time,
  duration_ms: z.int().min(0),
  status: z.int().nullable().describe('HTTP status; null where there was no answer'),
  error: z.string().nullable().describe('Why it failed; null where it did not'),
})
export type DeliveryTry = z.infer<typeof DeliveryTry>

/** One message to a webhook, and how far it is. */
export const WebhookDelivery = z.strictObject({
  id: z.string().startsWith('evt_').describe('The same in every try, so that receivers can drop repeats'),
  job_id: z.string(),
  tenant: z.string(),
  url: z.string(),
  type: DurableEventType,
  state: z.enum(['pending', 'delivered', 'failed']),
  tries: z.int().min(0),
  next_at_ms: Time,
  status: z.int().nullable().describe('HTTP status of the last try'),
  error: z.string().nullable().describe('Why the last try failed'),
  created_at_ms: Time,
  history: z.array(DeliveryTry).max(DELIVERY_TRIES_MAX).describe('The last tries, oldest first'),
})
export type WebhookDelivery = z.infer<typeof WebhookDelivery>
