/**
 * What an upstream's failure means to the caller.
 *
 * Three questions are answered here and nowhere else: whose fault it is (the caller's request, our configuration, the
 * upstream), whether another try can help, and how long to wait before it. An upstream's own words are shown only when
 * they speak of the caller's request; otherwise they go to `cause`, for operators.
 */
import type { IncomingHttpHeaders } from 'node:http'
import type { ErrorCode } from '#schemas/error.ts'
import { ServiceError } from '#shared/error.ts'

/** Longest wait an upstream may ask for; SDKs ignore or overdo longer ones (contract 0.15). */
const RETRY_AFTER_MS_MAX = 60_000

/** Characters of an upstream's message that are passed on. */
const MESSAGE_MAX = 2_000

/** Statuses that ask for patience: the same request may work later. */
const BUSY = new Set([408, 409, 425, 429])

/** The one status from 500 on that no second try can change. */
const NOT_IMPLEMENTED = 501

/** What upstreams say about audio in the words that we have for it. */
const AUDIO_CODES = ['invalid_audio', 'audio_too_short', 'audio_too_long', 'invalid_language_format'] as const

const CONTEXT_FULL =
  /context[ _](length|window|size|limit)|prompt is too long|maximum model length|too many input tokens/i

/** What an upstream said in an error body of any known shape. */
interface Complaint {
  readonly message: string | undefined
  readonly type: string | undefined
  readonly code: string | number | undefined
  readonly param: string | null
}

/**
 * The failure that an upstream's answer with a bad status means.
 *
 * @param model Id of the model, the only name the caller knows the upstream by.
 * @param body The answer's text, whatever it is.
 */
export function statusError(model: string, status: number, headers: IncomingHttpHeaders, body: string): ServiceError {
  const cause = new Error(`upstream answered ${status}: ${body.slice(0, MESSAGE_MAX)}`)
  const complaint = readComplaint(parseJson(body))
  return classify(model, status, complaint, { how: ` (HTTP ${status})`, cause, retryAfterMs: retryAfter(headers) })
}

/** The failure that an error object inside an answer with status 200 means: a frame of a stream, or a whole body. */
export function errorInAnswer(model: string, body: object): ServiceError {
  const cause = new Error(`upstream reported: ${JSON.stringify(body).slice(0, MESSAGE_MAX)}`)
  const complaint = readComplaint(body)
  return classify(model, statusOf(complaint), complaint, { how: ' inside its answer', cause, retryAfterMs: undefined })
}

/** The failure that a broken or impossible connection means. */
export function connectionError(model: string, cause: unknown): ServiceError {
  const reason = (cause as { code?: unknown } | null)?.code
  if (reason === 'UND_ERR_CONNECT_TIMEOUT') {
    return new ServiceError(
      'upstream_timeout',
      `The upstream of model '${model}' did not accept the connection in time.`,
      {
        cause,
      },
    )
  }
  return new ServiceError('upstream_error', `The connection to the upstream of model '${model}' failed.`, { cause })
}

/** The failure that an answer nobody can read means. `what` completes the sentence "The upstream … ". */
export function answerError(model: string, what: string, cause?: unknown): ServiceError {
  return new ServiceError('upstream_error', `The upstream of model '${model}' ${what}.`, { cause })
}

/** True when the object of an answer or frame carries an error instead of output. */
export function hasError(body: object): boolean {
  const { error, object, type } = body as Record<string, unknown>
  return (error !== undefined && error !== null) || object === 'error' || type === 'error'
}

function classify(
  model: string,
  status: number,
  complaint: Complaint,
  { how, cause, retryAfterMs }: { how: string; cause: Error; retryAfterMs: number | undefined },
): ServiceError {
  const wait = retryAfterMs === undefined ? { cause } : { cause, retryAfterMs }
  const upstream = `The upstream of model '${model}'`
  if (status === 400 || status === 413 || status === 422) return requestError(upstream, status, complaint, cause)
  if (BUSY.has(status)) return new ServiceError('overloaded', `${upstream} is busy${how}.`, wait)
  if (status >= 500 && status !== NOT_IMPLEMENTED)
    return new ServiceError('upstream_error', `${upstream} failed${how}.`, wait)
  return new ServiceError('upstream_refused', `${upstream} refused the call${how}.`, { cause })
}

function requestError(upstream: string, status: number, complaint: Complaint, cause: Error): ServiceError {
  const message = complaint.message?.slice(0, MESSAGE_MAX) ?? `${upstream} cannot work with this request.`
  const isFull =
    complaint.code === 'context_length_exceeded' ||
    complaint.type === 'exceed_context_size_error' ||
    CONTEXT_FULL.test(message)
  if (isFull) {
    return new ServiceError('context_length_exceeded', message, { cause, param: complaint.param ?? 'messages' })
  }
  const code = AUDIO_CODES.find((known) => known === complaint.code)
  const usual: ErrorCode = status === 413 ? 'request_too_large' : 'invalid_request'
  return new ServiceError(code ?? usual, message, { cause, param: complaint.param })
}

const STATUS_OF_TYPE: Record<string, number> = {
  invalid_request_error: 400,
  BadRequestError: 400,
  authentication_error: 401,
  permission_error: 403,
  not_found_error: 404,
  request_too_large: 413,
  rate_limit_error: 429,
  rate_limit_exceeded: 429,
  overloaded_error: 429,
}

function statusOf(complaint: Complaint): number {
  const code = Number(complaint.code)
  if (Number.isInteger(code) && code >= 400 && code <= 599) return code
  return STATUS_OF_TYPE[complaint.type ?? ''] ?? STATUS_OF_TYPE[String(complaint.code)] ?? 500
}

/**
 * Reads the error bodies in use: `{error:{message,type,param,code}}` (OpenAI, Anthropic, llama.cpp), `{error:"…"}`
 * (Ollama), the same fields without the envelope (older vLLM), `{detail}` (FastAPI).
 */
function readComplaint(body: unknown): Complaint {
  const root = asObject(body)
  const inner = typeof root.error === 'string' ? { message: root.error } : { ...root, ...asObject(root.error) }
  const { message, detail, type, code, param } = inner as Record<string, unknown>
  return {
    message: typeof message === 'string' ? message : detailText(detail),
    type: typeof type === 'string' ? type : undefined,
    code: typeof code === 'string' || typeof code === 'number' ? code : undefined,
    param: typeof param === 'string' && param !== '' ? param : null,
  }
}

function detailText(detail: unknown): string | undefined {
  if (typeof detail === 'string') return detail
  if (!Array.isArray(detail)) return undefined
  const first = asObject(detail[0])
  const path = Array.isArray(first.loc) ? first.loc.filter((step) => step !== 'body').join('.') : ''
  return typeof first.msg === 'string' ? `${path}: ${first.msg}` : undefined
}

/** `retry-after-ms`, else `retry-after` in seconds or as an HTTP date (RFC 9110 §10.2.3). */
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

function asObject(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    // A proxy's HTML page or nothing at all: the status alone speaks then.
    return undefined
  }
}
