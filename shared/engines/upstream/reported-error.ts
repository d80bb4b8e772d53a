/**
 * Reads error bodies of any server into one form:
 *
 * 1. OpenAI and Anthropic: `{error:{message,type,param,code}}`.
 * 2. Gemini: an array of such an object.
 * 3. Ollama and TGI: `{error:"…",error_type}`.
 * 4. vLLM: without an envelope.
 * 5. FastAPI: `{detail}`.
 * 6. Mistral: the detail in `message`.
 * 7. OpenRouter: the provider's error as JSON in `metadata.raw`.
 * 8. RFC 9457: `{title,detail}`.
 * 9. An event stream with one event, and plain text.
 *
 * Servers that pass on errors of other servers nest them, as objects or as JSON text. The innermost message is about the request.
 */

export interface ReportedError {
  readonly message: string | undefined
  readonly type: string | undefined
  readonly code: string | number | undefined
  readonly param: string | null
  readonly status: number | undefined
}

const NO_ERROR: ReportedError = { message: undefined, type: undefined, code: undefined, param: null, status: undefined }

const DEPTH_MAX = 6
/** Maximum characters of a plain-text message; longer texts are web pages. */
const PLAIN_CHARS_MAX = 500
/** Maximum characters of a JSON text inside a message that is parsed. */
const NESTED_CHARS_MAX = 64 * 1024

type Fields = Record<string, unknown>

/** Fields that contain the message, by priority. */
const MESSAGES = ['message', 'msg', 'Message', 'errorMessage', 'error_message', 'error', 'detail', 'error_description']
const TITLES = ['reason', 'title', 'description']
/** Fields that may contain the error of another server. */
const NESTED = ['error', 'errors', 'detail', 'message', 'response', 'body', 'raw']
const TYPES = ['type', 'error_type', 'status', '__type', 'object']
const CODES = ['code', 'error_code', 'errorCode']
const STATUSES = ['status', 'status_code', 'statusCode', 'http_status_code', 'http_status', 'error_code']

export function reportedErrorIn(text: string): ReportedError {
  const body = text.replace(/^\ufeff/, '').trim()
  const value = parsed(body, /^["{[]/) ?? eventIn(body)
  if (value !== undefined) return reportedErrorOf(value)
  const isPage = body.startsWith('<') || body.length > PLAIN_CHARS_MAX
  return isPage || body === '' ? NO_ERROR : { ...NO_ERROR, message: body }
}

export function reportedErrorOf(value: unknown, depth = 0): ReportedError {
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

/** The data of an event stream: of its first event with JSON, else of its first event. */
function eventIn(body: string): unknown {
  if (!/^(?:event|data|error|id|retry)?:/.test(body)) return undefined
  const data = [...body.matchAll(/^(?:data|error): ?(.*)$/gm)].map(([, text = '']) => text.trim())
  return data.map((text) => parsed(text)).find((value) => value !== undefined) ?? data.find((text) => text !== '')
}
