import { z } from 'zod'

/**
 * All error codes (docs/reference/errors.md), with HTTP status and retry policy.
 *
 * `status` is the HTTP status in the OpenAI format. The Anthropic format differs only for overload: 529 instead of 503. `retry` states whether the
 * service may retry the job by itself, which is not advice for the client. `triesMax` is the maximum number of attempts for codes that allow fewer
 * attempts than the default. `isTry: false` means that the job did not run, so the attempt does not count against its retry budget.
 */
export const ERRORS = {
  invalid_request: { status: 400, retry: false },
  missing_required_parameter: { status: 400, retry: false },
  invalid_type: { status: 400, retry: false },
  invalid_value: { status: 400, retry: false },
  unsupported_value: { status: 400, retry: false },
  unsupported_parameter: { status: 400, retry: false },
  empty_array: { status: 400, retry: false },
  empty_string: { status: 400, retry: false },
  array_above_max_length: { status: 400, retry: false },
  array_below_min_length: { status: 400, retry: false },
  string_above_max_length: { status: 400, retry: false },
  integer_below_min_value: { status: 400, retry: false },
  integer_above_max_value: { status: 400, retry: false },
  decimal_below_min_value: { status: 400, retry: false },
  decimal_above_max_value: { status: 400, retry: false },
  context_length_exceeded: { status: 400, retry: false },
  answer_too_large: { status: 400, retry: false },
  model_not_supported: { status: 400, retry: false },
  invalid_audio: { status: 400, retry: false },
  audio_too_short: { status: 400, retry: false },
  audio_too_long: { status: 400, retry: false },
  invalid_language_format: { status: 400, retry: false },
  missing_api_key: { status: 401, retry: false },
  invalid_api_key: { status: 401, retry: false },
  permission_denied: { status: 403, retry: false },
  model_not_allowed: { status: 403, retry: false },
  not_found: { status: 404, retry: false },
  model_not_found: { status: 404, retry: false },
  job_not_found: { status: 404, retry: false },
  method_not_supported: { status: 405, retry: false },
  request_timeout: { status: 408, retry: false },
  job_not_finished: { status: 409, retry: false },
  job_already_finished: { status: 409, retry: false },
  job_cancelled: { status: 409, retry: false },
  idempotency_key_in_use: { status: 409, retry: false },
  result_expired: { status: 410, retry: false },
  request_too_large: { status: 413, retry: false },
  unsupported_media_type: { status: 415, retry: false },
  idempotency_key_reused: { status: 422, retry: false },
  rate_limit_exceeded: { status: 429, retry: true, isTry: false },
  token_limit_exceeded: { status: 429, retry: true },
  insufficient_quota: { status: 429, retry: false },
  internal_error: { status: 500, retry: false },
  upstream_error: { status: 502, retry: true },
  upstream_refused: { status: 502, retry: false },
  worker_lost: { status: 500, retry: true },
  sandbox_lost: { status: 500, retry: true, triesMax: 2 },
  overloaded: { status: 503, retry: true },
  model_loading: { status: 503, retry: true },
  sandbox_unavailable: { status: 503, retry: true },
  jobs_unavailable: { status: 503, retry: false },
  timeout: { status: 504, retry: false },
  job_expired: { status: 504, retry: false },
  upstream_timeout: { status: 504, retry: true },
  slow_reader: { status: 408, retry: false },
} as const

export type ErrorCode = keyof typeof ERRORS

/** Whether the server of a model failed or did not answer in time. */
export function isUpstreamFailure(code: ErrorCode): boolean {
  return code === 'upstream_error' || code === 'upstream_timeout'
}

/**
 * Reasons why a call is refused, or fails because of a lack of capacity. One error code covers several reasons, because in all of these
 * cases the caller can only retry later. Operators see the reason in the metric `sluice_refusals_total` and in the field `refusal` of the
 * access log.
 */
export const REFUSAL_REASONS = [
  'draining',
  'calls_full',
  'queue_full',
  'jobs_full',
  'no_worker',
  'kafka',
  'store',
  'blobs',
  'disk_full',
  'memory',
  'paused',
  'upstream',
  'preparing',
  'sandbox',
  'rate_limit',
  'budget',
  'other',
] as const
export type RefusalReason = (typeof REFUSAL_REASONS)[number]

/** Default reason per code, for errors that state no reason. */
const REASONS: Partial<Record<ErrorCode, RefusalReason>> = {
  overloaded: 'other',
  rate_limit_exceeded: 'rate_limit',
  token_limit_exceeded: 'rate_limit',
  insufficient_quota: 'budget',
  model_loading: 'preparing',
  sandbox_unavailable: 'sandbox',
}

/** Returns the reason of a refusal. Undefined if none of the {@link REFUSAL_REASONS} applies to the error. */
export function refusalReasonOf({ code, reason }: { readonly code: ErrorCode; readonly reason?: string | undefined }) {
  return reason ?? REASONS[code]
}

/** An error in job events and job records, with the field names of the API. */
export const ErrorBody = z.strictObject({
  code: z
    .enum(Object.keys(ERRORS) as [ErrorCode, ...ErrorCode[]])
    .catch('internal_error')
    .describe('Codes of newer versions are read as internal_error'),
  message: z.string().describe('Message for the client, without internal details'),
  param: z.string().nullable().default(null).describe('Path of the invalid field, such as messages[2].content'),
  retry_after_ms: z.int().min(0).optional().describe('Minimum time before a retry, in milliseconds'),
  reason: z.string().optional().describe('Reason of a refusal, for metrics and logs only'),
  upstream_message: z.string().optional().describe('Message of the upstream server, for the request log only'),
})
export type ErrorBody = z.infer<typeof ErrorBody>
