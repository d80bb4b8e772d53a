import { setImmediate as nextTurn } from 'node:timers/promises'
import { z } from 'zod'
import { ERRORS, type ErrorCode } from '#schemas/error.ts'
import {
  FinishReason,
  type GenerateEvent,
  type GenerateRequest,
  type Logprob,
  type Tool,
  type Turn,
} from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/engine.ts'
import { type Budget, getBudget, type Released, StopFilter } from '#shared/engines/stop.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { FillBudget, fillSchema } from './fill.ts'

/*
 * Grammar: if the first line of the last user turn starts with "!echo", then the line scripts the answer.
 *
 * first line = "!echo" *( SP key "=" value )
 * value      = JSON string | characters without spaces
 *
 * The following lines are the text to return, unless `text` or `tokens` is given:
 *
 * !echo first_ms=200 delay_ms=20 tokens=64
 * !echo fail=overloaded after=3 retry_after_ms=500 failures=1
 * !echo call=get_weather args="{\"city\":\"Paris\"}"
 */

const Milliseconds = z.coerce.number().int().min(0).max(3_600_000)

/** Options that a caller of the echo engine may set. The names of the fields are the keys of the `!echo` line. */
const Directive = z.strictObject({
  first_ms: Milliseconds.default(0).describe('Wait before the first token'),
  delay_ms: Milliseconds.default(0).describe('Wait before each further token'),
  text: z.string().optional().describe('Text of the answer'),
  tokens: z.coerce
    .number()
    .int()
    .min(0)
    .max(1_000_000)
    .optional()
    .describe('Number of pseudo-random words to generate instead of the echo'),
  reasoning: z.string().optional().describe('Reasoning before the answer'),
  refusal: z.string().optional().describe('Refusal to return instead of text'),
  finish: FinishReason.optional().describe('Finish reason of the answer'),
  filter: z
    .enum(['hate', 'self_harm', 'sexual', 'violence', 'jailbreak', 'profanity'])
    .optional()
    .describe('Content category that ends the answer with the finish reason content_filter'),
  call: z.string().optional().describe('Name of the tool to call, even if it was not offered'),
  args: z.string().optional().describe('JSON text of the arguments of each call; default: filled from the schema'),
  rounds: z.coerce
    .number()
    .int()
    .min(1)
    .default(Number.MAX_SAFE_INTEGER)
    .describe('Number of answers with tool calls per user turn. The next answer is text with the last tool result'),
  calls: z.coerce.number().int().min(1).max(128).default(1).describe('Number of tool calls per answer'),
  fail: z
    .enum(Object.keys(ERRORS) as [ErrorCode, ...ErrorCode[]])
    .optional()
    .describe('Error code of the failure'),
  after: z.coerce
    .number()
    .int()
    .min(0)
    .optional()
    .describe('Number of tokens before the failure. Absent: the call fails before its first token'),
  failures: z.coerce
    .number()
    .int()
    .min(1)
    .default(Number.MAX_SAFE_INTEGER)
    .describe('Number of attempts that fail, starting with the first'),
  retry_after_ms: Milliseconds.optional().describe('Retry-After of the failure'),
})
type Directive = z.infer<typeof Directive>

const CALLS_MAX = 128

interface Script {
  readonly directive: Directive
  readonly reasoning: string
  readonly refusal: string
  readonly text: string
  readonly calls: readonly { readonly name: string; readonly arguments: string }[]
  readonly finish: FinishReason
  readonly filter: Record<string, unknown> | undefined
}

type Step =
  | { type: 'reasoning' | 'refusal' | 'text'; text: string }
  | { type: 'tool_call'; call: number; id: string; name: string }
  | { type: 'tool_arguments'; call: number; text: string }

/**
 * Creates the whole answer of one choice.
 *
 * @throws ServiceError `invalid_value` for an invalid `!echo` line
 */
