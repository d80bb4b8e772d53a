import type { GenerateRequest, Tool, Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import {
  type AnyItem,
  CustomTool,
  FunctionTool,
  NamespaceTool,
  type ResponsesRequest,
  ResponsesTool,
  type ResponsesToolChoice,
} from '#schemas/responses/request.ts'
import {
  type DecodeContext,
  outputTokens,
  refuse,
  requireBoundedSchemas,
  requireJson,
  requireNamed,
  requireToolChoice,
  requireTools,
} from '#services/ingress/body/decode.ts'
import { extraOf, type Pieces, parseAt } from '#services/ingress/body/validate.ts'
import { decodeHosted, hostedTool } from './hosted-tools.ts'
import { ItemTurns } from './items.ts'

export interface ConversationContext {
  /** Prompt of the previous response, without instructions. */
  readonly turns: readonly Turn[]
  readonly items: readonly AnyItem[]
  readonly param: 'previous_response_id' | 'conversation'
  readonly referenced: ReadonlyMap<string, AnyItem>
  /** Maximum characters of all referenced items, because a reference of a few characters can refer to megabytes. */
  readonly referencedCharsMax: number
}

const PIECE_ITEMS = 100

/**
 * Decodes a body whose shape was already checked (docs/guides/responses.md, Requests). The model is checked first, then
 * the rules that depend on the model, then the items.
 *
 * @throws ServiceError with the path of the first problem
 */
export function* decodeResponses(
  body: ResponsesRequest,
  before: ConversationContext,
  context: DecodeContext & { readonly isHosting: boolean },
): Pieces<GenerateRequest> {
  const model = context.getModel(body.model)
  const decoded = decodeTools(body, context.isHosting)
  const tools = decoded.map(({ tool }) => tool)
  const functions = decoded.filter(({ tool }) => !tool.native_only)
  const offered = functions.map(({ tool }) => tool)
  const pathAt = (field: string) => (index: number) => `${functions[index]?.path}.${field}`
  requireTools(model, offered, pathAt('name'))
  const format = responseFormat(body, model)
  requireBoundedSchemas(offered, pathAt('parameters'), format, 'text.format.schema')
  const logprobs = wantsLogprobs(body, model)
  const turns = yield* decodeInput(body, before, context, model, tools)
  const { use, native } = toolUse(body, tools)
  return {
    dialect: 'responses',
    model: model.id,
    turns,
    stream: body.stream ?? false,
    truncates: body.truncation === 'auto' ? true : undefined,
    max_tokens: outputTokens(model, body.max_output_tokens ?? undefined),
    temperature: body.temperature ?? undefined,
    top_p: body.top_p ?? undefined,
    n: 1,
    stop: [],
    presence_penalty: body.presence_penalty ?? undefined,
    frequency_penalty: body.frequency_penalty ?? undefined,
    logprobs,
    top_logprobs: logprobs ? (body.top_logprobs ?? undefined) : undefined,
    tools,
    ...use,
    response_format: format,
    reasoning: reasoning(body, model),
    user: body.user ?? undefined,
    extra: extra(body, native),
  }
}

function* decodeInput(
  { input, instructions, previous_response_id, conversation, prompt }: ResponsesRequest,
  before: ConversationContext,
  { remoteImages }: DecodeContext,
  model: ModelConfig,
  tools: readonly Tool[],
): Pieces<Turn[]> {
  const items = new ItemTurns({ model, remoteImages, ...before, nameOf: toolNames(tools) })
  if (instructions) items.turns.push({ role: 'system', parts: [{ type: 'text', text: instructions }] })
  items.addTurns(before.turns, before.param)
  for (const item of before.items) yield* items.add(item, [before.param])
  if (typeof input === 'string') yield* items.add({ type: 'message', role: 'user', content: input }, ['input'])
  else if (!input || input.length === 0) {
    // The upstream may store a prompt template that already contains the input, so an empty input is allowed with
    // `prompt`.
    if (!prompt) refuseEmpty(input, previous_response_id ? before.param : conversation && before.param)
  } else {
    for (const [index, item] of input.entries()) {
      if (index % PIECE_ITEMS === 0) yield
      yield* items.add(item, ['input', index])
    }
  }
  return items.finish()
}

function refuseEmpty(input: readonly unknown[] | null | undefined, param: string | null | undefined): void {
  if (input) return refuse('empty_array', 'input', "Invalid 'input': empty array. Expected at least one item.")
  const message = param
    ? `Missing required parameter: 'input'. A request with '${param}' needs new input.`
    : "Missing required parameter: 'input'."
  refuse('missing_required_parameter', 'input', message)
}

function responseFormat({ text }: ResponsesRequest, model: ModelConfig): GenerateRequest['response_format'] {
  const format = text?.format
  if (!format || format.type === 'text') return undefined
  requireJson(model, 'text.format')
  if (format.type === 'json_object') return { type: 'json_object' }
  const { name, description, schema, strict } = format
  return {
    type: 'json_schema',
    name,
    description: description ?? undefined,
    schema,
    strict: strict ?? undefined,
  }
}

function wantsLogprobs({ include, top_logprobs }: ResponsesRequest, model: ModelConfig): boolean {
  const isWanted = include?.includes('message.output_text.logprobs') || (top_logprobs ?? 0) > 0
  if (isWanted && !model.capabilities.logprobs) {
    refuse('unsupported_value', 'top_logprobs', `The model '${model.id}' does not support log probabilities.`)
  }
  return isWanted
}

function reasoning({ reasoning }: ResponsesRequest, model: ModelConfig): GenerateRequest['reasoning'] {
  const effort = reasoning?.effort
  if (!effort || !model.capabilities.reasoning) return undefined
  return effort === 'none' ? { effort, enabled: false } : { effort }
}

/**
 * Fields that `GenerateRequest` represents, or that concern only the stored response. An upstream of the Responses API
 * receives all other fields unchanged.
 */
const CONSUMED: ReadonlySet<string> = new Set([
  ...['model', 'input', 'instructions', 'previous_response_id', 'conversation', 'tools', 'tool_choice', 'stream'],
  ...['parallel_tool_calls', 'reasoning', 'text', 'background', 'include', 'max_output_tokens', 'metadata'],
  ...[
    'presence_penalty',
    'frequency_penalty',
    'store',
    'stream_options',
    'temperature',
    'top_logprobs',
    'top_p',
    'user',
  ],
])
const REASONING_CONSUMED: ReadonlySet<string> = new Set(['effort'])
const TEXT_CONSUMED: ReadonlySet<string> = new Set(['format'])
const NOTHING: ReadonlySet<string> = new Set()

function extra(body: ResponsesRequest, toolChoice: unknown): Record<string, unknown> | undefined {
  return extraOf(
    {
      ...extraOf(body, CONSUMED),
      reasoning: extraOf(body.reasoning ?? {}, REASONING_CONSUMED),
      text: extraOf(body.text ?? {}, TEXT_CONSUMED),
      include: body.include?.length ? body.include : undefined,
      tool_choice: toolChoice,
    },
    NOTHING,
  )
}

/*
 * Converts the tools of a request to functions for the model (docs/guides/responses.md, Tools). An upstream of the
 * Responses API receives a native tool unchanged.
 *
 * `function`: a function.
 *
 * `custom`: native for an upstream of the Responses API, otherwise a function with one string, `input`.
 *
 * `namespace`: native for an upstream of the Responses API, otherwise its functions. If two functions have equal names,
 * then the namespace becomes a prefix: `mcp__files__read`. Calls are returned with the name and namespace of the
 * request.
 *
 * `code_interpreter`, `web_search`, `file_search`: a function that Sluice runs, or native.
 *
 * All others (`local_shell`, `mcp`, `tool_search`, future types) are native. Upstreams of other APIs do not receive
 * them, because only the client or OpenAI can run them.
 */

interface DecodedTool {
  readonly tool: Tool
  readonly path: string
}

type Path = readonly (string | number)[]

const FUNCTION_CONSUMED: ReadonlySet<string> = new Set(['type', 'name', 'description', 'parameters', 'strict'])
const CUSTOM_INPUT = {
  type: 'object',
  properties: { input: { type: 'string', description: 'The whole input of the tool, as free text' } },
  required: ['input'],
  additionalProperties: false,
}
const NAMESPACE_SEPARATOR = '__'

/**
 * Decodes the tools of a body, including tools that input items such as `additional_tools` add.
 *
 * @param isHosting If true, then Sluice runs the hosted tools of the request. If false, then the upstream receives them
 * @throws ServiceError with the path of the first problem
 */
function decodeTools({ tools, input }: Pick<ResponsesRequest, 'tools' | 'input'>, isHosting: boolean): DecodedTool[] {
  const decoded = (tools ?? []).flatMap((tool, index) => decodeTool(tool, ['tools', index], isHosting))
  const known = new Set(decoded.map(({ tool }) => keyOf(tool.name, tool.namespace)))
  for (const { tool, path } of Array.isArray(input) ? toolsOfItems(input) : []) {
    const key = keyOf(tool.name, tool.namespace)
    if (tool.native_only || known.has(key)) continue
    known.add(key)
    // An upstream of the Responses API receives the whole item, which already contains the tool. With `native: null`, the tool is not sent a second
    // time.
    decoded.push({ tool: { ...tool, native: null }, path })
  }
  return withUniqueNames(decoded)
}

const WITH_TOOLS: ReadonlySet<unknown> = new Set(['additional_tools', 'tool_search_output'])
const TOOLS_OF_ITEMS_MAX = 1_024

function toolsOfItems(items: readonly unknown[]): DecodedTool[] {
  const found: DecodedTool[] = []
  for (const [index, item] of items.entries()) {
    const { type, tools } = (item ?? {}) as { type?: unknown; tools?: unknown }
    if (!WITH_TOOLS.has(type) || !Array.isArray(tools)) continue
    for (const [at, tool] of tools.entries()) {
      if (found.length >= TOOLS_OF_ITEMS_MAX) {
        refuse(
          'array_above_max_length',
          `input[${index}].tools`,
          `The input items add more than ${TOOLS_OF_ITEMS_MAX} tools.`,
        )
      }
      const path = ['input', index, 'tools', at]
      found.push(...decodeTool(parseAt(ResponsesTool, tool, path), path, false))
    }
  }
  return found
}

function decodeTool(tool: ResponsesTool, path: Path, isHosting: boolean): DecodedTool[] {
  const at = placeOf(path)
  const hosted = hostedTool(tool.type)
  if (hosted && isHosting) return [{ tool: decodeHosted(hosted, tool, path), path: at }]
  switch (tool.type) {
    case 'function':
      return [{ tool: decodeFunction(tool, path), path: at }]
    case 'custom':
      return [{ tool: { ...decodeCustom(tool, path), native: tool }, path: at }]
    case 'namespace':
      return decodeNamespace(tool, path, at)
    default:
      return [{ tool: nativeOnly(tool), path: at }]
  }
}

function decodeFunction(tool: ResponsesTool, path: Path): Tool {
  const { name, description, parameters, strict } = parseAt(FunctionTool, tool, path)
  return {
    name,
    description: description ?? undefined,
    parameters: parameters ?? { type: 'object', properties: {} },
    strict: strict ?? undefined,
    extra: extraOf(tool, FUNCTION_CONSUMED),
  }
}

/**
 * Converts a custom tool to a function. Other APIs cannot enforce a grammar, so the description contains the grammar.
 */
function decodeCustom(tool: ResponsesTool, path: Path): Tool {
  const { name, description, format } = parseAt(CustomTool, tool, path)
  const grammar = format?.definition ? `The input must follow this grammar:\n${format.definition}` : undefined
  const text = [description, grammar].filter((part) => part).join('\n\n')
  return { name, description: text || undefined, parameters: CUSTOM_INPUT, custom: true }
}

function decodeNamespace(tool: ResponsesTool, path: Path, at: string): DecodedTool[] {
  const { name: namespace, tools } = parseAt(NamespaceTool, tool, path)
  if (tools.length === 0) return [{ tool: nativeOnly(tool), path: at }]
  return tools.map((inner, index): DecodedTool => {
    const innerPath = [...path, 'tools', index]
    // An upstream of the Responses API must receive the namespace only once. The first function therefore contains the
    // whole namespace as `native`, and the other functions have null.
    const native = index === 0 ? tool : null
    const innerPlace = `${at}.tools[${index}]`
    if (inner.type !== 'function' && inner.type !== 'custom') {
      return { tool: { ...nativeOnly(inner), native }, path: innerPlace }
    }
    const decoded = inner.type === 'custom' ? decodeCustom(inner, innerPath) : decodeFunction(inner, innerPath)
    return { tool: { ...decoded, namespace, native, extra: undefined }, path: innerPlace }
  })
}

function placeOf(path: Path): string {
  return path.reduce<string>((at, key) => (typeof key === 'number' ? `${at}[${key}]` : `${at}${at && '.'}${key}`), '')
}

function nativeOnly(tool: ResponsesTool): Tool {
  const name = typeof tool.name === 'string' ? tool.name : tool.type
  return { name, parameters: {}, native: tool, native_only: true }
}

/** Adds the namespace as a prefix to functions with the same name. */
function withUniqueNames(decoded: readonly DecodedTool[]): DecodedTool[] {
  const counts = new Map<string, number>()
  for (const { tool } of decoded) {
    if (!tool.native_only) counts.set(tool.name, (counts.get(tool.name) ?? 0) + 1)
  }
  return decoded.map(({ tool, path }) => {
    const { name, namespace } = tool
    if (namespace === undefined || tool.native_only || counts.get(name) === 1) return { tool, path }
    return { tool: { ...tool, name: `${namespace}${NAMESPACE_SEPARATOR}${name}`, called: name }, path }
  })
}

function toolNames(tools: readonly Tool[]): (name: string, namespace: unknown) => string {
  const names = new Map(tools.map((tool) => [keyOf(tool.called ?? tool.name, tool.namespace), tool.name]))
  return (name, namespace) => names.get(keyOf(name, namespace)) ?? name
}

function keyOf(name: string, namespace: unknown): string {
  return JSON.stringify([name, namespace ?? null])
}

/** Returns the tools as the response repeats them. Missing fields of a function are filled with their defaults. */
export function shownTools(asked: ResponsesRequest['tools']): object[] {
  return (asked ?? []).map((tool) => {
    if (tool.type !== 'function') return tool
    const { description, parameters, strict } = tool
    const usual = { parameters: parameters ?? { type: 'object', properties: {} }, strict: strict ?? null }
    return { ...tool, description: description ?? null, ...usual }
  })
}

type ToolUse = Pick<GenerateRequest, 'tool_choice' | 'allowed_tools' | 'parallel_tool_calls'>

/**
 * Returns the tool choice as fields of `GenerateRequest`. If these fields cannot represent the choice, then `native`
 * contains the choice as the client sent it.
 */
function toolUse(
  { tool_choice, parallel_tool_calls }: Pick<ResponsesRequest, 'tool_choice' | 'parallel_tool_calls'>,
  tools: readonly Tool[],
): { readonly use: ToolUse; readonly native: unknown } {
  const functions = tools.filter((tool) => !tool.native_only)
  const { native, ...use } = tool_choice ? toolChoice(tool_choice, functions) : { native: undefined }
  // If the request has only native tools, which an upstream receives unchanged, then it has no functions. A choice such as
  // `required` is valid nevertheless, so the check is skipped.
  if (functions.length > 0 || tools.length === 0) requireToolChoice(use.tool_choice, functions)
  // Upstreams refuse `tool_choice` and `parallel_tool_calls` in a request without tools.
  if (tools.length === 0) return { use: {}, native: undefined }
  if (functions.length === 0) return { use: {}, native: native ?? tool_choice }
  return { use: { ...use, parallel_tool_calls: parallel_tool_calls ?? undefined }, native }
}

function toolChoice(
  choice: ResponsesToolChoice,
  tools: readonly Tool[],
): Pick<ToolUse, 'tool_choice' | 'allowed_tools'> & { readonly native: unknown } {
  if (typeof choice === 'string') return { tool_choice: { type: choice }, native: undefined }
  if (choice.type === 'allowed_tools') return allowedTools(choice, tools)
  if (choice.type === 'function') {
    return { tool_choice: { type: 'tool', name: nameOf(choice, 'tool_choice') }, native: undefined }
  }
  const name = hostedTool(choice.type) ?? choice.name
  const isOffered = tools.some((tool) => tool.name === name)
  if (hostedTool(choice.type) && isOffered)
    return { tool_choice: { type: 'tool', name: name as string }, native: undefined }
  // If the model does not receive the chosen tool, then the internal request has no tool choice, and the model chooses
  // freely.
  return { ...(isOffered && name && { tool_choice: { type: 'tool', name } }), native: choice }
}

function allowedTools(choice: Exclude<ResponsesToolChoice, string>, tools: readonly Tool[]) {
  const allowed = choice.tools ?? []
  if (allowed.length === 0) {
    refuse('missing_required_parameter', 'tool_choice.tools', "Missing required parameter: 'tool_choice.tools'.")
  }
  const names: string[] = []
  for (const [index, tool] of allowed.entries()) {
    const hosted = hostedTool(tool.type)
    const name = hosted ?? tool.name
    if (tool.type === 'function') {
      const named = nameOf(tool, `tool_choice.tools[${index}]`)
      requireNamed(named, tools, 'tool_choice')
      names.push(named)
    } else if (name && tools.some((offered) => offered.name === name)) names.push(name)
  }
  const areFunctions = allowed.every(({ type }) => type === 'function' || hostedTool(type))
  const native = areFunctions ? undefined : choice
  return { tool_choice: { type: choice.mode ?? 'auto' } as const, allowed_tools: names, native }
}

function nameOf({ name }: { readonly name?: string | null | undefined }, param: string): string {
  if (name) return name
  return refuse('missing_required_parameter', `${param}.name`, `Missing required parameter: '${param}.name'.`)
}
