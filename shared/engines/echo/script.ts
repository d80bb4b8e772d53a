import type { FinishReason, GenerateRequest, Tool } from '#schemas/generate.ts'
import { type Directive, readDirective } from './directive.ts'
import { FillBudget, fillSchema } from './fill.ts'
import { makeText, splitTokens, textOf } from './text.ts'

/** Most calls of one answer. */
const CALLS_MAX = 128

/** What the echo engine is going to say in one choice. */
export interface Script {
  readonly directive: Directive
  readonly reasoning: string
  readonly refusal: string
  readonly text: string
  readonly calls: readonly { readonly name: string; readonly arguments: string }[]
  readonly finish: FinishReason
  /** content_filter_results of a scripted filter */
  readonly filter: Record<string, unknown> | undefined
}

/** A delta of one token, its choice left out. */
export type Step =
  | { type: 'reasoning' | 'refusal' | 'text'; text: string }
  | { type: 'tool_call'; call: number; id: string; name: string }
  | { type: 'tool_arguments'; call: number; text: string }

/** Decides the whole answer of one choice. @throws ServiceError `invalid_value` for a broken `!echo` line */
export function writeScript(request: GenerateRequest, choice: number): Script {
  const user = textOf(request.turns.findLast((turn) => turn.role === 'user'))
  const { directive, rest } = readDirective(user)
  const calls = chooseCalls(request, directive, rest)
  const refusal = directive.refusal ?? ''
  const text = refusal === '' ? writeText(request, directive, rest, choice, calls.length > 0) : ''
  const usual = calls.length > 0 ? 'tool_calls' : 'stop'
  return {
    directive,
    reasoning: directive.reasoning ?? '',
    refusal,
    text: withoutPrefill(text, request),
    calls,
    finish: directive.filter ? 'content_filter' : (directive.finish ?? usual),
    filter: directive.filter && filterResults(directive.filter),
  }
}

/** The deltas of a script, one token each, in the order in which engines give them. */
export function* stepsOf(script: Script): Generator<Step> {
  for (const type of ['reasoning', 'refusal', 'text'] as const) {
    for (const text of splitTokens(script[type])) yield { type, text }
  }
  for (const [call, { name, arguments: args }] of script.calls.entries()) {
    yield { type: 'tool_call', call, id: '', name }
    for (const text of splitTokens(args)) yield { type: 'tool_arguments', call, text }
  }
}

function writeText(
  request: GenerateRequest,
  directive: Directive,
  rest: string,
  choice: number,
  isCalling: boolean,
): string {
  if (directive.text !== undefined) return directive.text
  if (directive.tokens !== undefined) return makeText(directive.tokens, (request.seed ?? 0) + choice)
  if (isCalling) return ''
  const last = request.turns.findLast((turn) => turn.role !== 'system' && turn.role !== 'assistant')
  const said = last?.role === 'tool' ? textOf(last) : rest
  const format = request.response_format
  if (format?.type === 'json_object') return JSON.stringify({ echo: said })
  if (format?.type === 'json_schema')
    return JSON.stringify(fillSchema(format.schema, { name: format.name, param: 'response_format' }))
  return said
}

/** A last assistant turn is the beginning of the answer: what it already says is not said again. */
function withoutPrefill(text: string, request: GenerateRequest): string {
  const last = request.turns.at(-1)
  const prefill = last?.role === 'assistant' ? textOf(last) : ''
  return text.startsWith(prefill) ? text.slice(prefill.length) : text
}

function chooseCalls(request: GenerateRequest, directive: Directive, said: string): Script['calls'] {
  const offered = request.tools.filter((tool) => request.allowed_tools?.includes(tool.name) ?? true)
  const chosen =
    directive.call === undefined
      ? chooseTools(request, offered, said)
      : [offered.find((tool) => tool.name === directive.call) ?? { name: directive.call, parameters: {} }]
  const most = request.parallel_tool_calls === false ? 1 : CALLS_MAX
  const budget = new FillBudget()
  return chosen
    .slice(0, most)
    .map((tool) => ({ name: tool.name, arguments: directive.args ?? writeArguments(tool, budget) }))
    .flatMap((call) => Array.from({ length: directive.calls }, () => call))
    .slice(0, most)
}

function writeArguments(tool: Tool, budget: FillBudget): string {
  return JSON.stringify(fillSchema({ type: 'object', ...tool.parameters }, { param: 'tools', budget }))
}

function chooseTools(request: GenerateRequest, offered: readonly Tool[], said: string): readonly Tool[] {
  const choice = request.tool_choice ?? { type: 'auto' }
  const named = offered.filter((tool) => said.includes(tool.name))
  if (choice.type === 'none') return []
  if (choice.type === 'tool') return offered.filter((tool) => tool.name === choice.name)
  if (choice.type === 'required') return named.length > 0 ? named : offered.slice(0, 1)
  // After a tool's result the conversation goes on in words, or an agent would loop for ever.
  return request.turns.at(-1)?.role === 'tool' ? [] : named
}

function filterResults(hit: string): Record<string, unknown> {
  const severe = ['hate', 'self_harm', 'sexual', 'violence'].map((name) => [name, { filtered: name === hit }])
  const plain = ['jailbreak', 'profanity'].map((name) => [name, { filtered: name === hit, detected: name === hit }])
  return Object.fromEntries([...severe, ...plain])
}
