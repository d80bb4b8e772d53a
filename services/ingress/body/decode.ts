import type { ErrorCode } from '#schemas/error.ts'
import { type EmbedInput, INPUTS_MAX } from '#schemas/kinds/embeddings.ts'
import type { GenerateRequest, Tool } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { SchemaBounds } from '#shared/json-schema/bounds.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { mayBePublic } from '#shared/outbound/guard.ts'
import { excerpt } from './problem.ts'

export interface DecodeContext {
  readonly getModel: (id: string) => ModelConfig
  /**
   * If true, then turns that do not alternate between user and assistant are refused (docs/reference/compatibility.md,
   * Turns and blocks). Only for the Messages API.
   */
  readonly strictTurns: boolean
  /** Whether remote image URLs are allowed (docs/reference/compatibility.md, Chat messages). Data URLs always are. */
  readonly remoteImages: boolean
}

export function refuse(code: ErrorCode, param: string, message: string): never {
  throw new ServiceError(code, message, { param })
}

type MediaKind = 'images' | 'audio' | 'files'

export function requireMedia(model: ModelConfig, kind: MediaKind, param: string): void {
  if (model.capabilities[kind]) return
  refuse('unsupported_value', param, `The model '${model.id}' does not read ${kind}.`)
}

/**
 * Refuses tools if the model cannot call tools, and refuses two tools with one name.
 *
 * @param paramAt Returns the path of a tool's name, by index
 */
export function requireTools(model: ModelConfig, tools: readonly Tool[], paramAt: (index: number) => string): void {
  if (tools.length > 0 && !model.capabilities.tools) {
    refuse('unsupported_parameter', 'tools', `The model '${model.id}' does not support tool calls.`)
  }
  const seen = new Set<string>()
  for (const [index, { name }] of tools.entries()) {
    if (seen.has(name))
      refuse('invalid_value', paramAt(index), `Tool names must be unique, but '${name}' occurs twice.`)
    seen.add(name)
  }
}

/** Types of JSON Schema (draft 2020-12, Validation, section 6.1.1). */
const SCHEMA_TYPES: ReadonlySet<string> = new Set([
  ...['object', 'array', 'string', 'number', 'integer', 'boolean', 'null'],
])

/**
 * Limits the total size of the JSON Schemas in a request, those of its tools and of its response format. Refuses a tool whose
 * schema has an unknown `type`, because models then invent arguments. Upper case is accepted, because some agents send it.
 *
 * @param paramAt Returns the path of a tool's schema, by index
 * @param formatParam Path of the response format's schema
 */
export function requireBoundedSchemas(
  tools: readonly Tool[],
  paramAt: (index: number) => string,
  format: GenerateRequest['response_format'],
  formatParam: string,
): void {
  if (tools.length === 0 && format?.type !== 'json_schema') return
  const bounds = new SchemaBounds()
  for (const [index, { parameters }] of tools.entries()) {
    const { type } = parameters
    if (typeof type === 'string' && !SCHEMA_TYPES.has(type.toLowerCase())) {
      const message = `The type of a tool's schema must be a type of JSON Schema, such as 'object'; got '${excerpt(type)}'.`
      refuse('invalid_value', `${paramAt(index)}.type`, message)
    }
    bounds.check(parameters, paramAt(index))
  }
  if (format?.type === 'json_schema') bounds.check(format.schema, formatParam)
}

export function requireToolChoice(
  choice: GenerateRequest['tool_choice'],
  tools: readonly Tool[],
  param = 'tool_choice',
): void {
  if (choice?.type !== 'tool' && choice?.type !== 'required') return
  if (tools.length === 0)
    refuse('invalid_value', param, 'A tool choice that forces a call requires tools, but the request has none.')
  if (choice.type === 'tool') requireNamed(choice.name, tools, param)
}

export function requireNamed(name: string, tools: readonly Tool[], param: string): void {
  if (tools.some((tool) => tool.name === name)) return
  refuse('invalid_value', param, `The tool '${excerpt(name)}' is not among the tools of the request.`)
}

export function requireJson(model: ModelConfig, param: string): void {
  if (model.capabilities.json) return
  refuse('unsupported_value', param, `The model '${model.id}' does not support JSON response formats.`)
}

/**
 * Returns the maximum number of tokens of the answer: the requested or default number, clamped to the model's maximum
 * (docs/reference/compatibility.md, Token limits). If undefined, then the answer may fill the rest of the context.
 */
export function outputTokens(model: ModelConfig, asked: number | undefined): number | undefined {
  const { max_output_tokens: ceiling, default_output_tokens: usual } = model.limits
  const wanted = asked ?? usual
  return wanted === undefined || ceiling === undefined ? wanted : Math.min(wanted, ceiling)
}

/**
 * Reads the inputs of a call (docs/reference/compatibility.md, Embedding requests): one text, several texts, one token
 * list, or several token lists. The type of the first element decides.
 *
 * The inputs are not checked with a zod schema, which would be slow for a call with 300,000 tokens.
 *
 * @param field Name of the field, such as `input`
 * @throws ServiceError a 400 with the path of the first problem, such as `input[3]`
 */
export function readInputs(input: unknown, field: string): EmbedInput[] {
  if (input === undefined || input === null) {
    return refuse('missing_required_parameter', field, `Missing required parameter: '${field}'.`)
  }
  if (typeof input === 'string') return [text(input, field)]
  if (!Array.isArray(input)) wrongType(field, 'a string or an array', input)
  if (input.length === 0) empty('array', field)
  if (typeof input[0] === 'number') return [tokens(input, field)]
  if (input.length > INPUTS_MAX) {
    const message = `Invalid '${field}': array too long. Expected an array with maximum length ${INPUTS_MAX}, but got an array with length ${input.length} instead.`
    refuse('array_above_max_length', field, message)
  }
  return Array.isArray(input[0])
    ? input.map((item, index) => tokens(item, `${field}[${index}]`))
    : input.map((item, index) => text(item, `${field}[${index}]`))
}

