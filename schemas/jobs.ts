import { z } from 'zod'
import { Priority } from './durable-job.ts'
import { Metadata } from './lib/record.ts'

const WEEK_SECONDS = 7 * 24 * 3_600

/** State transitions that a webhook can report (docs/guides/webhooks.md). */
export const WebhookEvent = z.enum(['job.started', 'job.completed', 'job.failed', 'job.cancelled', 'job.expired'])

export const Webhook = z.object({
  url: z
    .string()
    .max(2_048)
    .regex(/^\P{Cc}*$/u)
    .describe('URL that receives the webhook messages'),
  events: z
    .array(WebhookEvent)
    .min(1)
    .max(WebhookEvent.options.length)
    .nullish()
    .describe('Default: completed, failed, cancelled and expired'),
})
export type Webhook = z.infer<typeof Webhook>

/** Job options that every endpoint for submitting jobs accepts (docs/guides/jobs.md, Submit). */
export const JobFields = z.object({
  metadata: Metadata.nullish().describe('At most 16 pairs of text'),
  webhook: Webhook.nullish().describe('Webhook that reports state transitions of the job'),
  priority: Priority.nullish().describe('low: a quarter of the slots while normal jobs wait. Default: normal'),
  expires_after_seconds: z
    .int()
    .min(1)
    .nullish()
    .describe(
      'Deadline, in seconds after acceptance or after run_at. Default: 1 hour. Maximum: JOB_DEADLINE_MAX_MS, by default 24 hours',
    ),
  start_within_seconds: z
    .int()
    .min(1)
    .max(WEEK_SECONDS)
    .nullish()
    .describe('Maximum wait for the first start, in seconds. After it, the job expires'),
  run_at: z.int().min(0).nullish().describe('Earliest start, in Unix seconds. Maximum: 7 days ahead'),
  parent_id: z.string().max(64).nullish().describe('Id of a parent job of the same project'),
})
export type JobFields = z.infer<typeof JobFields>

export const SubmitJob = z.object({
  endpoint: z.string().describe('Path of the endpoint to call, such as /v1/chat/completions'),
  body: z.looseObject({}).describe('Body of the call. stream: true records output deltas as events'),
  ...JobFields.shape,
})
export type SubmitJob = z.infer<typeof SubmitJob>

export const IncludeChildren = z
  .enum(['true', 'false'])
  .optional()
  .describe('true: also list the child jobs of batches and of other jobs. Default: only with parent_id or group')

export const ListJobs = z.object({
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum jobs per page'),
  after: z.string().max(64).optional().describe('Cursor: last_id of the previous page'),
  order: z.enum(['asc', 'desc']).default('desc').describe('By creation time'),
  status: z
    .string()
    .max(200)
    .optional()
    .describe(
      'Comma-separated job statuses. `queued` includes `scheduled` jobs, which wait for run_at, and `retrying` jobs, which wait for the next attempt. Default: all',
    ),
  endpoint: z
    .string()
    .max(200)
    .regex(/^\P{Cc}*$/u)
    .optional()
    .describe('Only jobs of this endpoint path'),
  parent_id: z.string().max(64).optional().describe('Only child jobs and redrives of this job'),
  group: z.string().max(64).optional().describe('Id of a job or batch: only the jobs that it has created'),
  include_children: IncludeChildren,
  include: z.literal('result').optional().describe('Include the results of completed jobs'),
  beta: z.unknown().optional().describe('Ignored. Some SDKs add this parameter to every query'),
})
export type ListJobs = z.infer<typeof ListJobs>

export const ListSteps = z.object({
  after: z.string().optional().describe('Cursor: last_number of the previous page'),
  limit: z.string().optional().describe('Maximum steps per page, 1 to 20'),
})