function writeScript(request: GenerateRequest, choice: number): Script {
  const user = textOf(request.turns.findLast((turn) => turn.role === 'user'))
  const { directive, rest } = readDirective(user)
  const mayCall = request.tools.length > 0 || directive.call !== undefined
  const calls = mayCall ? chooseCalls(request, directive, rest) : []
  const refusal = directive.refusal ?? ''
  const text = refusal === '' ? writeText(request, directive, rest, choice, calls.length > 0) : ''
  // If the conversation ends with an assistant turn, then this turn is the beginning of the answer. The answer
  // continues after it.
  const last = request.turns.at(-1)
  const prefill = last?.role === 'assistant' ? textOf(last) : ''
  const usual = calls.length > 0 ? 'tool_calls' : 'stop'
  return {
    directive,
    reasoning: directive.reasoning ?? '',
    refusal,
    text: text.startsWith(prefill) ? text.slice(prefill.length) : text,
    calls,
    finish: directive.filter ? 'content_filter' : (directive.finish ?? usual),
    filter: directive.filter && filterResults(directive.filter),
  }
}

function* stepsOf(script: Script): Generator<Step> {
  for (const type of ['reasoning', 'refusal', 'text'] as const) {
    for (const text of splitTokens(script[type])) yield { type, text }
  }
  for (const [call, { name, arguments: args }] of script.calls.entries()) {
    yield { type: 'tool_call', call, id: '', name }
    for (const text of splitTokens(args)) yield { type: 'tool_arguments', call, text }
  }
}

function readDirective(text: string): { directive: Directive; rest: string } {
  const [, line, rest = ''] = /^!echo\b([^\n]*)(?:\n([\s\S]*))?$/.exec(text) ?? []
  if (line === undefined) return { directive: Directive.parse({}), rest: text }
  const parsed = Directive.safeParse(readPairs(line))
  if (parsed.success) return { directive: parsed.data, rest }
  const [issue] = parsed.error.issues
  const key = issue?.path.join('.') ?? ''
  throw invalid(`${key && `${key}: `}${key === 'fail' ? NO_ERROR_CODE : (issue?.message ?? 'malformed')}`)
}

const NO_ERROR_CODE = 'must be an error code, such as upstream_error; docs/reference/errors.md lists the codes'

function readPairs(line: string): Record<string, string> {
  const pair = /\s+([a-z_]+)=("(?:[^"\\]|\\.)*"|[^\s"]*)(?=\s|$)/y
  const pairs: Record<string, string> = {}
  const trimmed = line.trimEnd()
  while (pair.lastIndex < trimmed.length) {
    const at = pair.lastIndex
    const [, key, value] = pair.exec(trimmed) ?? []
    if (key === undefined || value === undefined)
      throw invalid(`cannot read ${trimmed.slice(at).trim().slice(0, SHOWN_CHARS)}`)
    pairs[key] = value.startsWith('"') ? unquote(value) : value
  }
  return pairs
}

const SHOWN_CHARS = 200

function unquote(value: string): string {
  try {
    return String(JSON.parse(value))
  } catch (cause) {
    throw invalid(`${value.slice(0, SHOWN_CHARS)} is not a JSON string`, cause)
  }
}

