import { z } from 'zod'
import { Metadata } from '#schemas/record.ts'
import { Priority } from './durable-job.ts'

const WEEK_SECONDS = 7 * 24 * 3_600

/** Moves of a job that a webhook can be told (docs/webhooks.md). */
export const WebhookEvent = z.enum(['job.started', 'job.completed', 'job.failed', 'job.cancelled', 'job.expired'])

/** Where a job's moves are told (docs/webhooks.md). */
export const Webhook = z.object({
  url: z
    .string()
    .max(2_048)
    .regex(/^\P{Cc}*$/u)
    .describe('No control characters: Postgres refuses NUL'),
  events: z
    .array(WebhookEvent)
    .min(1)
    .max(WebhookEvent.options.length)
    .nullish()
    .describe('Default: the four that end a job'),
})
export type Webhook = z.infer<typeof Webhook>

/** What may be asked of a job beside its call, however it is submitted (docs/jobs.md, Submit). */
export const JobFields = z.object({
  metadata: Metadata.nullish(),
  webhook: Webhook.nullish(),
  priority: Priority.nullish().describe('low waits in the batch lane'),
  expires_after_seconds: z
    .int()
    .min(1)
    .nullish()
    .describe(
      'Deadline, from acceptance or from run_at: the job has ended by then. At most JOB_DEADLINE_MAX_MS, a day by default',
    ),
  start_within_seconds: z.int().min(1).max(WEEK_SECONDS).nullish().describe('Longest wait for its first start'),
  run_at: z.int().min(0).nullish().describe('Unix seconds before which it is not started; at most 7 days ahead'),
  parent_id: z.string().max(64).nullish().describe('Another job of the same key'),
})
export type JobFields = z.infer<typeof JobFields>

/** Body of `POST /v1/jobs` (docs/jobs.md, Submit). */
export const SubmitJob = z.object({
  endpoint: z.string().describe('Path of the call to make, such as /v1/chat/completions'),
  body: z.looseObject({}).describe('Its body; stream: true records output deltas as events'),
  ...JobFields.shape,
})
export type SubmitJob = z.infer<typeof SubmitJob>

/** Query of `GET /v1/jobs`. */
export const ListJobs = z.object({
  limit: z.coerce.number().int().min(1).max(100).default(20),
  after: z.string().max(64).optional().describe('Cursor: last_id of the page before'),
  order: z.enum(['asc', 'desc']).default('desc'),
  status: z.string().max(200).optional().describe('Several with commas between'),
  endpoint: z
    .string()
    .max(200)
    .regex(/^\P{Cc}*$/u)
    .optional()
    .describe('No control characters: Postgres refuses NUL'),
  parent_id: z.string().max(64).optional(),
  group: z.string().max(64).optional().describe('A job or a batch: those that it has others do'),
  include: z.literal('result').optional().describe('Results of those that have completed'),
  beta: z.unknown().optional().describe('Some SDKs put it into every query; ignored everywhere'),
})
export type ListJobs = z.infer<typeof ListJobs>

/** Query of `GET /v1/jobs/{id}/steps`. */
export const ListSteps = z.object({
  after: z.string().optional().describe('Number of the last step that is left out'),
  limit: z.string().optional().describe('Steps of a page, 1 to 20'),
})
