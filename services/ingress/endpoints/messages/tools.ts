import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import { type MessagesTool, type MessagesToolChoice, Unknown } from '#schemas/messages.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { requireToolChoice, requireTools } from '#services/ingress/body/decode.ts'
import { extraOf } from '#services/ingress/body/validate.ts'
import { clientTool } from './client-tools.ts'
import { isMessagesUpstream } from './native.ts'
import { isSearch } from './web-search.ts'

const CONSUMED: ReadonlySet<string> = new Set(['name', 'description', 'input_schema', 'strict'])

/**
 * Decodes the tools of a request. Tools whose type is not `custom` are passed unchanged to an upstream of the Messages
 * API. For other upstreams, a client tool becomes a function, and all others are left out.
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

/** A toolset has no name, so its type and index form one. */
function nativeTool({ value }: Unknown, index: number): Tool {
  const name = typeof value.name === 'string' && value.name !== '' ? value.name : `${value.type}_${index}`
  const stand = clientTool(value)
  if (stand) return { name, ...stand, native: value }
  return { name, parameters: { type: 'object', properties: {} }, native: value, native_only: true }
}

type Choice = Pick<GenerateRequest, 'tool_choice' | 'parallel_tool_calls'>

/** Internal form of a tool choice. {@link choiceExtra} returns the fields that have none. */
export function toolUse(choice: MessagesToolChoice | undefined, tools: readonly Tool[], model: ModelConfig): Choice {
  if (choice === undefined || choice instanceof Unknown) return {}
  const use = internalChoice(choice)
  requireToolChoice(use, tools, choice.type === 'tool' ? 'tool_choice.name' : 'tool_choice')
  // Upstreams refuse these fields in a request without tools.
  if (tools.length === 0) return {}
  if (choice.type === 'none') return { tool_choice: use }
  const chosen = tools.find(({ name }) => use?.type === 'tool' && name === use.name)
  // Search tools stay for now: web-search.ts removes them later if no search is possible.
  const isLeftOut = chosen?.native_only === true && !isSearch(chosen.native) && !isMessagesUpstream(model)
  const parallel_tool_calls = choice.disable_parallel_tool_use ? false : undefined
  return { tool_choice: isLeftOut ? { type: 'auto' } : use, parallel_tool_calls }
}

function internalChoice(choice: Exclude<MessagesToolChoice, Unknown>): GenerateRequest['tool_choice'] {
  if (choice.type === 'tool') return { type: 'tool', name: choice.name }
  return { type: choice.type === 'any' ? 'required' : choice.type }
}

const CHOICE_CONSUMED: ReadonlySet<string> = new Set(['type', 'name'])

/** Fields of a tool choice for an upstream of the same dialect; the whole choice if its type is unknown. */
export function choiceExtra(choice: MessagesToolChoice | null | undefined): Record<string, unknown> | undefined {
  if (!choice) return undefined
  return choice instanceof Unknown ? choice.value : extraOf(choice, CHOICE_CONSUMED)
}
