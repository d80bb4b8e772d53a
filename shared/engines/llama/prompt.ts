import type { Token } from 'node-llama-cpp'
import type { GenerateRequest, Part, Tool, Turn } from '#schemas/kinds/generate.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Prompt } from './format.ts'
import { type LlamaRuntime, leastTokens, promptTooLong, tokenizePrompt } from './runtime.ts'
import type { Conversation, TemplateMessage, TemplateTool } from './template/conversation.ts'

const SHOWN_SCHEMA_MAX = 2_000
/** Assumed size of the longest token in bytes, if the longest token of the vocabulary is unknown or longer than this. */
const TOKEN_BYTES_MAX = 256

export function refuseMedia(request: GenerateRequest): void {
  for (const [index, turn] of request.turns.entries()) {
    const part = turn.parts.find(({ type }) => type === 'image' || type === 'audio' || type === 'file')
    if (!part) continue
    const message = `The model ${request.model} reads text only, not ${part.type} parts.`
    throw new ServiceError('unsupported_value', message, { param: `messages[${index}].content` })
  }
}

export function offeredTools(request: GenerateRequest): Tool[] {
  if (request.tool_choice?.type === 'none') return []
  return request.tools.filter((tool) => request.allowed_tools?.includes(tool.name) ?? true)
}

export function describeAnswer(runtime: LlamaRuntime, request: GenerateRequest): Conversation {
  const tools = runtime.format.tools ? offeredTools(request) : []
  return describe(runtime, request, { instructions: describeFormat(request), tools, prefill: prefillOf(request) })
}

export function describeCall(runtime: LlamaRuntime, request: GenerateRequest, tool: Tool): Conversation {
  const instructions = `${describeTools([tool])}\nAnswer with a call of ${tool.name}.`
  return describe(runtime, request, { instructions, tools: [], prefill: `{"name": "${tool.name}", "arguments":` })
}

export function describeNativeCall(runtime: LlamaRuntime, request: GenerateRequest): Conversation {
  const conversation = describe(runtime, request, { instructions: '', tools: offeredTools(request), prefill: '' })
  return { ...conversation, thinks: false }
}

/**
 * Makes the prompt with which the model selects the tool for the last user turn. The prompt has two examples. Without examples, a small model gives
 * the same answer to nearly every question.
 */
export function describeRouting(request: GenerateRequest, tools: readonly Tool[]): Conversation {
  const first = tools[0]?.name ?? NO_TOOL
  const list = tools.map((tool) => `- ${tool.name}: ${tool.description ?? tool.name}`).join('\n')
  const system =
    'Decide which tool is needed to answer the user. Answer only with the name of the tool, or with none.\n' +
    `Tools:\n${list}\n- ${NO_TOOL}: no tool is needed`
  const user = wordsOf(request.turns.findLast((turn) => turn.role === 'user')?.parts ?? [])
  const messages: TemplateMessage[] = [
    { role: 'system', content: system },
    { role: 'user', content: 'Who are you?' },
    { role: 'assistant', content: NO_TOOL },
    { role: 'user', content: `Use ${first}` },
    { role: 'assistant', content: first },
    { role: 'user', content: user },
  ]
  return { messages, tools: [], prefill: '', thinks: false }
}

export const NO_TOOL = 'none'

/**
 * Writes the prompt of a conversation. A conversation that certainly leaves no tokens for an answer is rejected before rendering.
 *
 * @throws ServiceError `context_length_exceeded` or `invalid_value`. The signal's reason, if the signal aborts
 */
export async function writeFitting(
  runtime: LlamaRuntime,
  conversation: Conversation,
  signal: AbortSignal,
): Promise<Prompt> {
  const least = leastTokensOf(runtime, conversation)
  if (least >= runtime.contextTokens) throw promptTooLong(runtime, `over ${least - 1}`)
  return await runtime.format.write(conversation, signal)
}

/**
 * Returns a lower bound of a conversation's tokens that is quick to compute. The bound is the number of messages, or the bytes divided by the size of
 * the longest token if that is more.
 */
export function leastTokensOf({ tokenBytesMax }: LlamaRuntime, { messages, prefill }: Conversation): number {
  const texts = [prefill, ...messages.map(({ content }) => content)]
  return Math.max(messages.length, leastTokens(texts, Math.min(tokenBytesMax, TOKEN_BYTES_MAX)))
}

