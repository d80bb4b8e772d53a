/**
 * Translates an upstream's error for the caller.
 *
 * Three questions are decided only here. Is the caller's request, the operator's configuration or the upstream at fault? Can a retry help? How long
 * should the caller wait before a retry?
 *
 * The upstream's own message is sanitised (`error-sanitizer.ts`) and returned in two cases. Either the message is about the caller's request (400,
 * 413, 422). Or the message states why the model is unavailable (503, 529), such as "Loading model". Every other message is sanitised too, and only
 * operators can read it, in the request log. Messages may quote prompts and keys, so only the status, the code and the length of the body are logged.
 */
import type { IncomingHttpHeaders } from 'node:http'
import { ERRORS, type ErrorCode } from '#schemas/error.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Maximum Retry-After that is passed from an upstream to callers. SDKs ignore or mishandle longer values (docs/internals/protocol.md, Retries). */
const RETRY_AFTER_MS_MAX = 60_000

const TEMPORARY_STATUSES = new Set([408, 409, 425, 429])

/** Statuses of a server that is temporarily unavailable. Anthropic uses 529. */
const UNAVAILABLE_STATUSES = new Set([503, 529])

const NOT_IMPLEMENTED = 501

/** Matches an error code. Some servers send a sentence in the field `code`, which must not match. */
const CODE = /^[A-Za-z][\w.-]{0,63}$/
const FIELD = /^[A-Za-z_][\w.[\]-]{0,199}$/

/** Matches errors about the operator's key or account. Some servers report them as a bad request of the caller. */
const KEY_FAULT = /^\W*(incorrect|invalid|missing|expired|no)?\s*api[ _-]?key\b|^your credit balance/i
const KEY_FAULT_CODES = new Set(['invalid_api_key', 'authentication_error', 'permission_error', 'billing_error'])

/** Matches codes of an account without quota or credit. A retry is pointless, although some servers report this error as a rate limit. */
const QUOTA_CODES =
  /^(insufficient_(quota|balance|credits?|funds)|billing_(error|not_active|hard_limit_reached)|account_deactivated|out_of_credits|payment_required|credit_limit_exceeded)$/i
const QUOTA =
  /\binsufficient[ _](quota|balance|credits?|funds)\b|\bexceeded your (current|monthly) quota\b|\bcredit balance\b|\b(out of|no) credits\b|\baccount is not active\b/i
/** Matches texts about a temporary limit. Gemini reports a limit per minute as an exhausted quota. */
const TEMPORARY_LIMIT = /\b(retry|try again) (in|after)\b|per[ _-]?(minute|second|hour|day)/i

const CONTEXT_FULL =
  /context[ _](length|window|size|limit)|prompt is too long|maximum model length|too many input tokens/i

export type ErrorSanitizer = (text: string) => string

export interface ErrorContext {
  readonly model: string
  readonly sanitize: ErrorSanitizer
  /**
   * Whether Sluice itself started the server. The error codes of such a server are not documented for callers, so
   * callers receive only codes of Sluice's own table.
   */
  readonly isOwnServer: boolean
}

/** Cause of an error, for the operator's log. The upstream's message is left out, because it may quote the request. */
class UpstreamAnswer extends Error {
  readonly facts: { readonly status: number; readonly upstream_code?: string; readonly bytes: number }

  constructor(status: number, { code }: ReportedError, bytes: number, clean: ErrorSanitizer) {
    super('The upstream returned an error.')
    this.name = 'UpstreamAnswer'
    const shown = codeOf(code, clean)
    this.facts = { status, ...(shown !== undefined && { upstream_code: shown }), bytes }
  }
}

/**
 * An error with the cause of a failed connection, for the operator's log. Only the error code is recorded, because the message would contain the
 * address.
 */
class UpstreamConnection extends Error {
  readonly facts: { readonly reason: string }

