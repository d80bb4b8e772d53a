import { z } from 'zod'
import { listOf } from '#schemas/answers/models.ts'
import { ReadUsage } from '#schemas/usage.ts'

const Text = z
  .string()
  .min(1)
  .max(256)
  .regex(/^\P{Cc}*$/u)
const Time = z.coerce.number().min(0).max(99_999_999_999).optional()

/** Query of `GET /v1/admin/requests` (docs/operate/requests.md). All filters must match. */
export const ListRequests = z.object({
  project: Text.optional().describe(
    'Project id or name. Default: the project of the key; with the admin scope, all projects',
  ),
  key: Text.optional().describe('API key id'),
  model: Text.optional().describe('Model id or alias'),
  endpoint: Text.optional().describe('Path of the endpoint, such as /v1/chat/completions'),
  server: Text.optional().describe('Upstream server, as in the field `server`'),
  status: z
    .string()
    .regex(/^([1-5]xx|[1-5]\d\d|failed)$/, 'must be a status such as 429, a class such as 5xx, or failed')
    .optional()
    .describe(
      'HTTP status, its class such as 5xx, or `failed`: 400 and above of calls with a valid key, without 499, which marks cancelled requests. `GET /v1/usage` counts the same requests as failed',
    ),
  error_code: Text.optional().describe('Error code, such as rate_limit_exceeded, or several codes separated by commas'),
  request_id: Text.optional().describe('Request id, or the id of an answer such as chatcmpl-…'),
  job_id: Text.optional().describe('Id of a durable job'),
  batch_id: Text.optional().describe('Id of a batch: only its lines'),
  batch_lines: z
    .enum(['true', 'false'])
    .optional()
    .describe(
      'Whether the lines of batches are listed instead of the batches. Default: only with a filter for failed requests, model, endpoint, server, duration, job, batch or trace',
    ),
  trace_id: z
    .string()
    .regex(/^[0-9a-f]{32}$/, 'must be a trace id: 32 hexadecimal digits in lower case')
    .optional()
    .describe('Trace id: only requests of this trace'),
  since: Time.describe('Only requests that ended at or after this time, in Unix seconds'),
  until: Time.describe('Only requests that ended before this time, in Unix seconds'),
  min_duration_ms: z.coerce.number().int().min(0).max(1e12).optional().describe('Minimum duration in milliseconds'),
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum items per page'),
  count: z
    .enum(['true', 'false'])
    .optional()
    .describe('true: adds `total`, the number of requests that match. Ignored with `after`'),
  after: z
    .string()
    .regex(/^\d{1,15}_\d{1,15}$/, 'must be the last_id of a page')
    .optional()
    .describe('Cursor: last_id of the previous page'),
})
export type ListRequests = z.infer<typeof ListRequests>

/** Query of `GET /v1/admin/requests/failures`. */
export const ListFailures = ListRequests.pick({
  ...{ project: true, key: true, model: true, endpoint: true, batch_id: true, since: true, until: true },
}).extend({ format: ReadUsage.shape.format })
export type ListFailures = z.infer<typeof ListFailures>

/** Query of `GET /v1/admin/requests/active`. */
export const ListActiveRequests = z.object({
  project: Text.optional().describe(
    'Project id or name. Default: the project of the key; with the admin scope, all projects',
  ),
  model: Text.optional().describe('Model id or alias'),
  status: z.enum(['waiting', 'running']).optional().describe('Only calls that wait, or that run'),
})
export type ListActiveRequests = z.infer<typeof ListActiveRequests>

const Count = z.int().min(0)
const Milliseconds = Count.nullable()

/** A failed attempt of a request, in the form in which the request log stores it. */
export const FailedAttempt = z.object({
  attempt: z.int().min(1).describe('Number of the attempt'),
  started_at: z.number().describe('Unix seconds, with milliseconds'),
  duration_ms: Count,
  worker: z.string().nullable().describe('Process that ran the attempt'),
  server: z.string().nullable().describe('Upstream server, as in the field `server` of the request'),
  error_code: z.string(),
  error_message: z.string().describe('Error message, at most 500 characters'),
  upstream_message: z
    .string()
    .nullish()
    .describe('Message of the upstream server without keys and addresses; only with the admin scope. null: none'),
  retry_delay_ms: Milliseconds.describe('Time from the end of this attempt to the next one. null: no attempt followed'),
})
export type FailedAttempt = z.infer<typeof FailedAttempt>