function invalid(problem: string, cause?: unknown): ServiceError {
  return new ServiceError('invalid_value', `Invalid !echo line: ${problem}.`, { cause, param: 'messages' })
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

function chooseCalls(request: GenerateRequest, directive: Directive, said: string): Script['calls'] {
  if (roundsOf(request) >= directive.rounds) return []
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

function roundsOf({ turns }: GenerateRequest): number {
  const since = turns.slice(turns.findLastIndex(({ role }) => role === 'user') + 1)
  return since.filter(({ role, parts }) => role === 'assistant' && parts.some(({ type }) => type === 'tool_call'))
    .length
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
  // If the last message is a tool result, then the engine answers in text. Otherwise an agent would call tools forever.
  return request.turns.at(-1)?.role === 'tool' ? [] : named
}

function filterResults(hit: string): Record<string, unknown> {
  const severe = ['hate', 'self_harm', 'sexual', 'violence'].map((name) => [name, { filtered: name === hit }])
  const plain = ['jailbreak', 'profanity'].map((name) => [name, { filtered: name === hit, detected: name === hit }])
  return Object.fromEntries([...severe, ...plain])
}

const WORDS =
  'river stone light paper garden window copper morning signal harbor winter simple letter bridge quiet number' +
  ' forest silver engine travel yellow market planet circle summer pocket ribbon thread velvet wonder basket anchor'
const VOCABULARY = WORDS.split(' ')

/**
 * Splits a text into the echo engine's tokens. A token is a word or one other character, with the whitespace before it. Trailing whitespace is one
 * more token. The tokens concatenate to the text, and no character is split.
 */
export function* splitTokens(text: string): Generator<string> {
  for (const [token] of text.matchAll(/\s*(?:[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_])|\s+$/gu)) yield token
}

const PIECE_CHARS = 16 * 1024
const WORDS_AND_SIGNS = /[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_]/gu
const ENDS_IN_WORD = /[\p{L}\p{N}\p{M}_]$/u
const BEGINS_WITH_WORD = /^[\p{L}\p{N}\p{M}_]/u

/** Counts the tokens of {@link splitTokens}. The text is examined in pieces, and a word in two pieces counts once. Must be run by `runYielding`. */
function* countTokens(text: string): Generator<undefined, number> {
  let count = 0
  let isInWord = false
  for (let at = 0; at < text.length; ) {
    const isPairCut = /[\ud800-\udbff]/.test(text[at + PIECE_CHARS - 1] ?? '')
    const piece = text.slice(at, at + PIECE_CHARS + (isPairCut ? 1 : 0))
    for (const _ of piece.matchAll(WORDS_AND_SIGNS)) count++
    if (isInWord && BEGINS_WITH_WORD.test(piece)) count--
    isInWord = ENDS_IN_WORD.test(piece)
    at += piece.length
    yield
  }
  return /\s$/.test(text) ? count + 1 : count
}

function makeText(count: number, seed: number): string {
  const random = openRandom(seed)
  const words = Array.from({ length: count }, () => VOCABULARY[random() % VOCABULARY.length])
  return words.join(' ')
}

function textOf(turn: Turn | undefined): string {
  let text = ''
  for (const part of turn?.parts ?? []) if ('text' in part) text += part.text ?? ''
  return text
}

/**
 * Counts the tokens of the prompt. All texts, tool calls and tool definitions count, and each image, sound or file counts as one token. Must be run
 * by `runYielding`.
 */
export function* countPrompt(request: GenerateRequest): Generator<undefined, number> {
  let count = 0
  for (const { parts } of request.turns) {
    for (const part of parts) {
      if (part.type === 'tool_call') count += yield* countTokens(part.name + part.arguments)
      else count += 'text' in part ? yield* countTokens(part.text ?? '') : 1
    }
  }
  for (const tool of request.tools) {
    count += yield* countTokens(`${tool.name} ${tool.description ?? ''} ${JSON.stringify(tool.parameters)}`)
  }
  return count
}

/** Makes a deterministic fake log probability of a token. The first of the `topCount` alternatives is the token itself. */
function inventLogprob(token: string, topCount: number): Logprob {
  const logprob = -(hash(token) % 1000) / 1000
  const top = Array.from({ length: topCount }, (_, rank) => {
    const other = rank === 0 ? token : `${token}~${rank}`
    return { token: other, logprob: logprob - rank, bytes: bytesOf(other) }
  })
  return { token, logprob, bytes: bytesOf(token), top_logprobs: top }
}

function bytesOf(text: string): number[] {
  return [...Buffer.from(text)]
}

function hash(text: string): number {
  let value = 0x811c9dc5
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193)
  return value >>> 0
}

function openRandom(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let value = Math.imul(state ^ (state >>> 15), state | 1)
    value ^= value + Math.imul(value ^ (value >>> 7), value | 61)
    return (value ^ (value >>> 14)) >>> 0
  }
}

const TOKENS_AT_ONCE = 128

/**
 * Opens the deterministic chat engine for tests and load tests. Equal requests get equal answers.
 *
 * The engine repeats the last user turn, or the tool result that follows it. If the caller streams, then each delta is one token. A token is a word
 * or one other character, with the whitespace before it, so counts are exact.
 *
 * A response format, and tools whose name occurs in the user's text, get values generated from their JSON Schema (fill.ts). A first line `!echo …`
 * scripts pace, length, tools, reasoning, refusal and failures ({@link Directive}).
 */
export function openEchoEngine(model: ModelConfig): ChatEngine {
  return {
    generate: (request, options) => generate(model, request, options),
    countTokens: (request, { signal }) => runYielding(countPrompt(request), signal),
    close: async () => {},
  }
}

interface Call {
  readonly request: GenerateRequest
  readonly budget: Budget
  readonly pace: EchoPace
  reasoningTokens: number
}

