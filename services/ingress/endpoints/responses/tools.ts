import type { GenerateRequest, HostedTool, Tool } from '#schemas/generate.ts'
import {
  CodeInterpreterTool,
  FunctionTool,
  type ResponsesRequest,
  type ResponsesTool,
  type ResponsesToolChoice,
} from '#schemas/responses/request.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseAt } from '#services/ingress/body/validate.ts'
import { refuse, requireNamed, requireToolChoice } from '#services/ingress/endpoints/decode.ts'

/** A tool of a request, one that the service runs as the function that it is to the model. @throws ServiceError for other types, by their name */
export function decodeTool(tool: ResponsesTool, index: number): Tool {
  if (isHosted(tool.type)) return HOSTED[tool.type](tool, ['tools', index])
  if (tool.type !== 'function') return refuseType(tool.type, `tools[${index}].type`)
  const { name, description, parameters, strict } = parseAt(FunctionTool, tool, ['tools', index])
  return {
    name,
    description: description ?? undefined,
    parameters: parameters ?? { type: 'object', properties: {} },
    strict: strict ?? undefined,
  }
}

/** The tools of a request that the service runs. */
export function hostedTools({
  tools,
  max_tool_calls,
}: Pick<ResponsesRequest, 'tools' | 'max_tool_calls'>): GenerateRequest['hosted'] {
  const named = (tools ?? []).map(({ type }) => type).filter(isHosted)
  return named.length === 0 ? undefined : { tools: named, calls_max: max_tool_calls ?? undefined }
}

/** Tools as a response shows them. @param tools What they were decoded into, in the same order */
export function shownTools(asked: ResponsesRequest['tools'], tools: readonly Tool[]): object[] {
  return tools.map(({ name, description, parameters, strict }, at) => {
    const tool = asked?.[at]
    if (tool && isHosted(tool.type)) return tool
    return { type: 'function', name, description: description ?? null, parameters, strict: strict ?? null }
  })
}

/** What the model is told of each tool that the service runs. */
const HOSTED: Readonly<Record<HostedTool, (tool: ResponsesTool, path: readonly PropertyKey[]) => Tool>> = {
  code_interpreter: (tool, path) => {
    const { container } = parseAt(CodeInterpreterTool, tool, path)
    const at = `tools[${String(path[1])}].container`
    if (typeof container === 'string') {
      refuse('unsupported_value', at, 'Containers are not kept: each call has a new one. Send {"type": "auto"}.')
    }
    if (container?.file_ids?.length) {
      const message = 'Files cannot be put into the sandbox yet. Give their content to the model in the input.'
      refuse('unsupported_parameter', `${at}.file_ids`, message)
    }
    return {
      name: 'code_interpreter',
      description: CODE_DESCRIPTION,
      parameters: {
        type: 'object',
        properties: { code: { type: 'string', description: 'Python source. Print what is to be seen.' } },
        required: ['code'],
        additionalProperties: false,
      },
    }
  },
}

const CODE_DESCRIPTION =
  'Runs Python in a sandbox without network and gives what it printed. Each call begins anew: nothing is kept between calls. ' +
  'numpy, pandas, scipy, matplotlib and seaborn are installed; plt.show() shows a figure to the user.'

function isHosted(type: string): type is HostedTool {
  return Object.hasOwn(HOSTED, type)
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
  if (isHosted(choice.type)) return { tool_choice: { type: 'tool', name: choice.type } }
  if (choice.type !== 'allowed_tools') return refuseType(choice.type, 'tool_choice.type')
  const allowed = choice.tools ?? []
  if (allowed.length === 0) {
    refuse('missing_required_parameter', 'tool_choice.tools', "Missing required parameter: 'tool_choice.tools'.")
  }
  const names = allowed.map((tool, index) => {
    const param = `tool_choice.tools[${index}]`
    if (isHosted(tool.type)) return tool.type
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
  const message = `Unsupported value: tools of type '${excerpt(type)}' are not supported. Supported are: function, ${Object.keys(HOSTED).join(', ')}.`
  return refuse('unsupported_value', param, message)
}
