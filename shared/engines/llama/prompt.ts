import type { ChatHistoryItem, LlamaText, Token } from 'node-llama-cpp'
import type { GenerateRequest, Part, Tool, Turn } from '#schemas/generate.ts'
import { contextExceeded } from '#shared/engines/stop.ts'
import { ServiceError } from '#shared/error.ts'
import { inTurns } from '#shared/in-turns.ts'
import type { LlamaRuntime } from './runtime.ts'
import { leastTokens, tokenizePrompt } from './tokens.ts'

/** Longest schema that is shown to the model; the grammar enforces a longer one all the same. */
const SHOWN_SCHEMA_MAX = 2_000

/** @throws ServiceError `unsupported_value` when a turn holds what only larger models read */
export function refuseMedia(request: GenerateRequest): void {
  for (const [index, turn] of request.turns.entries()) {
    const part = turn.parts.find(({ type }) => type === 'image' || type === 'audio' || type === 'file')
    if (!part) continue
    const message = `The model ${request.model} reads text only, not ${part.type} parts.`
    throw new ServiceError('unsupported_value', message, { param: `messages[${index}].content` })
  }
}

/** A prompt as text, with the marks of its turns: nothing is tokenized yet. */
export type Prompt = LlamaText

/** The prompt of an answer in words or JSON. */
export function writeTextPrompt(runtime: LlamaRuntime, request: GenerateRequest): Prompt {
  return render(runtime, [...writeHistory(request, describeFormat(request)), opening(writePrefill(request))])
}

/** The prompt of a tool call: it ends where the arguments begin. */
export function writeCallPrompt(runtime: LlamaRuntime, request: GenerateRequest, tool: Tool): Prompt {
  const history = writeHistory(request, `${describeTools([tool])}\nAnswer with a call of ${tool.name}.`)
  return render(runtime, [...history, opening(`{"name": "${tool.name}", "arguments":`)])
}

/**
 * The prompt that asks which tool the last user turn needs. Two examples teach a small model the form; without them it
 * answers `none`, or a tool, to nearly everything.
 */
export function writeRoutingPrompt(runtime: LlamaRuntime, request: GenerateRequest, tools: readonly Tool[]): Prompt {
  const first = tools[0]?.name ?? NO_TOOL
  const list = tools.map((tool) => `- ${tool.name}: ${tool.description ?? tool.name}`).join('\n')
  const system =
    'Decide which tool is needed to answer the user. Answer only with the name of the tool, or with none.\n' +
    `Tools:\n${list}\n- ${NO_TOOL}: no tool is needed`
  const user = textOf(request.turns.findLast((turn) => turn.role === 'user')?.parts ?? [])
  return render(runtime, [
    { type: 'system', text: system },
    { type: 'user', text: 'Who are you?' },
    opening(NO_TOOL),
    { type: 'user', text: `Use ${first}` },
    opening(first),
    { type: 'user', text: user },
    opening(''),
  ])
}

/** What the model answers when no tool fits. */
export const NO_TOOL = 'none'

/** Plain strings are never read as control tokens: a user cannot close a turn by writing its end mark. */
function render({ wrapper }: LlamaRuntime, chatHistory: ChatHistoryItem[]): Prompt {
  return wrapper.generateContextState({ chatHistory }).contextText
}

/** The tokens of a prompt. Others have their turn while a long one is cut up. @throws The signal's reason */
export async function tokensOf({ model }: LlamaRuntime, prompt: Prompt, signal: AbortSignal): Promise<Token[]> {
  const tokens = await inTurns(tokenizePrompt(model, prompt), signal)
  // The ChatML template of the library begins with BOS even when the model file says that it wants none; SmolLM2 then
  // reads the first turn's mark twice and answers in French.
  const isUnwanted = tokens[0] === model.tokens.bos && !model.tokens.shouldPrependBosToken
  return isUnwanted ? tokens.slice(1) : tokens
}

/**
 * The tokens of a prompt that is to be answered: one that surely leaves no room for that is not even cut up.
 *
 * @throws ServiceError `context_length_exceeded`, and as {@link tokensOf}
 */
export async function fittingTokensOf(runtime: LlamaRuntime, prompt: Prompt, signal: AbortSignal): Promise<Token[]> {
  const least = leastTokens(prompt, runtime.tokenBytesMax)
  if (least >= runtime.contextTokens) throw contextExceeded(runtime.contextTokens, `over ${least - 1}`)
  return await tokensOf(runtime, prompt, signal)
}

function writeHistory(request: GenerateRequest, instructions: string): ChatHistoryItem[] {
  const turns = request.turns.at(-1)?.role === 'assistant' ? request.turns.slice(0, -1) : request.turns
  const history = turns.map(writeTurn)
  if (instructions === '') return history
  const system = history.findIndex((item) => item.type === 'system')
  const known = history[system]
  if (known?.type !== 'system') return [{ type: 'system', text: instructions }, ...history]
  return history.with(system, { type: 'system', text: `${String(known.text)}\n\n${instructions}` })
}

function writeTurn(turn: Turn): ChatHistoryItem {
  const text = textOf(turn.parts)
  if (turn.role === 'system' || turn.role === 'user') return { type: turn.role, text }
  if (turn.role === 'assistant') return opening(text)
  return { type: 'user', text: `${turn.is_error ? 'Error' : 'Result'}: ${text}` }
}

function writePrefill(request: GenerateRequest): string {
  const last = request.turns.at(-1)
  return last?.role === 'assistant' ? textOf(last.parts) : ''
}

function opening(text: string): ChatHistoryItem {
  return { type: 'model', response: [text] }
}

/** The text of a turn, without reasoning. A call is told in words: SmolLM2 answers a call written as JSON with the same. */
function textOf(parts: readonly Part[]): string {
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
