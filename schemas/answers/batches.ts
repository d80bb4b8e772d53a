import { z } from 'zod'
import { listOf, Seconds } from './models.ts'

const Count = z.int().min(0)

export const FileAnswer = z.object({
  id: z.string(),
  object: z.literal('file'),
  bytes: Count,
  created_at: Seconds,
  expires_at: Seconds,
  filename: z.string(),
  purpose: z.string(),
  status: z.literal('processed'),
  status_details: z.null(),
})

export const FileListAnswer = listOf(FileAnswer)

export const FileDeletedAnswer = z.object({ id: z.string(), object: z.literal('file'), deleted: z.literal(true) })

export const BatchAnswer = z.object({
  id: z.string(),
  object: z.literal('batch'),
  endpoint: z.string(),
  model: z.string().nullable(),
  errors: z
    .object({
      object: z.literal('list'),
      data: z.array(
        z.object({ code: z.string(), message: z.string(), param: z.string().nullable(), line: z.int().nullable() }),
      ),
    })
    .nullable(),
  input_file_id: z.string().nullable(),
  completion_window: z.string(),
  status: z.enum([
    'validating',
    'in_progress',
    'finalizing',
    'cancelling',
    'completed',
    'failed',
    'expired',
    'cancelled',
  ]),
  output_file_id: z.string().nullable(),
  error_file_id: z.string().nullable(),
  created_at: Seconds,
  in_progress_at: Seconds.nullable(),
  expires_at: Seconds,
  finalizing_at: Seconds.nullable(),
  completed_at: Seconds.nullable(),
  failed_at: Seconds.nullable(),
  expired_at: Seconds.nullable(),
  cancelling_at: Seconds.nullable(),
  cancelled_at: Seconds.nullable(),
  request_counts: z.object({ total: Count, completed: Count, failed: Count }),
  invalid_answers: Count.nullable().describe(
    'Completed requests whose answer is none of the choices of the table, or has no fields for its columns. Not part of the OpenAI API. null: the batch has not ended',
  ),
  progress: z
    .object({
      requests_per_second: z
        .number()
        .nullable()
        .describe(
          'Rate over the last 5 minutes, or over 30 s if 100 requests ended in them. null: too few requests have ended to compute the rate',
        ),
      estimated_end_at: Seconds.nullable().describe(
        'Estimated end of the batch, from requests_per_second and the remaining requests',
      ),
      estimated_end_range: z
        .object({ earliest: Seconds, latest: Seconds })
        .nullish()
        .describe('Rough estimate of the end after the first answers, until there is a rate. Otherwise null'),
    })
    .nullish()
    .describe('Progress of the requests, which is not part of the OpenAI API. null: no requests run'),
  waiting_for: z.string().nullish().describe('Limit, budget or failure that delays the remaining requests. null: none'),
  usage: z
    .object({
      input_tokens: Count,
      input_tokens_details: z.object({ cached_tokens: Count }),
      output_tokens: Count,
      output_tokens_details: z.object({ reasoning_tokens: Count }),
      total_tokens: Count,
    })
    .nullable(),
  cost_usd: z
    .number()
    .min(0)
    .nullable()
    .describe(
      'Cost of the completed requests, which is not part of the OpenAI API. null: the batch has not ended, or its model has no price',
    ),
  metadata: z.record(z.string(), z.string()),
})

export const BatchListAnswer = listOf(BatchAnswer)

/** A batch of any project, in the admin API. A batch of messages has the id `msgbatch_…`. */
export const AdminBatchAnswer = BatchAnswer.extend({ project: z.string(), project_name: z.string().nullable() })

export const AdminBatchListAnswer = listOf(AdminBatchAnswer)

const Time = z.string().describe('RFC 3339 timestamp')

export const MessageBatchAnswer = z.object({
  id: z.string(),
  type: z.literal('message_batch'),
  processing_status: z.enum(['in_progress', 'canceling', 'ended']),
  request_counts: z.object({ processing: Count, succeeded: Count, errored: Count, canceled: Count, expired: Count }),
  created_at: Time,
  expires_at: Time,
  ended_at: Time.nullable(),
  cancel_initiated_at: Time.nullable(),
  archived_at: z.null(),
  results_url: z.string().nullable(),
})

export const MessageBatchListAnswer = z.object({
  data: z.array(MessageBatchAnswer),
  has_more: z.boolean(),
  first_id: z.string().nullable(),
  last_id: z.string().nullable(),
})

export const MessageBatchDeletedAnswer = z.object({ id: z.string(), type: z.literal('message_batch_deleted') })

/** Body of `POST /v1/messages/batches`. The handler reads the requests one at a time from the stream. */
export const CreateMessageBatch = z.looseObject({
  requests: z
    .array(z.looseObject({ custom_id: z.string().min(1).max(64), params: z.looseObject({}) }))
    .min(1)
    .describe('At most 50,000 requests. `params` is the body of POST /v1/messages'),
})