export async function tokensOf({ model }: LlamaRuntime, prompt: Prompt, signal: AbortSignal): Promise<Token[]> {
  return await runYielding(tokenizePrompt(model, prompt), signal)
}

export async function fittingTokensOf(
  runtime: LlamaRuntime,
  conversation: Conversation,
  signal: AbortSignal,
): Promise<Token[]> {
  return await tokensOf(runtime, await writeFitting(runtime, conversation, signal), signal)
}

interface Wanted {
  readonly instructions: string
  readonly tools: readonly Tool[]
  readonly prefill: string
}

function describe({ format, system }: LlamaRuntime, request: GenerateRequest, wanted: Wanted): Conversation {
  const turns = request.turns.at(-1)?.role === 'assistant' ? request.turns.slice(0, -1) : request.turns
  const messages = format.tools ? writeTurns(turns) : turns.map(writeInWords)
  return {
    messages: instruct(messages, system, wanted.instructions),
    tools: wanted.tools.map(toolOf),
    prefill: wanted.prefill,
    thinks: request.reasoning?.enabled,
  }
}

function toolOf({ name, description, parameters }: Tool): TemplateTool {
  return { name, description: description ?? '', parameters }
}

function instruct(
  messages: readonly TemplateMessage[],
  system: string | undefined,
  instructions: string,
): readonly TemplateMessage[] {
  const at = messages.findIndex(({ role }) => role === 'system')
  const own = messages[at]?.content ?? system
  const content = [own, instructions].filter((text) => text !== undefined && text !== '').join('\n\n')
  if (at >= 0) return messages.with(at, { role: 'system', content })
  return content === '' ? messages : [{ role: 'system', content }, ...messages]
}

function writeTurns(turns: readonly Turn[]): TemplateMessage[] {
  const names = new Map<string, string>()
  return turns.map((turn) => {
    const content = textOf(turn.parts)
    if (turn.role === 'tool') {
      const name = names.get(turn.call_id)
      const result = turn.is_error ? `Error: ${content}` : content
      return { role: 'tool', content: result, callId: turn.call_id, ...(name !== undefined && { name }) }
    }
    const calls = turn.parts.filter((part) => part.type === 'tool_call')
    for (const call of calls) names.set(call.id, call.name)
    const thoughts = turn.parts.map((part) => (part.type === 'reasoning' ? part.text : '')).join('')
    return {
      role: turn.role,
      content,
      ...(thoughts !== '' && { reasoning: thoughts }),
      ...(calls.length > 0 && { calls }),
    }
  })
}

function writeInWords(turn: Turn): TemplateMessage {
  const content = wordsOf(turn.parts)
  if (turn.role !== 'tool') return { role: turn.role, content }
  return { role: 'user', content: `${turn.is_error ? 'Error' : 'Result'}: ${content}` }
}

function prefillOf(request: GenerateRequest): string {
  const last = request.turns.at(-1)
  return last?.role === 'assistant' ? textOf(last.parts) : ''
}

function textOf(parts: readonly Part[]): string {
  return parts.map((part) => (part.type === 'text' ? part.text : '')).join('')
}

/** Returns the text of a turn, without reasoning. A tool call becomes a sentence, because SmolLM2 would answer JSON with the same call again. */
function wordsOf(parts: readonly Part[]): string {
  return parts
    .map((part) => {
      if (part.type === 'text') return part.text
      return part.type === 'tool_call' ? `Let me look it up with ${part.name} ${part.arguments}.` : ''
    })
    .join('')
}

function describeTools(tools: readonly Tool[]): string {
  const list = tools.map((tool) => {
    const schema = JSON.stringify(tool.parameters)
    const shown = schema.length <= SHOWN_SCHEMA_MAX ? ` Arguments: ${schema}` : ''
    return `- ${tool.name}: ${tool.description ?? ''}${shown}`
  })
  return `Tools:\n${list.join('\n')}`
}

function describeFormat(request: GenerateRequest): string {
  const format = request.response_format
  if (!format) return ''
  if (format.type === 'json_object') return 'Answer only with a JSON object.'
  const schema = JSON.stringify(format.schema)
  return `Answer only with JSON.${schema.length <= SHOWN_SCHEMA_MAX ? ` It follows this JSON schema: ${schema}` : ''}`
}