function text(value: unknown, path: string): string {
  if (typeof value !== 'string') wrongType(path, 'a string', value)
  if (value === '') empty('string', path)
  return value
}

function tokens(value: unknown, path: string): number[] {
  if (!Array.isArray(value)) wrongType(path, 'an array of tokens', value)
  if (value.length === 0) empty('array', path)
  for (let i = 0; i < value.length; i++) {
    const id: unknown = value[i]
    if (!Number.isInteger(id)) wrongType(`${path}[${i}]`, 'an integer', id)
    if ((id as number) < 0) {
      const message = `Invalid '${path}[${i}]': integer below minimum value. Expected a value >= 0, but got ${id} instead.`
      refuse('integer_below_min_value', `${path}[${i}]`, message)
    }
    // The worker checks whether a token exists, because only the worker has the vocabulary of the model.
    if (!Number.isSafeInteger(id)) {
      const message = `Invalid '${path}[${i}]': integer above maximum value. Expected a value <= ${Number.MAX_SAFE_INTEGER}, but got ${id} instead.`
      refuse('integer_above_max_value', `${path}[${i}]`, message)
    }
  }
  return value
}

function empty(kind: 'array' | 'string', path: string): never {
  const message = `Invalid '${path}': empty ${kind}. Expected ${kind === 'array' ? 'an' : 'a'} ${kind} with minimum length 1, but got an empty ${kind} instead.`
  return refuse(`empty_${kind}`, path, message)
}

function wrongType(path: string, expected: string, value: unknown): never {
  return refuse(
    'invalid_type',
    path,
    `Invalid type for '${path}': expected ${expected}, but got ${kindOf(value)} instead.`,
  )
}

function kindOf(value: unknown): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'an array'
  if (typeof value === 'object') return 'an object'
  return Number.isInteger(value) ? 'an integer' : `a ${typeof value === 'number' ? 'decimal number' : typeof value}`
}

const HEAD_CHARS_MAX = 256
/** Beginning of a data URL (RFC 2397): data:<type>/<subtype>[;attribute=value]*;base64,<data> */
const DATA_URL_HEAD = /^data:([a-z]+\/[a-z0-9.+-]+)(?:;[a-z0-9-]+=[^;,]*)*;base64,/i
const BASE64_PIECE_CHARS = 64 * 1024
const DECODED = Buffer.alloc((BASE64_PIECE_CHARS / 4) * 3)
const IMAGE_TYPES: ReadonlySet<string> = new Set(['image/png', 'image/jpeg', 'image/jpg', 'image/gif', 'image/webp'])

export function requireBase64(data: string, param: string): void {
  if (!isBase64(data)) throw new ServiceError('invalid_value', 'Expected base64-encoded data.', { param })
}

/**
 * Whether a text is base64. The check decodes the text, which is 30 times as fast as a regular expression. The decoder
 * skips invalid characters, so an invalid text decodes to fewer bytes than its length promises.
 */
function isBase64(data: string): boolean {
  const padding = data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0
  const length = data.length - padding
  // The decoder also accepts the URL-safe alphabet, which is not allowed here.
  if (length === 0 || length % 4 === 1 || data.includes('-') || data.includes('_')) return false
  for (let at = 0; at < length; at += BASE64_PIECE_CHARS) {
    const end = Math.min(length, at + BASE64_PIECE_CHARS)
    if (DECODED.write(data.slice(at, end), 'base64') !== Math.floor(((end - at) * 3) / 4)) return false
  }
  return true
}

export function requireDataUrl(url: string, param: string): string {
  const head = DATA_URL_HEAD.exec(url.slice(0, HEAD_CHARS_MAX))
  if (head === null) {
    const message = 'Expected a base64-encoded data URL, such as data:image/png;base64,iVBORw0….'
    throw new ServiceError('invalid_value', message, { param })
  }
  requireBase64(url.slice(head[0].length), param)
  return (head[1] as string).toLowerCase()
}

export function requireImageUrl(url: string, param: string, remoteImages: boolean): void {
  if (!url.slice(0, 5).toLowerCase().startsWith('data:')) return requireRemoteUrl(url, param, remoteImages)
  const type = requireDataUrl(url, param)
  if (IMAGE_TYPES.has(type)) return
  const message = `Unsupported image type '${type}'. Supported are image/png, image/jpeg, image/gif and image/webp.`
  throw new ServiceError('unsupported_value', message, { param })
}

/**
 * Checks an address that an upstream would fetch. The address must use https, be allowed by the operator, and not be in
 * a private network. The worker resolves the host name and checks the result right before the upstream call.
 *
 * @throws ServiceError a 400 that names `param`
 */
export function requireRemoteUrl(url: string, param: string, isAllowed: boolean): void {
  const parsed = URL.parse(url)
  if (parsed === null) throw new ServiceError('invalid_value', 'Expected a valid URL.', { param })
  if (!isAllowed) {
    const message = 'Remote URLs are not fetched by this service. Send the content as base64.'
    throw new ServiceError('unsupported_value', message, { param })
  }
  if (parsed.protocol !== 'https:') throw new ServiceError('invalid_value', 'Only https URLs are fetched.', { param })
  if (!mayBePublic(parsed)) {
    throw new ServiceError('invalid_value', 'Only URLs whose host is on the public internet are fetched.', { param })
  }
}
