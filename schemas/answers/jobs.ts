import { z } from 'zod'
import { Priority } from '#schemas/durable-job.ts'
import { PoolName } from '#schemas/job.ts'
import { ErrorAnswer, listOf, Seconds } from './models.ts'

const JobStatus = z.enum(['queued', 'in_progress', 'cancelling', 'completed', 'failed', 'cancelled', 'expired'])

const Delivery = z.object({
  id: z.string(),
  type: z.string(),
  status: z.string(),
  attempts: z.int(),
  response_status: z.int().nullable(),
  error: z.string().nullable(),
  next_at: Seconds.nullable(),
})

const jobFields = {
  id: z.string(),
  object: z.literal('job'),
  endpoint: z.string(),
  model: z.string(),
  status: JobStatus,
  created_at: Seconds,
  run_at: Seconds.nullable().describe(
    'Time at which the next attempt of a queued job is due, in Unix seconds. null: not delayed',
  ),
  started_at: Seconds.nullable().describe('First start, in Unix seconds'),
  completed_at: Seconds.nullable(),
  failed_at: Seconds.nullable(),
  cancelled_at: Seconds.nullable(),
  expired_at: Seconds.nullable(),
  expires_at: Seconds.describe('Deadline, in Unix seconds: the job ends at this time at the latest'),
  result_expires_at: Seconds.describe('Minimum time until which the result is stored, in Unix seconds'),
  attempt: z.int().describe('Number of attempts that were started'),
  max_attempts: z.int().describe('Maximum attempts that may fail before the job fails'),
  queue: z.object({
    pool: PoolName,
    position: z.int().nullable().describe('Number of jobs ahead in the queue. null: unknown, or the job is not queued'),
  }),
  priority: Priority,
  parent_id: z.string().nullable().describe('Parent job, or the job that this one redrives or replays'),
  child_counts: z
    .object({
      total: z.int(),
      completed: z.int(),
      failed: z.int().describe('Number of requests or child jobs that failed, were cancelled or expired'),
    })
    .optional()
    .describe('Progress of the requests of a batch, or of the child jobs'),
  error: ErrorAnswer.shape.error.extend({ status: z.int() }).nullable(),
  usage: z.unknown().describe('Token usage, in the format of the endpoint'),
  metadata: z.record(z.string(), z.string()),
  stream: z.boolean().describe('Whether output deltas are recorded as events'),
  last_sequence_number: z.int().describe('Sequence number of the latest event'),
  request_id: z.string().nullable().describe('Id of the request that submitted the job'),
  prompt_preview: z
    .string()
    .optional()
    .describe(
      'First 120 characters of the prompt. Present only in lists, for jobs of the project of the key. Absent without a text, and for requests of more than 16 KiB',
    ),
}

const Truncated = z.object({
  beginning: z.string().describe('First part of the JSON text'),
  length: z.int().describe('Length of the whole JSON text'),
})

export const JobAnswer = z.object({
  ...jobFields,
  children: z
    .array(z.object({ id: z.string(), endpoint: z.string(), model: z.string(), status: JobStatus, usage: z.unknown() }))
    .optional(),
  cost_usd: z
    .number()
    .optional()
    .describe('Cost at current prices, including child jobs. Absent in lists and for models without a price'),
  steps: z.array(z.object({ kind: z.string(), cost: z.unknown(), attempt: z.int(), done_at: Seconds })).optional(),
  progress: z.looseObject({}).nullable().describe('Data of the last job.progress event'),
  result: z
    .unknown()
    .optional()
    .describe('Response that a synchronous call would have returned. Absent in lists unless requested'),
  webhook: z.object({ url: z.string(), events: z.array(z.string()), deliveries: z.array(Delivery) }).nullable(),
  urls: z.object({ get: z.string(), result: z.string(), events: z.string(), cancel: z.string() }),
})

export const JobListAnswer = listOf(JobAnswer)

export const JobDeletedAnswer = z.object({ id: z.string(), object: z.literal('job.deleted'), deleted: z.literal(true) })

export const JobEventAnswer = z.looseObject({
  type: z.string(),
  sequence_number: z.int().optional(),
  job_id: z.string().optional(),
  created_at: Seconds.optional(),
})

/** Steps of a composed job: recorded results of searches, child jobs and other external operations. */
export const StepListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      number: z.int(),
      kind: z.string(),
      key: z.string().describe('Key of the step, equal for steps with the same kind and input'),
      input: z.unknown(),
      input_cut: Truncated.nullable().describe(
        'Beginning of an input that is too large for `input`. null: `input` is complete',
      ),
      output: z.unknown(),
      cost: z.unknown(),
      attempt: z.int(),
      done_at: Seconds,
    }),
  ),
  last_number: z.int().nullable(),
  has_more: z.boolean(),
})

export const JobInputAnswer = z.object({
  id: z.string(),
  object: z.literal('job.input'),
  endpoint: z.string(),
  model: z.string(),
  input: z
    .unknown()
    .describe(
      'Body of the request as the caller sent it. An uploaded file is shown as its SHA-256 hash. null if truncated, or if a parent job made the request',
    ),
  input_cut: Truncated.nullable().describe(
    'Beginning of an input that is too large for `input`. null: `input` is complete',
  ),
  attachments: z.int().describe('Number of attached files, such as uploaded audio'),
})

export const WebhookSecretListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      id: z.string(),
      object: z.literal('webhook_secret'),
      secret: z.string(),
      created_at: Seconds.nullable(),
      is_default: z
        .boolean()
        .describe('Whether this is the default secret of the project, which exists until another secret is created'),
    }),
  ),
})

export const OperatorJobAnswer = z.object({
  ...jobFields,
  project: z.string(),
  kind: z.string(),
  worker: z.string().nullable(),
  tries: z.int().describe('Attempts that ended in a retryable error'),
  crashes: z.int().describe('Workers that crashed during the job'),
  progress: z.object({ phase: z.unknown(), percent: z.unknown() }).nullable(),
  webhook: z.object({ host: z.string().nullable(), events: z.array(z.string()) }).nullable(),
  waits: z
    .object({ reason: z.string(), message: z.string(), until: Seconds.nullable(), ahead: z.int().nullable() })
    .nullable()
    .optional()
    .describe('Reason why the job has not started. Absent in lists'),
  urls: z.object({ get: z.string(), cancel: z.string(), redrive: z.string() }),
})

export const OperatorJobListAnswer = listOf(OperatorJobAnswer)

export const BulkJobsAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      id: z.string(),
      object: z.literal('job'),
      project: z.string(),
      model: z.string(),
      status: JobStatus,
      new_id: z.string().optional().describe('Id of the new job that the redrive created. Absent for a cancel'),
      error: z.object({ code: z.string(), message: z.string() }).optional(),
    }),
  ),
  dry_run: z.boolean(),
  has_more: z.boolean(),
})
