import { z } from 'zod'
import { PoolName } from '#schemas/job.ts'
import { listOf, Seconds } from './shapes.ts'

const Count = z.int().min(0)
const Lanes = z.object({ normal: Count, low: Count })
const Work = z.object({ kind: z.string(), model: z.string() })

/** A record that no worker could run, without what it asks for. */
export const DeadLetterAnswer = z.object({
  id: z.string(),
  object: z.literal('dead_letter'),
  pool: z.string().nullable(),
  position: z.unknown(),
  bytes: Count,
  reason: z.string(),
  message: z.string(),
  job_id: z.string().nullable(),
  kind: z.string().nullable(),
  model: z.string().nullable(),
  project: z.string().nullable(),
  redrivable: z.boolean(),
  created_at: Seconds,
})

/** A page of dead letters. */
export const DeadLetterListAnswer = listOf(DeadLetterAnswer)

/** Which dead letters went back to their queues, or would. */
export const DeadLettersRedrivenAnswer = z.object({
  object: z.literal('list'),
  data: z.array(DeadLetterAnswer),
  dry_run: z.boolean(),
  last_id: z.string().nullable().describe('Cursor of older ones'),
  has_more: z.boolean(),
})

/** A dead letter that is shown no more. */
export const DeadLetterDeletedAnswer = z.object({
  id: z.string(),
  object: z.literal('dead_letter.deleted'),
  deleted: z.literal(true),
})

/** A message to a webhook, and how far it is. */
export const DeliveryAnswer = z.object({
  id: z.string(),
  object: z.literal('webhook_delivery'),
  project: z.string(),
  job_id: z.string(),
  type: z.string(),
  host: z.string().nullable(),
  status: z.string(),
  attempts: Count,
  response_status: z.int().nullable(),
  error: z.string().nullable(),
  next_at: Seconds.nullable(),
  created_at: Seconds,
  history: z
    .array(
      z.object({
        at: Seconds,
        duration_ms: Count,
        response_status: z.int().nullable().describe('null: there was no answer'),
        error: z.string().nullable(),
      }),
    )
    .describe('The last 20 tries, oldest first'),
})

/** A page of such messages. */
export const DeliveryListAnswer = listOf(DeliveryAnswer)

/** A process that is alive, as the ingress hears it. */
export const WorkerAnswer = z.object({
  id: z.string(),
  object: z.literal('worker'),
  role: z.string(),
  version: z.string(),
  slots: Count.describe('Jobs that it takes at once, whatever their models; 0 for what is no worker'),
  capacity: Count.describe(
    'Jobs that can run at once: what its models bear together, where that is less than its slots',
  ),
  running: Count,
  draining: z.boolean(),
  silent: z.boolean(),
  aside: Count.nullable(),
  host: z.string().nullable(),
  pid: z.int().nullable(),
  last_seen_at: Seconds,
  models: z.array(z.string()).nullable(),
  bounds: z.array(Work.extend({ capacity: z.int() })),
  waiting: z.array(Work.extend({ priority: z.string() })),
  found: z
    .array(
      z.object({
        model: z.string(),
        server: Count.describe('Its place among the servers of the model'),
        generation: z
          .int()
          .min(1)
          .describe('How often the limit was lowered: of what workers say the highest is newest'),
        limit: z.int().min(1),
      }),
    )
    .describe('Calls at once that servers were found to bear, from all workers together'),
  failing: z.array(z.string()).describe('Models whose servers all keep failing here, so that their calls are refused'),
})

/** Every process that is alive. */
export const WorkerListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(WorkerAnswer),
  has_more: z.literal(false),
})

/** Who works in each pool, what waits and for how long. */
export const PoolListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      id: PoolName,
      object: z.literal('pool'),
      paused: z.array(z.object({ what: z.enum(['model', 'pool']), id: z.string() })),
      workers: Count,
      draining: Count,
      slots: Count,
      free: Count,
      running: Count,
      attached: z.object({ queued: Count, running: Count }),
      durable: z.object({ queued: Lanes, scheduled: Count, in_progress: Count, waiting: Count }).nullable(),
      lag: z.object({ normal: Count.nullable(), low: Count.nullable() }),
      oldest_queued_at: Seconds.nullable(),
    }),
  ),
  has_more: z.literal(false),
})

/** What was looked at, and what is wrong with it. */
export const FindingListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      check: z.string(),
      status: z.enum(['ok', 'skip', 'warn', 'fail']),
      message: z.string(),
      fix: z.string().nullable().describe('What to do about it'),
      details: z.array(z.string()),
    }),
  ),
  has_more: z.literal(false),
})

const Paused = z.object({
  object: z.literal('pause'),
  what: z.enum(['model', 'pool']),
  id: z.string(),
  kept: z.boolean().describe('It outlives a restart'),
})

/** What is paused. */
export const PauseListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(Paused.extend({ by_key: z.string(), since: Seconds })),
  has_more: z.literal(false),
})

/** A pause that was begun or ended. */
export const PauseAnswer = Paused.extend({ paused: z.boolean() })
