import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import {
  CustomTool,
  FunctionTool,
  NamespaceTool,
  type ResponsesRequest,
  ResponsesTool,
  type ResponsesToolChoice,
} from '#schemas/responses/request.ts'
import { refuse, requireNamed, requireToolChoice } from '#services/ingress/body/decode.ts'
import { extraOf, parseAt } from '#services/ingress/body/validate.ts'
import { decodeHosted, hostedTool } from './hosted-tools.ts'

/*
 * Converts the tools of a request to functions for the model (docs/guides/responses.md, Tools).
 *
 * `function`: a function.
 *
 * `custom`: native for an upstream of the Responses API, otherwise a function with one string, `input`.
 *
 * `namespace`: native for an upstream of the Responses API, otherwise its functions. If two functions have the same
 * name, then the namespace becomes a prefix: `mcp__files__read`. Calls are returned with the name and namespace of the
 * request.
 *
 * `code_interpreter`, `web_search`, `file_search`: a function that Sluice runs, or native.
 *
 * All others (`local_shell`, `mcp`, `tool_search`, future types) are native. Upstreams of other APIs do not receive
 * them, because only the client or OpenAI can run them.
 */

export interface DecodedTool {
  readonly tool: Tool
  /** Path of the tool in the body, such as `tools[2]`. */
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
/** Separator between the namespace and the name of a function. */
const NAMESPACE_SEPARATOR = '__'

/**
 * Tools of a body, including those that input items add, such as `additional_tools`.
 *
 * @param isHosting True if Sluice runs the hosted tools of the request; otherwise they are native
 * @throws ServiceError with the path of the first problem
 */
export function decodeTools(
  { tools, input }: Pick<ResponsesRequest, 'tools' | 'input'>,
  isHosting: boolean,
): DecodedTool[] {
  const decoded = (tools ?? []).flatMap((tool, index) => decodeTool(tool, ['tools', index], isHosting))
  const known = new Set(decoded.map(({ tool }) => keyOf(tool.name, tool.namespace)))
  for (const { tool, path } of Array.isArray(input) ? toolsOfItems(input) : []) {
    const key = keyOf(tool.name, tool.namespace)
    if (tool.native_only || known.has(key)) continue
    known.add(key)
    // An upstream of the Responses API receives the item, which contains the tool.
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
        refuse('array_above_max_length', `input[${index}].tools`, `Items add more than ${TOOLS_OF_ITEMS_MAX} tools.`)
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

/** Converts a custom tool to a function. Other APIs cannot enforce a grammar, so the description contains it. */
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
    // An upstream of the Responses API receives the namespace once, from its first function. The others add nothing.
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

/** Adds the namespace as a prefix to functions whose name is not unique. */
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

/** Returns a function that maps the name and namespace of a call to the function name that the model uses. */
export function toolNames(tools: readonly Tool[]): (name: string, namespace: unknown) => string {
  const names = new Map(tools.map((tool) => [keyOf(tool.called ?? tool.name, tool.namespace), tool.name]))
  return (name, namespace) => names.get(keyOf(name, namespace)) ?? name
}

function keyOf(name: string, namespace: unknown): string {
  return JSON.stringify([name, namespace ?? null])
}

/** Tools as the response repeats them, with defaults for absent fields. */
export function shownTools(asked: ResponsesRequest['tools']): object[] {
  return (asked ?? []).map((tool) => {
    if (tool.type !== 'function') return tool
    const { description, parameters, strict } = tool
    const usual = { parameters: parameters ?? { type: 'object', properties: {} }, strict: strict ?? null }
    return { ...tool, description: description ?? null, ...usual }
  })
}

type ToolUse = Pick<GenerateRequest, 'tool_choice' | 'allowed_tools' | 'parallel_tool_calls'>

/** Internal form of the tool choice. If there is none, then `native` is the choice of the request. */
export function toolUse(
  { tool_choice, parallel_tool_calls }: Pick<ResponsesRequest, 'tool_choice' | 'parallel_tool_calls'>,
  tools: readonly Tool[],
): { readonly use: ToolUse; readonly native: unknown } {
  const functions = tools.filter((tool) => !tool.native_only)
  const { native, ...use } = tool_choice ? toolChoice(tool_choice, functions) : { native: undefined }
  // `required` is valid without functions if there is a native tool.
  if (functions.length > 0 || tools.length === 0) requireToolChoice(use.tool_choice, functions)
  // Upstreams refuse these fields in a request without tools.
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
  // If the model does not receive the chosen tool, then the model chooses freely.
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