/** Format that a request can demand: JSON (`response_format`), or at least one tool call (`tool_choice`). */
export const FormatName = z.enum(['json', 'tool_call'])
export type FormatName = z.infer<typeof FormatName>

/** One row of the request log. */
export const RequestAnswer = z.object({
  object: z.literal('request'),
  id: z.string().describe('Value of x-request-id. Child jobs, such as the lines of a batch, have their job id'),
  started_at: z.number().describe('Unix seconds, with milliseconds'),
  ended_at: z.number().describe('Unix seconds, with milliseconds'),
  project: z
    .string()
    .nullable()
    .describe('Project of the API key. null: the call had no valid key, so key_id is null too'),
  project_name: z.string().nullable(),
  key_id: z.string().nullable(),
  key_name: z.string().nullable(),
  endpoint: z.string(),
  kind: z
    .string()
    .nullable()
    .describe('Kind of the job. null: the call has no job, for example because it was refused'),
  model: z
    .string()
    .nullable()
    .describe('Model of the job, or of the calls of a batch. For a refused call: the model name in its body'),
  worker: z.string().nullable().describe('Process that ran the last attempt'),
  server: z
    .string()
    .nullable()
    .describe('Upstream server of the last attempt: index in base_urls of the model, after `model/` for a fallback'),
  server_url: z
    .string()
    .optional()
    .describe('Address of the upstream server in the current models.yaml; only with the admin scope'),
  status: z.int().describe('HTTP status. 499: the caller cancelled the call or disconnected'),
  error_code: z.string().nullable(),
  error_message: z.string().nullable().describe('Message that the caller received, at most 500 characters'),
  error_param: z.string().nullable().describe('Field of the request that caused the error'),
  upstream_message: z
    .string()
    .nullish()
    .describe(
      'Last message of the upstream server about a failed attempt, without keys and addresses; only with the admin scope',
    ),
  next_step: z
    .string()
    .nullish()
    .describe(
      'Remedy for the error that the reader may apply, with field and value if known. null: the message states all, or the request did not fail. Absent in lists',
    ),
  failed_attempts: z
    .array(FailedAttempt)
    .optional()
    .describe('The first 10 failed attempts, oldest first. Absent in lists'),
  queue_ms: Milliseconds.describe('Time from acceptance to the first start'),
  first_output_ms: Milliseconds.describe('Time from acceptance to the first output. null for durable jobs'),
  duration_ms: Count,
  input_tokens: Count.describe('In the row of a batch, tokens and cost are the sums of its completed calls'),
  cached_input_tokens: Count.describe('Part of the input tokens that came from a prompt cache'),
  output_tokens: Count,
  cost_usd: z.number().min(0),
  attempts: Count.describe('Number of attempts that were started'),
  job_id: z.string().nullable().describe('Id of the durable job. null for attached calls'),
  batch_id: z.string().nullable().describe('Batch of which the request is a line, or which the request created'),
  request_counts: z
    .object({ total: Count, failed: Count.describe('Calls that failed, expired or were cancelled') })
    .nullish()
    .describe('Calls of a batch, in the row of the batch. null: the row is not a batch'),
  trace_id: z.string().nullable().describe('Trace id from the header traceparent, or of the trace that Sluice started'),
  user_agent: z.string().nullable().describe('Header user-agent. null for durable jobs'),
  sdk_retry: z
    .int()
    .nullish()
    .describe('Number of the retry by the SDK of the caller (header x-stainless-retry-count). null: not a retry'),
  unknown_parameters: z
    .string()
    .nullish()
    .describe(
      'Fields of the body that the API does not define (header x-unknown-parameters). null: none, or a durable job',
    ),
  format_ignored: FormatName.nullish().describe(
    'Requested format that the answer does not have (header x-format-ignored). null: it has the format, or was not checked',
  ),
  retry_of: z
    .string()
    .nullish()
    .describe(
      'Request before this SDK retry: the newest failed one with equal key, endpoint, model and user agent. Absent in lists',
    ),
  retried_by: z
    .array(z.object({ id: z.string(), status: z.int() }))
    .nullish()
    .describe(
      'SDK retries of this failed or cancelled request, in order, estimated like `retry_of`. Empty: none in the log. null: the request succeeded. Absent in lists',
    ),
  prompt_preview: z
    .string()
    .optional()
    .describe('First 120 characters of the prompt. Present only in lists, and only if bodies are recorded'),
  answer_preview: z
    .string()
    .optional()
    .describe('First 120 characters of the answer. Absent like `prompt_preview`, and for failed calls'),
  request_body: z
    .string()
    .optional()
    .describe('Body of the request as JSON, truncated. Absent in lists, and if bodies are not recorded'),
  answer_body: z
    .string()
    .nullable()
    .optional()
    .describe('Answer as JSON, truncated. Absent in lists, and if bodies are not recorded. null: the call failed'),
})
export type RequestAnswer = z.infer<typeof RequestAnswer>

