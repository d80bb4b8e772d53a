import { type ErrorCode, isUpstreamFailure } from '#schemas/error.ts'
import type { ServiceError } from '#shared/lib/error.ts'

/**
 * Wire forms of a {@link ServiceError} in the OpenAI and Anthropic formats (docs/internals/protocol.md, Errors): body, status and headers. Only this
 * file decides which fields of an error a caller receives.
 */

export interface OpenaiError {
  message: string
  type: string
  param: string | null
  code: string | null
}

/** An error in the format of the Messages API. `request_id` repeats the response header of that name. */
export interface MessagesError {
  type: 'error'
  error: { type: string; message: string; details?: { error_code: string } }
  request_id: string
}

/** Codes that OpenAI's API does not have. In the OpenAI format, the field `code` of such an error is null. */
const CODELESS: ReadonlySet<ErrorCode> = new Set(['invalid_request', 'missing_api_key', 'not_found'])

/** Codes for which OpenAI's API has only a more general code. Clients can distinguish such errors by the field `type`. */
const SHOWN_AS: Partial<Record<ErrorCode, ErrorCode>> = { token_limit_exceeded: 'rate_limit_exceeded' }

/**
 * Returns the error body in the OpenAI format. If a stream fails after its head was sent, then this body is its last frame
 * (docs/internals/protocol.md, Failures after the head).
 */
export function openaiErrorBody(error: ServiceError): { error: OpenaiError } {
  const code = CODELESS.has(error.code) ? null : (SHOWN_AS[error.code] ?? error.code)
  return { error: { message: error.message, type: openaiType(error), param: error.param, code } }
}

export function openaiStatus(error: ServiceError): number {
  return error.status
}

function openaiType(error: ServiceError): string {
  if (error.code === 'insufficient_quota') return error.code
  if (error.status === 429) return error.code === 'token_limit_exceeded' ? 'tokens' : 'requests'
  return error.status >= 500 || error.status === 408 ? 'server_error' : 'invalid_request_error'
}

/**
 * Returns the error body in the format of the Messages API. If the error is about a field, then the message starts with the path of the field in
 * Anthropic's notation. Examples: `max_tokens: Field required`, `messages.0.role: …`.
 */
export function messagesErrorBody(error: ServiceError, requestId: string): MessagesError {
  const type = messagesType(error.status)
  const details = isThreadRefusal(error) ? { details: { error_code: 'thread_unsupported_request' } } : {}
  return { type: 'error', error: { type, message: messagesErrorText(error), ...details }, request_id: requestId }
}

export function messagesErrorText({ param, message }: ServiceError): string {
  if (param === null) return message
  const detail = message.startsWith(`${param}: `) ? message.slice(param.length + 2) : message
  return `${messagesPath(param)}: ${detail}`
}

/** Returns the path of a field in Anthropic's notation, such as `messages.0.role`. */
export function messagesPath(param: string): string {
  return param.replace(/\[(\d+)\]/g, '.$1')
}

/**
 * Whether a request was rejected because of the parameter `thread`. The tool runners of the Anthropic SDKs first send this parameter. If the answer is
 * an error with the code `thread_unsupported_request`, then they send the request again without it.
 */
function isThreadRefusal(error: ServiceError): boolean {
  return error.code === 'unsupported_parameter' && error.param === 'thread'
}

/** Returns the HTTP status in the format of the Messages API: 529 for overload instead of 503, and otherwise the status of the OpenAI format. */
export function messagesStatus(error: ServiceError): number {
  return error.status === 503 ? 529 : error.status
}

const MESSAGES_TYPES: Record<number, string> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  408: 'timeout_error',
  409: 'conflict_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
}

function messagesType(status: number): string {
  return MESSAGES_TYPES[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error')
}

/**
 * Value of the header `x-should-retry` per error code. Without this header, the SDKs retry the statuses 408, 409, 429 and 5xx. For most codes in this
 * table, a retry by that rule would be wrong. For example, Sluice has already retried the call, or the deadline of the call has passed. The other
 * codes in the table follow the rule, and the header only states it.
 *
 * The remedies of the codes (services/ingress/admin/next-step.ts) advise a retry only if SDKs retry too (test/docs/errors.test.ts).
 */
const SHOULD_RETRY: Partial<Record<ErrorCode, boolean>> = {
  insufficient_quota: false,
  request_timeout: true,
  slow_reader: false,
  job_already_finished: false,
  job_cancelled: false,
  idempotency_key_in_use: true,
  worker_lost: false,
  sandbox_lost: false,
  jobs_unavailable: false,
  timeout: false,
  job_expired: false,
  upstream_error: false,
  upstream_timeout: false,
  upstream_refused: false,
}

const RETRY_AFTER_SECONDS_DEFAULT = 2
/** Maximum Retry-After in ms that every SDK obeys. The SDK openai-node ignores longer values. */
const SDK_RETRY_AFTER_MS_MAX = 60_000

/**
 * Returns the headers of an error: `retry-after` (at least 1 s), `x-should-retry`, `www-authenticate`.
 *
 * @param isFinal True if the error is the stored result of a job, so that each retry would return the same error.
 * @param retryMsMax Maximum Retry-After, in milliseconds.
 */
export function errorHeaders(
  error: ServiceError,
  isFinal = false,
  retryMsMax = SDK_RETRY_AFTER_MS_MAX,
): Record<string, string> {
  if (isFinal) return { 'x-should-retry': 'false' }
  const headers: Record<string, string> = {}
  if (error.status === 401) headers['www-authenticate'] = 'Bearer'
  const shouldRetry = shouldRetryOf(error)
  const isTemporary = [409, 429, 503].includes(error.status) && shouldRetry !== false
  if (isTemporary || (isUpstreamFailure(error.code) && error.retryAfterMs !== undefined))
    headers['retry-after'] = String(retryAfterSeconds(error, retryMsMax))
  if (shouldRetry !== undefined) headers['x-should-retry'] = String(shouldRetry)
  return headers
}

/**
 * Whether a client should retry a failed request. If undefined, then SDKs decide by the status. {@link SHOULD_RETRY} decides, with two exceptions that
 * depend on whether the error has a Retry-After:
 *
 * 1. `job_not_finished`: true with a Retry-After, because the client wanted to read a result that will exist later. False without, because the client
 *    wanted to delete the job.
 * 2. Failures of an upstream server: undefined with a Retry-After, so that SDKs retry. The server sent this time, or its circuit breaker is open until
 *    then. A retry after this time is useful even if Sluice has already retried the call.
 */
function shouldRetryOf({ code, retryAfterMs }: ServiceError): boolean | undefined {
  if (code === 'job_not_finished') return retryAfterMs !== undefined
  return isUpstreamFailure(code) && retryAfterMs !== undefined ? undefined : SHOULD_RETRY[code]
}

function retryAfterSeconds({ retryAfterMs }: ServiceError, mostMs: number): number {
  if (retryAfterMs === undefined) return RETRY_AFTER_SECONDS_DEFAULT
  return Math.max(1, Math.ceil(Math.min(mostMs, retryAfterMs) / 1000))
}
