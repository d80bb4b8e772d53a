import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import { type MessagesTool, type MessagesToolChoice, Unknown } from '#schemas/messages.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { extraOf } from '#services/ingress/body/validate.ts'
import { requireToolChoice, requireTools } from '#services/ingress/endpoints/decode.ts'
import { clientTool } from './client-tools.ts'
import { isMessagesUpstream } from './native.ts'
import { isSearch } from './web-search.ts'

const CONSUMED: ReadonlySet<string> = new Set(['name', 'description', 'input_schema', 'strict'])

/**
 * Tools of a request. A tool of another type than `custom` is passed unchanged to an upstream of the Messages API. For
 * other upstreams, a client tool becomes a function, and any other tool is left out.
 *
 * @throws ServiceError for duplicate names, and for a model without tool calls
 */
export function decodeTools(tools: readonly MessagesTool[], model: ModelConfig): Tool[] {
  const decoded = tools.map((tool, index) => (tool instanceof Unknown ? nativeTool(tool, index) : customTool(tool)))
  const needed = isMessagesUpstream(model) ? decoded : decoded.filter(({ native_only }) => !native_only)
  if (needed.length > 0) requireTools(model, decoded, (index) => `tools[${index}].name`)
  return decoded
}

function customTool(tool: Exclude<MessagesTool, Unknown>): Tool {
  return {
    name: tool.name,
    description: tool.description ?? undefined,
    parameters: tool.input_schema,
    strict: tool.strict ?? undefined,
    extra: extraOf(tool, CONSUMED),
  }
}

/** Sets of tools have no name of their own, so the type and the index replace it. */
function nativeTool({ value }: Unknown, index: number): Tool {
  const name = typeof value.name === 'string' && value.name !== '' ? value.name : `${value.type}_${index}`
  const stand = clientTool(value)
  if (stand) return { name, ...stand, native: value }
  return { name, parameters: { type: 'object', properties: {} }, native: value, native_only: true }
}

type Choice = Pick<GenerateRequest, 'tool_choice' | 'parallel_tool_calls'>

/** Internal form of a tool choice. Fields without an internal form are in {@link choiceExtra}. */
export function toolUse(choice: MessagesToolChoice | undefined, tools: readonly Tool[], model: ModelConfig): Choice {
  if (choice === undefined || choice instanceof Unknown) return {}
  const use = internalChoice(choice)
  requireToolChoice(use, tools, choice.type === 'tool' ? 'tool_choice.name' : 'tool_choice')
  // Without tools there is no choice, and upstreams refuse these fields.
  if (tools.length === 0) return {}
  if (choice.type === 'none') return { tool_choice: use }
  const chosen = tools.find(({ name }) => use?.type === 'tool' && name === use.name)
  // A search tool is left out later, if no search is possible (web-search.ts).
  const isLeftOut = chosen?.native_only === true && !isSearch(chosen.native) && !isMessagesUpstream(model)
  const parallel_tool_calls = choice.disable_parallel_tool_use ? false : undefined
  return { tool_choice: isLeftOut ? { type: 'auto' } : use, parallel_tool_calls }
}

function internalChoice(choice: Exclude<MessagesToolChoice, Unknown>): GenerateRequest['tool_choice'] {
  if (choice.type === 'tool') return { type: 'tool', name: choice.name }
  return { type: choice.type === 'any' ? 'required' : choice.type }
}

const CHOICE_CONSUMED: ReadonlySet<string> = new Set(['type', 'name'])

/** Parts of a tool choice for an upstream of the same dialect; the whole choice if its type is unknown. */
export function choiceExtra(choice: MessagesToolChoice | null | undefined): Record<string, unknown> | undefined {
  if (!choice) return undefined
  return choice instanceof Unknown ? choice.value : extraOf(choice, CHOICE_CONSUMED)
}
