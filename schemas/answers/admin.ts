import { z } from 'zod'
import { PoolName } from '#schemas/job.ts'
import { listOf, Seconds } from './models.ts'

const Count = z.int().min(0)
const CountByPriority = z.object({ normal: Count, low: Count })
const Work = z.object({ kind: z.string(), model: z.string() })

/** A queue record that no worker could run (dead letter). The body of its job is not returned. */
export const DeadLetterAnswer = z.object({
  id: z.string(),
  object: z.literal('dead_letter'),
  pool: z.string().nullable(),
  position: z.unknown().describe('Position of the record in its queue, as in the log of the worker'),
  bytes: Count.describe('Size of the record'),
  reason: z.string(),
  message: z.string(),
  job_id: z.string().nullable(),
  kind: z.string().nullable(),
  model: z.string().nullable(),
  project: z.string().nullable(),
  redrivable: z.boolean().describe('true: a redrive returns the record to its queue'),
  created_at: Seconds,
})

export const DeadLetterListAnswer = listOf(DeadLetterAnswer)

export const DeadLettersRedrivenAnswer = z.object({
  object: z.literal('list'),
  data: z.array(DeadLetterAnswer),
  dry_run: z.boolean(),
  last_id: z.string().nullable().describe('Cursor of the next, older dead letters'),
  has_more: z.boolean(),
})

export const DeadLetterDeletedAnswer = z.object({
  id: z.string(),
  object: z.literal('dead_letter.deleted'),
  deleted: z.literal(true),
})

export const DeliveryAnswer = z.object({
  id: z.string(),
  object: z.literal('webhook_delivery'),
  project: z.string(),
  job_id: z.string().nullable().describe('Id of the job. null: the message is an alert of a budget'),
  type: z.string(),
  host: z.string().nullable(),
  status: z.string().describe('State of the delivery: pending, delivered or failed'),
  attempts: Count,
  response_status: z.int().nullable().describe('HTTP status of the last attempt. null: no response'),
  error: z.string().nullable().describe('Error of the last attempt'),
  next_at: Seconds.nullable().describe('Time of the next attempt, in Unix seconds'),
  created_at: Seconds,
  history: z
    .array(
      z.object({
        at: Seconds,
        duration_ms: Count,
        response_status: z.int().nullable().describe('null: no response'),
        error: z.string().nullable(),
      }),
    )
    .describe('The last 20 attempts, oldest first'),
})

export const DeliveryListAnswer = listOf(DeliveryAnswer)

/** A live process, as described by its last heartbeat. */
export const WorkerAnswer = z.object({
  id: z.string(),
  object: z.literal('worker'),
  role: z.string(),
  version: z.string(),
  slots: Count.describe('Maximum concurrent jobs of all models together. 0: the process is not a worker'),
  capacity: Count.describe('Maximum concurrent jobs after the limits of the models'),
  running: Count.describe('Jobs that run now'),
  draining: z.boolean().describe('Whether the worker drains, so that it starts no more jobs'),
  suspected: z.boolean().describe('Whether the heartbeats of the process are late'),
  parked_calls: Count.nullable().describe(
    'Calls that wait in the worker, because their model is at its concurrency limit',
  ),
  host: z.string().nullable(),
  pid: z.int().nullable(),
  last_seen_at: Seconds,
  models: z.array(z.string()).nullable().describe('Ids of the models that the worker runs. null: any model'),
  concurrency_limits: z
    .array(Work.extend({ capacity: z.int() }))
    .describe('Concurrency limits of models, if below `slots`'),
  backlog: z.array(Work.extend({ priority: z.string() })).describe('Queues with jobs that wait for a free slot'),
  adaptive_limits: z
    .array(
      z.object({
        model: z.string(),
        server: Count.describe('Index of the server in the `base_urls` of the model'),
        generation: z
          .int()
          .min(1)
          .describe('Number of times the limit was lowered. The highest generation of all workers is the current one'),
        limit: z.int().min(1).describe('Maximum concurrent calls to the server'),
      }),
    )
    .describe('Adaptive concurrency limits of upstream servers, for all workers together'),
  open_circuits: z
    .array(z.string())
    .describe('Models whose circuit breakers on all servers are open: calls are rejected, or the next call is a trial'),
})

export const WorkerListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(WorkerAnswer),
  has_more: z.literal(false),
})

const CachedPrompts = z.object({
  input_tokens: Count.describe('Prompt tokens of all workers since they opened the model'),
  cached_tokens: Count.describe('Prompt tokens that were read from a prefix cache'),
  cached_share: z
    .number()
    .nullable()
    .describe('`cached_tokens` / `input_tokens`. null: no server has reported cached tokens'),
})

