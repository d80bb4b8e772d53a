import { z } from 'zod'
import { ErrorBody } from '#schemas/error.ts'
import { ExpiresAfter } from '#schemas/files.ts'
import { Metadata, recordOf } from '#schemas/lib/record.ts'

/** Format of the requests and results: `requests` for OpenAI batches, `messages` for Anthropic message batches. */
export const BatchDialect = z.enum(['requests', 'messages'])
export type BatchDialect = z.infer<typeof BatchDialect>

const Common = {
  dialect: BatchDialect,
  endpoint: z.string().describe('Path of the endpoint that all requests call'),
  input: z.string().describe('Blob with one request per line, owned by the batch'),
  rights: z
    .strictObject({
      key_id: z.string(),
      endpoints: z.array(z.string()).optional(),
      models: z.array(z.string()).optional(),
    })
    .describe('Permissions of the key that created the batch'),
  headers: recordOf(z.string(), z.string()).describe('Headers of the create call that apply to every request'),
  answer_form: z
    .string()
    .optional()
    .describe('Metadata of a table: the allowed answers. Other answers are counted (shared/tables/answers.ts)'),
}

export const BatchRequest = z.strictObject({
  ...Common,
  input_file_id: z.string().nullable().describe('Uploaded input file, which may have been deleted since'),
  completion_window: z.string(),
  requests: z.int().nullable().describe('Number of requests, if counted at creation'),
  keep_ms: z.int().min(0).describe('Retention of the output files, in milliseconds'),
})
export type BatchRequest = z.infer<typeof BatchRequest>

export const BatchPartRange = z.strictObject({
  start: z.int().min(0).describe('Byte offset of the first line'),
  end: z.int().min(0).describe('Byte offset after the last line'),
  line: z.int().min(1).describe('Number of the first line, from 1'),
  requests: z.int().min(1),
})
export type BatchPartRange = z.infer<typeof BatchPartRange>

export const BatchPartRequest = z.strictObject({ ...Common, range: BatchPartRange })
export type BatchPartRequest = z.infer<typeof BatchPartRequest>

export const BatchCounts = z.strictObject({
  completed: z.int(),
  failed: z.int(),
  cancelled: z.int(),
  expired: z.int(),
  invalid: z
    .int()
    .optional()
    .describe('Completed requests whose answer is none of the choices of the table. Unset by earlier versions'),
})
export type BatchCounts = z.infer<typeof BatchCounts>

export const BatchUsage = z.strictObject({
  input_tokens: z.int(),
  cached_tokens: z.int(),
  output_tokens: z.int(),
  reasoning_tokens: z.int(),
})
export type BatchUsage = z.infer<typeof BatchUsage>

/** Result of a job that runs a part of the lines of a batch. The result lines are in blobs whose names begin with the id of this job. */
export const BatchPartResult = z.strictObject({
  counts: BatchCounts,
  usage: BatchUsage,
  output_bytes: z.int(),
  error_bytes: z.int(),
})
export type BatchPartResult = z.infer<typeof BatchPartResult>

/** A validation error of a batch. A batch with errors does not start. */
export const BatchProblem = z.strictObject({
  code: z.string(),
  message: z.string(),
  param: z.string().nullable(),
  line: z.int().nullable(),
})
export type BatchProblem = z.infer<typeof BatchProblem>

export const BatchResult = z.strictObject({
  status: z.enum(['completed', 'failed', 'expired', 'cancelled']),
  model: z.string().nullable(),
  problems: z.array(BatchProblem),
  counts: BatchCounts,
  usage: BatchUsage,
  cost_nanos: z
    .int()
    .nullish()
    .describe(
      'Cost of the completed requests, in billionths of a US dollar. null: the model has no price per token or call',
    ),
  output_file_id: z.string().nullable(),
  error_file_id: z.string().nullable(),
  finalizing_at_ms: z.number().nullable(),
})
export type BatchResult = z.infer<typeof BatchResult>

export const BatchPartEvent = z.strictObject({ type: z.literal('part'), result: BatchPartResult })
export type BatchPartEvent = z.infer<typeof BatchPartEvent>
export const BatchEvent = z.strictObject({ type: z.literal('batch'), result: BatchResult })
export type BatchEvent = z.infer<typeof BatchEvent>

/** Errors of batch requests that were rejected before a job was created. The key is the `custom_id` of the request. */
export const Refusals = recordOf(z.string(), ErrorBody)
export type Refusals = z.infer<typeof Refusals>

export const CreateBatch = z.object({
  input_file_id: z.string().max(64).describe('Id of an uploaded JSONL file with one request per line'),
  endpoint: z.string().max(200).describe('Endpoint of all requests, such as /v1/chat/completions'),
  completion_window: z
    .string()
    .regex(/^[1-9]\d{0,5}[smh]$/, 'must be a number of seconds, minutes or hours, such as 90m or 24h')
    .describe('Time limit of the batch: a number of seconds, minutes or hours, such as 24h or 30m'),
  metadata: Metadata.nullish().describe('At most 16 pairs of text'),
  output_expires_after: ExpiresAfter.nullish().describe('Retention of the output files'),
})
export type CreateBatch = z.infer<typeof CreateBatch>

export const ListBatches = z.object({
  limit: z.coerce.number().int().min(0).max(100).default(20).describe('Maximum batches per page'),
  after: z.string().max(64).optional().describe('Cursor: id of the last batch of the previous page'),
})
export type ListBatches = z.infer<typeof ListBatches>

export const BatchResults = z.object({
  format: z
    .enum(['jsonl', 'csv'])
    .default('jsonl')
    .describe('csv: custom_id, answer, error, finish_reason and tokens of each request'),
  status: z.enum(['completed', 'failed']).optional().describe('Only successful, or only other requests. Default: all'),
  include: z
    .enum(['earlier'])
    .optional()
    .describe(
      'earlier: also the results of the batch in metadata.sluice_retry_of, and of the batches before it. Each custom_id has only the result of the newest batch',
    ),
  limit: z.coerce.number().int().min(1).optional().describe('Maximum results. Default: all'),
})
export type BatchResults = z.infer<typeof BatchResults>

export const ListMessageBatches = z.object({
  limit: z.coerce.number().int().min(1).max(1_000).default(20).describe('Maximum batches per page'),
  after_id: z.string().max(64).optional().describe('Cursor: the page starts after this batch'),
  before_id: z.string().max(64).optional().describe('Cursor: the page ends before this batch'),
})
export type ListMessageBatches = z.infer<typeof ListMessageBatches>