const LogSince = z
  .number()
  .nullable()
  .default(null)
  .describe('End of the oldest request in the log, in Unix seconds. Usage is stored for longer. null: the log is empty')

export const RequestListAnswer = listOf(RequestAnswer).extend({
  total: Count.nullable().default(null).describe('Number of requests that match, with `count=true`'),
  total_is_lower_bound: z
    .boolean()
    .default(false)
    .describe('true: more requests may match, because a count reads at most 10,000 rows'),
  log_since: LogSince,
})
export type RequestListAnswer = z.infer<typeof RequestListAnswer>

/** Failed requests with equal project, key, model, status and error code. */
const RequestFailures = z.object({
  object: z.literal('request.failures'),
  project: z.string().nullable().describe('null: the calls had no valid key'),
  project_name: z.string().nullable(),
  key_id: z.string().nullable(),
  key_name: z.string().nullable(),
  model: z.string().nullable(),
  status: z.int().describe('500 and above: the service or an upstream server failed. Below: the call was refused'),
  error_code: z.string().nullable(),
  count: Count.describe('Number of failed requests'),
  first_ended_at: z.number().describe('End of the oldest counted request, in Unix seconds'),
  last_ended_at: z.number().describe('End of the newest request, in Unix seconds'),
  message: z
    .string()
    .nullable()
    .describe('Most frequent message: of the upstream server if the key has the admin scope, otherwise of the error'),
  newest_id: z.string().describe('Id of the newest request with this message'),
})
export type RequestFailures = z.infer<typeof RequestFailures>

export const RequestFailuresListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(RequestFailures).describe('The most frequent failures first'),
  has_more: z.boolean().describe('true: only the newest 100,000 failed requests were counted'),
  log_since: LogSince,
})

/** A synchronous call that waits or runs now. */
export const ActiveRequest = z.object({
  object: z.literal('request.active'),
  id: z.string().describe('Value of x-request-id'),
  started_at: z.number().describe('Unix seconds, with milliseconds'),
  age_ms: Count,
  project: z.string(),
  project_name: z.string().nullable(),
  key_id: z.string(),
  key_name: z.string().nullable(),
  endpoint: z.string(),
  pool: z.string(),
  model: z.string(),
  status: z.enum(['waiting', 'running']),
  position: Count.nullable().describe(
    'Position in the queue, 1 for the next call. null: the call runs, or the position is unknown',
  ),
  wait_ms: Count.nullable().describe('Estimated time until the start. null: unknown'),
  reason: z.string().nullable().describe('Reason of the wait'),
  worker: z.string().nullable().describe('Process that runs the call'),
  attempt: Count,
})
export type ActiveRequest = z.infer<typeof ActiveRequest>

export const ActiveRequestListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(ActiveRequest).describe('At most 200 calls, the oldest first'),
  total: Count.describe('Number of calls that match the filters'),
  ingress: z.string().describe('Ingress that answered. Each ingress lists only its own calls'),
  has_more: z.boolean(),
})