  constructor(cause: unknown) {
    super('The connection failed.')
    this.name = 'UpstreamConnection'
    const { code } = (cause ?? {}) as { code?: unknown }
    this.facts = { reason: typeof code === 'string' ? code : 'unknown' }
  }
}

export function statusError(
  errorContext: ErrorContext,
  status: number,
  headers: IncomingHttpHeaders,
  body: string,
): ServiceError {
  const reported = reportedErrorIn(body)
  const cause = new UpstreamAnswer(status, reported, Buffer.byteLength(body), errorContext.sanitize)
  return classify(errorContext, status, reported, {
    how: ` (HTTP ${status})`,
    cause,
    retryAfterMs: retryAfter(headers),
  })
}

/**
 * Converts an error object inside an answer with status 200. The object is a frame of a stream or a whole body.
 *
 * @param bytes Size of the body
 */
export function errorInAnswer(errorContext: ErrorContext, body: object, bytes: number): ServiceError {
  const { type, response } = body as Record<string, unknown>
  const reported = reportedErrorOf(type === RESPONSE_FAILED ? response : body)
  const status = statusOf(reported)
  const cause = new UpstreamAnswer(200, reported, bytes, errorContext.sanitize)
  return classify(errorContext, status, reported, { how: ' inside its answer', cause, retryAfterMs: undefined })
}

export function connectionError(model: string, error: unknown): ServiceError {
  const cause = new UpstreamConnection(error)
  if (cause.facts.reason === 'UND_ERR_CONNECT_TIMEOUT') {
    const message = `The upstream of model '${model}' did not accept the connection in time.`
    return new ServiceError('upstream_timeout', message, { cause })
  }
  const why = connectionReason(cause)
  const message = `The connection to the upstream of model '${model}' failed${why ? `: ${why}` : ''}.`
  return new ServiceError('upstream_error', message, { cause })
}

/** Reasons of failed connections that callers may receive, by the error code of Node.js. */
const CONNECTION_REASONS: Readonly<Record<string, string>> = {
  ...{ ECONNREFUSED: 'connection refused', ECONNRESET: 'connection reset', EPIPE: 'connection reset' },
  ...{ ENOTFOUND: 'host name not found', EAI_AGAIN: 'host name not found' },
  ...{ EHOSTUNREACH: 'host unreachable', ENETUNREACH: 'network unreachable' },
  ...{ ETIMEDOUT: 'connection timed out', UND_ERR_SOCKET: 'connection closed' },
}
const TLS_CODE = /CERT|^ERR_TLS|^ERR_SSL|SELF_SIGNED/

/**
 * Cause of a failed call in a few fixed words, such as "HTTP 500" or "connection refused". Callers of every project receive this text. Words of the
 * upstream are therefore excluded, because they may quote a request of another project.
 */
export function failureText(error: unknown): string {
  if (!(error instanceof ServiceError)) return 'no answer'
  const { cause, code } = error
  if (cause instanceof UpstreamAnswer)
    return cause.facts.status === 200 ? 'an error inside an answer' : `HTTP ${cause.facts.status}`
  if (code === 'upstream_timeout' || code === 'timeout') return 'timeout'
  if (!(cause instanceof UpstreamConnection)) return code
  return connectionReason(cause) ?? 'connection failed'
}

function connectionReason({ facts: { reason } }: UpstreamConnection): string | undefined {
  return CONNECTION_REASONS[reason] ?? (TLS_CODE.test(reason) ? 'its certificate was not accepted' : undefined)
}

/** Error for an answer that cannot be read. `what` completes the sentence "The upstream … ". */
export function answerError(model: string, what: string, cause?: unknown): ServiceError {
  return new ServiceError('upstream_error', `The upstream of model '${model}' ${what}.`, { cause })
}

const RESPONSE_FAILED = 'response.failed'

export function hasError(body: object): boolean {
  const { error, object, type } = body as Record<string, unknown>
  return isFilled(error) || object === 'error' || type === 'error' || type === RESPONSE_FAILED || isFailure(body)
}

