import { z } from 'zod'
import { Priority } from '#schemas/durable-job.ts'
import { PoolName } from '#schemas/job.ts'
import { ErrorAnswer } from './errors.ts'
import { listOf, Seconds } from './shapes.ts'

/** Where a job is, on the wire. */
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
  run_at: Seconds.nullable().describe('Until when it waits, where it waits for a time'),
  started_at: Seconds.nullable(),
  completed_at: Seconds.nullable(),
  failed_at: Seconds.nullable(),
  cancelled_at: Seconds.nullable(),
  expired_at: Seconds.nullable(),
  expires_at: Seconds.describe('Its deadline: it has ended by then'),
  result_expires_at: Seconds.describe('Until when its result is kept at least'),
  attempt: z.int().describe('Executions begun'),
  max_attempts: z.int(),
  queue: z.object({ pool: PoolName, position: z.int().nullable().describe('Jobs that would be started before it') }),
  priority: Priority,
  parent_id: z.string().nullable(),
  child_counts: z
    .object({ total: z.int(), completed: z.int(), failed: z.int().describe('Ended otherwise') })
    .optional()
    .describe('How far those are that it has others do: the requests of a batch, else its children'),
  error: ErrorAnswer.shape.error.extend({ status: z.int() }).nullable(),
  usage: z.unknown(),
  metadata: z.record(z.string(), z.string()),
  stream: z.boolean(),
  last_sequence_number: z.int(),
  request_id: z.string().nullable(),
}

const Cut = z.object({ beginning: z.string(), length: z.int() })

/** A durable job (docs/jobs.md, Wait for it). */
export const JobAnswer = z.object({
  ...jobFields,
  children: z
    .array(z.object({ id: z.string(), endpoint: z.string(), model: z.string(), status: JobStatus, usage: z.unknown() }))
    .optional(),
  cost_usd: z
    .number()
    .optional()
    .describe('What it has cost by the prices of today, its children with it; left out in lists, and without prices'),
  steps: z.array(z.object({ kind: z.string(), cost: z.unknown(), attempt: z.int(), done_at: Seconds })).optional(),
  progress: z.looseObject({}).nullable().describe('What its last job.progress said'),
  result: z.unknown().optional().describe('What the plain call would have answered; left out in lists'),
  webhook: z.object({ url: z.string(), events: z.array(z.string()), deliveries: z.array(Delivery) }).nullable(),
  urls: z.object({ get: z.string(), result: z.string(), events: z.string(), cancel: z.string() }),
})

/** A page of jobs. */
export const JobListAnswer = listOf(JobAnswer)

/** What is left of a job that was deleted. */
export const JobDeletedAnswer = z.object({ id: z.string(), object: z.literal('job.deleted'), deleted: z.literal(true) })

/** One event of a durable job (docs/jobs.md, Follow it). */
export const JobEventAnswer = z.looseObject({
  type: z.string(),
  sequence_number: z.int().optional(),
  job_id: z.string().optional(),
  created_at: Seconds.optional(),
})

/** What a composed job asked for outside. */
export const StepListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      number: z.int(),
      kind: z.string(),
      key: z.string(),
      input: z.unknown(),
      input_cut: Cut.nullable(),
      output: z.unknown(),
      cost: z.unknown(),
      attempt: z.int(),
      done_at: Seconds,
    }),
  ),
  last_number: z.int().nullable(),
  has_more: z.boolean(),
})

/** What a job was asked. */
export const JobInputAnswer = z.object({
  id: z.string(),
  object: z.literal('job.input'),
  endpoint: z.string(),
  model: z.string(),
  input: z.unknown().describe('In the form that its kind has inside the service; null where it is cut'),
  input_cut: Cut.nullable().describe('How a large one begins, and its bytes of JSON'),
  attachments: z.int().describe('Files that belong to it, such as uploaded audio'),
})

/** What signs the webhooks of a project. */
export const WebhookSecretListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      id: z.string(),
      object: z.literal('webhook_secret'),
      secret: z.string(),
      created_at: Seconds.nullable(),
      is_default: z.boolean(),
    }),
  ),
})

/** A job as operators see it: without what was asked and answered. */
export const OperatorJobAnswer = z.object({
  ...jobFields,
  project: z.string(),
  kind: z.string(),
  worker: z.string().nullable(),
  tries: z.int(),
  crashes: z.int(),
  progress: z.object({ phase: z.unknown(), percent: z.unknown() }).nullable(),
  webhook: z.object({ host: z.string().nullable(), events: z.array(z.string()) }).nullable(),
  waits: z
    .object({ reason: z.string(), message: z.string(), until: Seconds.nullable(), ahead: z.int().nullable() })
    .nullable()
    .optional()
    .describe('Why it is not started; left out in lists'),
  urls: z.object({ get: z.string(), cancel: z.string(), redrive: z.string() }),
})

/** A page of the jobs of all projects. */
export const OperatorJobListAnswer = listOf(OperatorJobAnswer)

/** Which jobs were cancelled or run again, and what came of each. */
export const ManyJobsAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      id: z.string(),
      object: z.literal('job'),
      project: z.string(),
      model: z.string(),
      status: JobStatus,
      new_id: z.string().optional(),
      error: z.object({ code: z.string(), message: z.string() }).optional(),
    }),
  ),
  dry_run: z.boolean(),
  has_more: z.boolean(),
})