async function* generate(
  model: ModelConfig,
  request: GenerateRequest,
  options: GenerateOptions,
): AsyncGenerator<GenerateEvent> {
  options.signal.throwIfAborted()
  const { directive } = writeScript(request, 0)
  const inputTokens = await runYielding(countPrompt(request), options.signal)
  const budget = getBudget(request, model, inputTokens, model.limits.context_tokens)
  const pace = new EchoPace(directive, options)
  try {
    if (directive.after === undefined) pace.failAfter(0)
    yield { type: 'start', model: model.id, input_tokens: inputTokens, fingerprint: 'fp_echo_1' }
    const call: Call = { request, budget, pace, reasoningTokens: 0 }
    for (let choice = 0; choice < request.n; choice++) {
      yield* perform(call, choice)
    }
    const { reasoningTokens: reasoning_tokens } = call
    const counted = { input_tokens: inputTokens, output_tokens: pace.tokens }
    yield { type: 'usage', usage: reasoning_tokens > 0 ? { ...counted, reasoning_tokens } : counted }
  } finally {
    pace.close()
  }
}

async function* perform(call: Call, choice: number): AsyncGenerator<GenerateEvent> {
  const { request, budget, pace } = call
  const script = writeScript(request, choice)
  const stops = request.stop.length > 0 ? new StopFilter(request.stop) : undefined
  let tokens = 0
  for (const step of stepsOf(script)) {
    if (tokens++ === budget.tokens) {
      if (stops) yield* released(stops.flush(), choice)
      yield { type: 'finish', choice, reason: 'length', ...(budget.isContextBound ? { context_full: true } : {}) }
      return
    }
    await pace.next()
    if (step.type === 'reasoning') call.reasoningTokens++
    if (step.type !== 'text') {
      yield { ...step, choice }
      continue
    }
    const logprob = request.logprobs ? inventLogprob(step.text, request.top_logprobs ?? 0) : undefined
    if (!stops) {
      yield { ...step, choice, ...(logprob && { logprobs: [logprob] }) }
      continue
    }
    const release = stops.push(step.text, logprob)
    yield* released(release, choice)
    if (release.hit !== undefined) {
      yield { type: 'finish', choice, reason: 'stop', stop_sequence: release.hit }
      return
    }
  }
  if (stops) yield* released(stops.flush(), choice)
  // If the failure is scheduled after more tokens than the answer has, then it occurs at the end of the answer.
  pace.failAfter(Number.MAX_SAFE_INTEGER)
  yield { type: 'finish', choice, reason: script.finish, ...(script.filter ? { filter: script.filter } : {}) }
}

function* released({ text, logprobs }: Released, choice: number): Generator<GenerateEvent> {
  if (text !== '') yield { type: 'text', choice, text, ...(logprobs.length > 0 ? { logprobs } : {}) }
}

class EchoPace {
  readonly #directive: Directive
  readonly #signal: AbortSignal
  readonly #attempt: number
  #timer: NodeJS.Timeout | undefined
  #interrupt: (() => void) | undefined
  tokens = 0

  constructor(directive: Directive, options: GenerateOptions) {
    this.#directive = directive
    this.#signal = options.signal
    this.#attempt = Number(options.idempotencyKey.split(':').at(-1)) || 1
    this.#signal.addEventListener('abort', this.#onAbort, { once: true })
  }

  async next(): Promise<void> {
    this.failAfter(this.tokens)
    const waitMs = this.tokens === 0 ? this.#directive.first_ms : this.#directive.delay_ms
    if (waitMs > 0) await this.#sleep(waitMs)
    else if (this.tokens % TOKENS_AT_ONCE === 0) await nextTurn()
    this.#signal.throwIfAborted()
    this.tokens++
  }

  /** Throws the scripted failure if it is due after at most `tokens` tokens and applies to this attempt. */
  failAfter(tokens: number): void {
    const { fail, after = 0, failures, retry_after_ms: retryAfterMs } = this.#directive
    if (fail === undefined || tokens < after || this.#attempt > failures) return
    throw new ServiceError(fail, `The echo engine was scripted to fail with ${fail}.`, {
      ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    })
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#signal.removeEventListener('abort', this.#onAbort)
  }

  // The whole answer has one abort listener, because adding a listener per token would cost more than the token.
  readonly #onAbort = () => {
    clearTimeout(this.#timer)
    this.#interrupt?.()
  }

  #sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.#interrupt = resolve
      if (this.#signal.aborted) resolve()
      else this.#timer = setTimeout(resolve, ms)
    })
  }
}