/** Whether an object is an error such as `{code: 400, msg: "…"}`. Some gateways send every answer with status 200. */
function isFailure(body: object): boolean {
  const { code, status, status_code, message, msg, detail } = body as Record<string, unknown>
  const isBad = [code, status, status_code].some((one) => isFailureStatus(Number(one)))
  return isBad && [message, msg, detail].some((one) => typeof one === 'string' && one !== '')
}

function isFailureStatus(status: number): boolean {
  return Number.isInteger(status) && status >= 400 && status <= 599
}

/** Whether an `error` has content. Some servers send an empty `error` with every chunk. */
function isFilled(error: unknown): boolean {
  if (typeof error !== 'object' || error === null) return Boolean(error)
  return Object.values(error).some((value) => isFilled(value))
}

function classify(
  errorContext: ErrorContext,
  status: number,
  reported: ReportedError,
  { how, cause, retryAfterMs }: { how: string; cause: Error; retryAfterMs: number | undefined },
): ServiceError {
  const upstreamMessage = errorContext.sanitize(reported.message ?? '')
  const hidden = { cause, upstreamMessage }
  const wait = retryAfterMs === undefined ? hidden : { ...hidden, retryAfterMs }
  const upstream = `The upstream of model '${errorContext.model}'`
  if (isQuota(reported) && retryAfterMs === undefined)
    return new ServiceError('upstream_refused', `${upstream} refused the call for lack of quota${how}.`, hidden)
  const isAboutRequest = (status === 400 || status === 413 || status === 422) && !isAboutOperator(reported)
  if (isAboutRequest) return requestError(upstream, status, reported, errorContext, cause)
  if (TEMPORARY_STATUSES.has(status))
    return new ServiceError('overloaded', `${upstream} is busy${how}.`, { ...wait, reason: 'upstream' })
  if (UNAVAILABLE_STATUSES.has(status)) {
    const message = upstreamMessage || `${upstream} is not available${how}.`
    return new ServiceError('overloaded', message, { ...wait, reason: 'upstream' })
  }
  if (status >= 500 && status !== NOT_IMPLEMENTED)
    return new ServiceError('upstream_error', `${upstream} failed${how}.`, wait)
  return new ServiceError('upstream_refused', `${upstream} refused the call${how}.`, hidden)
}

function isQuota({ message = '', type = '', code }: ReportedError): boolean {
  if (QUOTA_CODES.test(type) || QUOTA_CODES.test(String(code))) return true
  return QUOTA.test(message) && !TEMPORARY_LIMIT.test(message)
}

function isAboutOperator({ message = '', type = '', code }: ReportedError): boolean {
  return KEY_FAULT.test(message) || KEY_FAULT_CODES.has(type) || KEY_FAULT_CODES.has(String(code))
}

function requestError(
  upstream: string,
  status: number,
  reported: ReportedError,
  { sanitize: clean, isOwnServer: isOurs }: ErrorContext,
  cause: Error,
): ServiceError {
  const message = clean(reported.message ?? '') || `${upstream} cannot work with this request.`
  const param = reported.param !== null && FIELD.test(reported.param) ? clean(reported.param) : null
  const isFull =
    reported.code === 'context_length_exceeded' ||
    reported.type === 'exceed_context_size_error' ||
    CONTEXT_FULL.test(message)
  if (isFull) return new ServiceError('context_length_exceeded', message, { cause, param: param ?? 'messages' })
  const shown = codeOf(reported.code, clean)
  if (shown !== undefined && isBadRequestCode(shown)) return new ServiceError(shown, message, { cause, param })
  const fallbackCode: ErrorCode = status === 413 ? 'request_too_large' : 'invalid_request'
  return new ServiceError(fallbackCode, shown === undefined || isOurs ? message : `${message} (${shown})`, {
    cause,
    param,
  })
}