export const ModelStateListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    CachedPrompts.extend({
      id: z.string(),
      object: z.literal('model.state'),
      pool: PoolName,
      affinity: z.enum(['auto', 'off']),
      servers: z.array(
        CachedPrompts.extend({
          server: Count.describe('Index in the `base_urls` of the model'),
          host: z.string().describe('Host and port'),
          weight: z.number(),
        }),
      ),
    }),
  ),
  has_more: z.literal(false),
})

export const PoolListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      id: PoolName,
      object: z.literal('pool'),
      paused: z.array(z.object({ target: z.enum(['model', 'pool']), id: z.string() })),
      workers: Count,
      draining: Count,
      slots: Count,
      free: Count.describe('Free slots'),
      models: z
        .array(z.object({ id: z.string(), limit: Count, running: Count, queued: Count, full: z.boolean() }))
        .describe(
          'Models of the pool. `limit`: maximum concurrent calls and jobs on all workers, by slots, concurrency limits and adaptive limits. `full`: a worker reports jobs that wait because the model is at its limit',
        ),
      running: Count,
      calls: z.object({ queued: Count, running: Count }).describe('Synchronous calls of this ingress'),
      jobs: z
        .object({ queued: CountByPriority, scheduled: Count, in_progress: Count, waiting: Count })
        .nullable()
        .describe('Durable jobs. `waiting`: jobs that wait for child jobs. null: this deployment has no durable jobs'),
      lag: z
        .object({ normal: Count.nullable(), low: Count.nullable() })
        .describe('Records at the broker that no worker has acknowledged, by priority'),
      oldest_queued_at: Seconds.nullable().describe(
        'Time at which the oldest queued job entered its queue, in Unix seconds',
      ),
    }),
  ),
  has_more: z.literal(false),
})

const FailureCount = z.object({ failed: Count, calls: Count })

const RequestCount = z.object({ name: z.string(), requests: z.int() })

export const FindingListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      check: z.string(),
      status: z.enum(['ok', 'skip', 'warn', 'fail']),
      message: z.string(),
      remediation: z.string().nullable().describe('Remediation'),
      details: z.array(z.string()),
      model: z.string().nullable().describe('Model that the finding is about'),
      error_codes: z
        .array(z.string())
        .default([])
        .describe('Error codes of the requests that the finding is about. Empty: not about single codes'),
      title: z.string().nullable().describe('Short title. null: the message is short'),
      summary: z
        .string()
        .nullable()
        .default(null)
        .describe('Counts in one phrase, such as: 78 of 92 calls failed in the last hour, mostly upstream_error'),
      cause: z.string().nullable().describe('Cause in one sentence, such as the most frequent error message'),
      window_start: Seconds.nullable()
        .default(null)
        .describe('Only requests that ended since then are counted, in Unix seconds. null: not about requests'),
      not_sent: z
        .int()
        .min(0)
        .default(0)
        .describe('Failed requests of the window that were not sent, because the server was paused after failures'),
      since: Seconds.nullable().describe('Start of the problem, in Unix seconds. null: unknown'),
      trend: FailureCount.extend({
        is_lower_bound: z
          .boolean()
          .describe('true: an hour had more calls than were read, or the problem began before the first of the hours'),
        last_failure_at: Seconds,
        verdict: z
          .enum(['new', 'worse', 'better', 'steady'])
          .default('new')
          .describe('Failed share of the last hour compared with that of the hour before; new: no calls before'),
        last_hour: FailureCount.nullable().default(null),
        previous_hour: FailureCount.nullable().describe('Hour before the last hour. null: the failures began later'),
        hours: z.array(FailureCount.extend({ at: Seconds })).describe('Clock hours since the start, the oldest first'),
      })
        .nullable()
        .default(null)
        .describe('Calls of a failing model since the start of the problem, at most 24 hours. null: no failing model'),
      errors: z.array(RequestCount).default([]).describe('Failed requests by error code, the most frequent first'),
      projects: z.array(RequestCount).describe('Failed requests by project name, the most affected first'),
    }),
  ),
  has_more: z.literal(false),
})

const Paused = z.object({
  object: z.literal('pause'),
  target: z.enum(['model', 'pool']),
  id: z.string(),
  persistent: z.boolean().describe('The pause survives a restart'),
})

export const PauseListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(Paused.extend({ by_key: z.string().describe('Id of the key that paused'), since: Seconds })),
  has_more: z.literal(false),
})

export const PauseAnswer = Paused.extend({ paused: z.boolean() })
