import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import {
  FunctionTool,
  type ResponsesRequest,
  type ResponsesTool,
  type ResponsesToolChoice,
} from '#schemas/responses/request.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseAt } from '#services/ingress/body/validate.ts'
import { refuse, requireNamed, requireToolChoice } from '#services/ingress/endpoints/decode.ts'

/** A tool of a request. @throws ServiceError for those of other types than `function`, by their name */
export function decodeTool(tool: ResponsesTool, index: number): Tool {
  if (tool.type !== 'function') return refuseType(tool.type, `tools[${index}].type`)
  const { name, description, parameters, strict } = parseAt(FunctionTool, tool, ['tools', index])
  return {
    name,
    description: description ?? undefined,
    parameters: parameters ?? { type: 'object', properties: {} },
    strict: strict ?? undefined,
  }
}

/** A tool as a response shows it. */
export function shownTool({ name, description, parameters, strict }: Tool): object {
  return { type: 'function', name, description: description ?? null, parameters, strict: strict ?? null }
}

/** How the tools of a request are to be used. */
export function toolUse(
  { tool_choice, parallel_tool_calls }: Pick<ResponsesRequest, 'tool_choice' | 'parallel_tool_calls'>,
  tools: readonly Tool[],
): Pick<GenerateRequest, 'tool_choice' | 'allowed_tools' | 'parallel_tool_calls'> {
  const use = tool_choice ? toolChoice(tool_choice, tools) : {}
  requireToolChoice(use.tool_choice, tools)
  // Without tools there is nothing to choose, and upstreams refuse the mere words.
  if (tools.length === 0) return {}
  return { ...use, parallel_tool_calls: parallel_tool_calls ?? undefined }
}

function toolChoice(
  choice: ResponsesToolChoice,
  tools: readonly Tool[],
): Pick<GenerateRequest, 'tool_choice' | 'allowed_tools'> {
  if (typeof choice === 'string') return { tool_choice: { type: choice } }
  if (choice.type === 'function') return { tool_choice: { type: 'tool', name: nameOf(choice, 'tool_choice') } }
  if (choice.type !== 'allowed_tools') return refuseType(choice.type, 'tool_choice.type')
  const allowed = choice.tools ?? []
  if (allowed.length === 0) {
    refuse('missing_required_parameter', 'tool_choice.tools', "Missing required parameter: 'tool_choice.tools'.")
  }
  const names = allowed.map((tool, index) => {
    const param = `tool_choice.tools[${index}]`
    return tool.type === 'function' ? nameOf(tool, param) : refuseType(tool.type, `${param}.type`)
  })
  for (const name of names) requireNamed(name, tools, 'tool_choice')
  return { tool_choice: { type: choice.mode ?? 'auto' }, allowed_tools: names }
}

function nameOf({ name }: { readonly name?: string | null | undefined }, param: string): string {
  if (name) return name
  return refuse('missing_required_parameter', `${param}.name`, `Missing required parameter: '${param}.name'.`)
}

function refuseType(type: string, param: string): never {
  const message = `Unsupported value: tools of type '${excerpt(type)}' are not supported. Supported is: function.`
  return refuse('unsupported_value', param, message)
}