/** Returns the error code of an upstream if callers may receive it. Undefined if the field is empty, or contains a message instead of a code. */
function codeOf(code: ReportedError['code'], clean: ErrorSanitizer): string | undefined {
  return typeof code === 'string' && CODE.test(code) && clean(code) === code ? code : undefined
}

function isBadRequestCode(code: string): code is ErrorCode {
  return Object.hasOwn(ERRORS, code) && ERRORS[code as ErrorCode].status === 400
}

const STATUS_OF_TYPE: Record<string, number> = {
  invalid_request_error: 400,
  invalid_request: 400,
  badrequesterror: 400,
  bad_request: 400,
  invalid_argument: 400,
  invalid_prompt: 400,
  failed_precondition: 400,
  validationexception: 400,
  context_length_exceeded: 400,
  exceed_context_size_error: 400,
  content_filter: 400,
  validation: 422,
  authentication_error: 401,
  unauthenticated: 401,
  permission_error: 403,
  permission_denied: 403,
  not_found_error: 404,
  not_found: 404,
  notfounderror: 404,
  request_too_large: 413,
  rate_limit_error: 429,
  rate_limit_exceeded: 429,
  resource_exhausted: 429,
  throttlingexception: 429,
  too_many_requests: 429,
  overloaded_error: 429,
  overloaded: 429,
  not_implemented: 501,
  unavailable: 503,
  unavailable_error: 503,
  service_unavailable: 503,
  service_unavailable_error: 503,
  serviceunavailableerror: 503,
}

function statusOf({ code, status, type }: ReportedError): number {
  const numeric = Number(code)
  if (isFailureStatus(numeric)) return numeric
  const named = [type, code].map((name) => STATUS_OF_TYPE[String(name).toLowerCase()]).find((found) => found)
  return status ?? named ?? 500
}

/** Reads the header `retry-after-ms`. Without it, `retry-after` is read, which is in seconds or an HTTP date (RFC 9110 §10.2.3). */
function retryAfter(headers: IncomingHttpHeaders): number | undefined {
  const millis = Number.parseFloat(String(headers['retry-after-ms']))
  if (Number.isFinite(millis)) return bounded(millis)
  const value = headers['retry-after']
  if (value === undefined) return undefined
  const seconds = Number(value)
  return bounded(Number.isFinite(seconds) ? seconds * 1_000 : Date.parse(value) - Date.now())
}

function bounded(millis: number): number | undefined {
  return Number.isFinite(millis) ? Math.min(Math.max(Math.ceil(millis), 0), RETRY_AFTER_MS_MAX) : undefined
}

interface ReportedError {
  readonly message: string | undefined
  readonly type: string | undefined
  readonly code: string | number | undefined
  readonly param: string | null
  readonly status: number | undefined
}

const NO_ERROR: ReportedError = { message: undefined, type: undefined, code: undefined, param: null, status: undefined }

const DEPTH_MAX = 6
/** Maximum characters of a plain-text error message. A longer text is probably a web page. */
const PLAIN_CHARS_MAX = 500
const NESTED_CHARS_MAX = 64 * 1024

type Fields = Record<string, unknown>

const MESSAGES = ['message', 'msg', 'Message', 'errorMessage', 'error_message', 'error', 'detail', 'error_description']
const TITLES = ['reason', 'title', 'description']
const NESTED = ['error', 'errors', 'detail', 'message', 'response', 'body', 'raw']
const TYPES = ['type', 'error_type', 'status', '__type', 'object']
const CODES = ['code', 'error_code', 'errorCode']
const STATUSES = ['status', 'status_code', 'statusCode', 'http_status_code', 'http_status', 'error_code']

