import type { Tool } from '#schemas/generate.ts'
import { writeWordsGrammar } from './grammar/rules.ts'
import { NO_TOOL, tokensOf, writeRoutingPrompt } from './prompt.ts'
import type { LlamaCall } from './runtime.ts'
import { openSampling, sample } from './sample.ts'
import { TokenText } from './text.ts'
import { leastTokens } from './tokens.ts'

/** Longest answer of the routing question. */
const NAME_TOKENS_MAX = 64

/**
 * Decides whether the answer is a tool call, and of which tool; undefined: it is text. At most one call an answer.
 *
 * - named: that tool. required: the only tool, or the one the model picks.
 * - auto: the model is asked, under a grammar of the tools' names and `none`, which one the last user turn needs. After
 *   a tool's result it always answers in text: a small model would call the same tool for ever.
 */
export async function chooseTool(call: LlamaCall): Promise<Tool | undefined> {
  const { request } = call
  const tools = request.tools.filter((tool) => request.allowed_tools?.includes(tool.name) ?? true)
  const choice = request.tool_choice ?? { type: 'auto' }
  if (choice.type === 'none' || tools.length === 0) return undefined
  if (choice.type === 'tool') return tools.find((tool) => tool.name === choice.name)
  const isForced = choice.type === 'required'
  if (isForced && tools.length === 1) return tools[0]
  if (!isForced && request.turns.at(-1)?.role === 'tool') return undefined
  const name = await ask(call, tools, isForced)
  return tools.find((tool) => tool.name === name)
}

async function ask(call: LlamaCall, tools: readonly Tool[], isForced: boolean): Promise<string> {
  const { runtime, request, signal } = call
  const question = writeRoutingPrompt(runtime, request, tools)
  const most = runtime.contextTokens - NAME_TOKENS_MAX
  const isLong = leastTokens(question, runtime.tokenBytesMax) > most
  const prompt = isLong ? [] : await tokensOf(runtime, question, signal)
  // A conversation that does not fit is refused where the answer's prompt is measured.
  if (isLong || prompt.length > most) return isForced ? (tools[0]?.name ?? NO_TOOL) : NO_TOOL
  const names = tools.map((tool) => tool.name)
  const grammar = await runtime.llama.createGrammar({
    grammar: writeWordsGrammar(isForced ? names : [...names, NO_TOOL]),
  })
  const owned = await runtime.sequences.take(call.project, prompt)
  try {
    const text = new TokenText(runtime.model)
    const sampling = openSampling(runtime, { temperature: 0 }, grammar)
    let name = ''
    for await (const { token } of sample(owned.sequence, prompt, sampling, signal)) {
      name += text.push(token)
      if (sampling.generated.length === NAME_TOKENS_MAX) break
    }
    return name
  } catch (error) {
    if (error !== signal.reason) owned.owner = undefined
    throw error
  } finally {
    runtime.sequences.put(owned)
  }
}
