import type { ErrorCode } from '#schemas/error.ts'
import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { SchemaBounds } from '#shared/json-schema/bounds.ts'
import { ServiceError } from '#shared/lib/error.ts'

export interface DecodeContext {
  /**
   * Finds a model by id or alias.
   *
   * @throws ServiceError `model_not_found`, `model_not_allowed`, `model_not_supported`
   */
  readonly getModel: (id: string) => ModelConfig
  /** In the Messages API: refuse turns that do not alternate (docs/reference/compatibility.md, Turns and blocks). */
  readonly strictTurns: boolean
  /** Whether remote image URLs are allowed (docs/reference/compatibility.md, Chat messages). Data URLs always are. */
  readonly remoteImages: boolean
}

export function refuse(code: ErrorCode, param: string, message: string): never {
  throw new ServiceError(code, message, { param })
}

/** Content that not every model can read. */
export type MediaKind = 'images' | 'audio' | 'files'

/** Refuses a part that the model cannot read. */
export function requireMedia(model: ModelConfig, kind: MediaKind, param: string): void {
  if (model.capabilities[kind]) return
  refuse('unsupported_value', param, `The model '${model.id}' does not read ${kind}.`)
}

/**
 * Refuses tools if the model cannot call them, and tools with duplicate names.
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

/**
 * Limits the total size of the JSON Schemas in a request, those of its tools and of its response format.
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
  for (const [index, { parameters }] of tools.entries()) bounds.check(parameters, paramAt(index))
  if (format?.type === 'json_schema') bounds.check(format.schema, formatParam)
}

/** Refuses a tool choice that names an unknown tool, or that requires a call in a request without tools. */
export function requireToolChoice(
  choice: GenerateRequest['tool_choice'],
  tools: readonly Tool[],
  param = 'tool_choice',
): void {
  if (choice?.type !== 'tool' && choice?.type !== 'required') return
  if (tools.length === 0) refuse('invalid_value', param, 'A tool choice that forces a call needs tools.')
  if (choice.type === 'tool') requireNamed(choice.name, tools, param)
}

export function requireNamed(name: string, tools: readonly Tool[], param: string): void {
  if (tools.some((tool) => tool.name === name)) return
  refuse('invalid_value', param, `The tool '${excerpt(name)}' is not among the tools of the request.`)
}

/** Refuses structured output for a model that cannot guarantee it. */
export function requireJson(model: ModelConfig, param: string): void {
  if (model.capabilities.json) return
  refuse('unsupported_value', param, `The model '${model.id}' cannot be held to a JSON format.`)
}

/**
 * Token limit of the answer: the requested or the default one, clamped to the model's maximum
 * (docs/reference/compatibility.md, Token limits). If undefined, the answer may fill the rest of the context.
 */
export function outputTokens(model: ModelConfig, asked: number | undefined): number | undefined {
  const { max_output_tokens: ceiling, default_output_tokens: usual } = model.limits
  const wanted = asked ?? usual
  return wanted === undefined || ceiling === undefined ? wanted : Math.min(wanted, ceiling)
}