/**
 * Reads error bodies of any server into one form:
 *
 * 1. OpenAI and Anthropic: `{error:{message,type,param,code}}`.
 * 2. Gemini: an array with one such object.
 * 3. Ollama and TGI: `{error:"…",error_type}`.
 * 4. vLLM: an error without an envelope.
 * 5. FastAPI: `{detail}`.
 * 6. Mistral: the detail in `message`.
 * 7. OpenRouter: the provider's error as JSON in `metadata.raw`.
 * 8. RFC 9457: `{title,detail}`.
 * 9. An event stream with one event, and plain text.
 *
 * Gateways nest the errors of other servers, as objects or as JSON text. The innermost message is used, because it is about the request.
 */
function reportedErrorIn(text: string): ReportedError {
  const body = text.replace(/^\ufeff/, '').trim()
  const value = parsed(body, /^["{[]/) ?? eventIn(body)
  if (value !== undefined) return reportedErrorOf(value)
  const isPage = body.startsWith('<') || body.length > PLAIN_CHARS_MAX
  return isPage || body === '' ? NO_ERROR : { ...NO_ERROR, message: body }
}

function reportedErrorOf(value: unknown, depth = 0): ReportedError {
  if (depth > DEPTH_MAX) return NO_ERROR
  if (typeof value === 'string') {
    const inner = parsed(value)
    return inner === undefined ? { ...NO_ERROR, message: value.trim() || undefined } : reportedErrorOf(inner, depth + 1)
  }
  if (Array.isArray(value)) return reportedErrorOf(value[0], depth + 1)
  if (typeof value !== 'object' || value === null) return NO_ERROR
  const own = ownReportedError(value as Fields)
  const inner = innerReportedError(value as Fields, depth)
  return {
    message: inner.message ?? own.message,
    type: inner.type ?? own.type,
    code: inner.code ?? own.code,
    param: inner.param ?? own.param,
    status: inner.status ?? own.status,
  }
}

function ownReportedError(fields: Fields): ReportedError {
  const where = Array.isArray(fields.loc) ? fields.loc.filter((step) => step !== 'body').join('.') : ''
  const detail = textIn(fields, MESSAGES) ?? textIn(fields, TITLES)
  const { code = valueIn(fields, CODES) } = fields
  return {
    message: where !== '' && detail !== undefined ? `${where}: ${detail}` : detail,
    type: textIn(fields, TYPES),
    code: typeof code === 'string' || typeof code === 'number' ? code : undefined,
    param: textIn(fields, ['param']) ?? (where === '' ? null : where),
    status: STATUSES.map((name) => Number(fields[name])).find((status) => status >= 400 && status <= 599),
  }
}

function innerReportedError(fields: Fields, depth: number): ReportedError {
  const { metadata } = fields
  const raw = typeof metadata === 'object' && metadata !== null ? (metadata as Fields).raw : undefined
  const places = raw === undefined ? NESTED.map((name) => fields[name]) : [raw]
  for (const candidate of places) {
    const isNested =
      typeof candidate === 'object' || (typeof candidate === 'string' && (candidate === raw || parsed(candidate)))
    if (!isNested) continue
    const inner = reportedErrorOf(candidate, depth + 1)
    if (inner.message !== undefined || inner.code !== undefined || inner.type !== undefined) return inner
  }
  return NO_ERROR
}

function textIn(fields: Fields, names: readonly string[]): string | undefined {
  const value = names.map((name) => fields[name]).find((one) => typeof one === 'string' && one.trim() !== '')
  return value as string | undefined
}

function valueIn(fields: Fields, names: readonly string[]): unknown {
  return names.map((name) => fields[name]).find((one) => one !== undefined && one !== null)
}

function parsed(text: string, start = /^\s*[{[]/): unknown {
  if (!start.test(text) || text.length > NESTED_CHARS_MAX) return undefined
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function eventIn(body: string): unknown {
  if (!/^(?:event|data|error|id|retry)?:/.test(body)) return undefined
  const data = [...body.matchAll(/^(?:data|error): ?(.*)$/gm)].map(([, text = '']) => text.trim())
  return data.map((text) => parsed(text)).find((value) => value !== undefined) ?? data.find((text) => text !== '')
}
