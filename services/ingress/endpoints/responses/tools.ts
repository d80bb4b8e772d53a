import { type GenerateRequest, HostedTool, type Tool } from '#schemas/generate.ts'
import {
  FunctionTool,
  type ResponsesRequest,
  type ResponsesTool,
  type ResponsesToolChoice,
} from '#schemas/responses/request.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseAt } from '#services/ingress/body/validate.ts'
import { refuse, requireNamed, requireToolChoice } from '#services/ingress/endpoints/decode.ts'
import { decodeHosted, hostedTool } from './hosted-tools.ts'

/** A tool of a request, one that the service runs as the function that it is to the model. @throws ServiceError for other types, by their name */
export function decodeTool(tool: ResponsesTool, index: number): Tool {
  const hosted = hostedTool(tool.type)
  if (hosted) return decodeHosted(hosted, tool, ['tools', index])
  if (tool.type !== 'function') return refuseType(tool.type, `tools[${index}].type`)
  const { name, description, parameters, strict } = parseAt(FunctionTool, tool, ['tools', index])
  return {
    name,
    description: description ?? undefined,
    parameters: parameters ?? { type: 'object', properties: {} },
    strict: strict ?? undefined,
  }
}

/** Tools as a response shows them. @param tools What they were decoded into, in the same order */
export function shownTools(asked: ResponsesRequest['tools'], tools: readonly Tool[]): object[] {
  return tools.map(({ name, description, parameters, strict }, at) => {
    const tool = asked?.[at]
    if (tool && hostedTool(tool.type)) return tool
    return { type: 'function', name, description: description ?? null, parameters, strict: strict ?? null }
  })
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
  const hosted = hostedTool(choice.type)
  if (hosted) return { tool_choice: { type: 'tool', name: hosted } }
  if (choice.type !== 'allowed_tools') return refuseType(choice.type, 'tool_choice.type')
  const allowed = choice.tools ?? []
  if (allowed.length === 0) {
    refuse('missing_required_parameter', 'tool_choice.tools', "Missing required parameter: 'tool_choice.tools'.")
  }
  const names = allowed.map((tool, index) => {
    const param = `tool_choice.tools[${index}]`
    const hosted = hostedTool(tool.type)
    if (hosted) return hosted
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
  const message = `Unsupported value: tools of type '${excerpt(type)}' are not supported. Supported are: function, ${HostedTool.options.join(', ')}.`
  return refuse('unsupported_value', param, message)
}
