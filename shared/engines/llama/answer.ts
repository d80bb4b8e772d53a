import type { LlamaGrammar, Token } from 'node-llama-cpp'
import type { GenerateEvent, GenerateRequest, Tool } from '#schemas/kinds/generate.ts'
import { type Budget, getBudget, type Released, StopFilter } from '#shared/engines/stop.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { joinPieces } from './format.ts'
import { JSON_OBJECT_GRAMMAR } from './grammar/rules.ts'
import { describeAnswer, describeCall, fittingTokensOf, offeredTools, tokensOf } from './prompt.ts'
import { type LlamaCall, type LlamaRuntime, promptTooLong, type SequenceCall, tokenizeRaw } from './runtime.ts'
import { openSampling, readPrompt, type Sampled, sample } from './sample.ts'
import {
  callPieces,
  chooseTool,
  describeToken,
  NAME_TOKENS_MAX,
  nativeCallTokens,
  sampleName,
  TokenText,
  type Trigger,
  triggerOf,
} from './tools.ts'

/**
 * Names of the request fields that contain the schema of a tool and the schema of the answer, per API. Errors about a schema refer to these fields.
 */
const SCHEMA_PATHS: Readonly<Record<GenerateRequest['dialect'], { readonly tool: string; readonly format: string }>> = {
  openai: { tool: 'function.parameters', format: 'response_format.json_schema.schema' },
  anthropic: { tool: 'input_schema', format: 'output_config.format.schema' },
  responses: { tool: 'parameters', format: 'text.format.schema' },
}

/**
 * Generates the answer to one request.
 *
 * `input_tokens` is the number of tokens of the prompt that the answer continues. If a tool is called, then its description is part of this prompt.
 * The short extra prompt with which the model selects a tool is not counted.
 */
export async function* answer(call: LlamaCall): AsyncGenerator<GenerateEvent> {
  const plan = await makePlan(call)
  const { sequences } = call.runtime
  const owned = await sequences.take(call.project, plan.prompt)
  try {
    yield* writeChoices({ ...call, sequence: owned.sequence }, plan)
  } catch (error) {
    if (error !== call.signal.reason) owned.owner = undefined
    throw error
  } finally {
    sequences.put(owned)
  }
}

async function* writeChoices(call: SequenceCall, plan: Plan): AsyncGenerator<GenerateEvent> {
  const input_tokens = plan.prompt.length
  yield { type: 'start', model: call.config.id, input_tokens }
  const cached_tokens = await readPrompt(call.sequence, plan.prompt, call.signal)
  let output_tokens = 0
  for (let choice = 0; choice < call.request.n; choice++) {
    output_tokens += yield* plan.tool ? writeCall(call, plan, plan.tool, choice) : writeText(call, plan, choice)
  }
  yield { type: 'usage', usage: { input_tokens, output_tokens, cached_tokens } }
}

async function* writeText(call: SequenceCall, plan: Plan, choice: number): AsyncGenerator<GenerateEvent, number> {
  const { runtime, request } = call
  if (request.completion?.echo) yield { type: 'text', choice, text: rawTextOf(runtime, request) }
  if (plan.budget.tokens === 0) {
    yield finish(plan, choice, 0)
    return 0
  }
  const { tools } = runtime.format
  const trigger = plan.callable.length > 0 && tools ? triggerOf(tools) : undefined
  if (trigger?.type === 'start' && (await beginsWith(call, plan, choice, trigger.text))) {
    return yield* writeNativeCall(call, plan, choice, [], trigger)
  }
  const stops = new StopFilter(stopsOf(call, plan, trigger))
  const { generated, hit, isCall } = yield* sampleText(call, plan, choice, stops, trigger)
  if (isCall && trigger) return yield* writeNativeCall(call, plan, choice, generated, trigger)
  if (hit === undefined) yield finish(plan, choice, generated.length)
  else yield { type: 'finish', choice, reason: 'stop', ...(request.stop.includes(hit) ? { stop_sequence: hit } : {}) }
  return generated.length
}

interface SampledText {
  readonly generated: readonly Token[]
  readonly hit?: string | undefined
  /**
   * True if the text ended with the {@link Trigger} of a tool call, such as `<tool_call>`. A trigger token is then part of `generated`, but a trigger
   * text is not.
   */
  readonly isCall?: boolean
}

async function* sampleText(
  call: SequenceCall,
  plan: Plan,
  choice: number,
  stops: StopFilter,
  trigger: Trigger | undefined,
): AsyncGenerator<GenerateEvent, SampledText> {
  const decoder = new TokenText(call.runtime.model)
  const generated: Token[] = []
  /** Length of the answer's text after each token. Used to find the token at which the text must be cut. */
  const ends: number[] = []
  let shown = 0
  for await (const sampled of sampleChoice(call, plan, choice)) {
    if (trigger?.type === 'token' && sampled.token === trigger.token) {
      yield* textEvent(choice, stops.flush(decoder.flush()))
      return { generated: [...generated, sampled.token], isCall: true }
    }
    generated.push(sampled.token)
    const piece = decoder.push(sampled.token)
    ends.push((ends.at(-1) ?? 0) + piece.length)
    const released = stops.push(piece, logprobOf(call, sampled))
    shown += released.text.length
    yield* textEvent(choice, released)
    const { hit } = released
    if (hit !== undefined && trigger?.type === 'text' && hit === trigger.text && !call.request.stop.includes(hit)) {
      return { generated: generated.slice(0, ends.filter((end) => end <= shown).length), isCall: true }
    }
    if (hit !== undefined) return { generated, hit }
    if (generated.length === plan.budget.tokens) break
  }
  yield* textEvent(choice, stops.flush(decoder.flush()))
  return { generated }
}

function* textEvent(choice: number, { text, logprobs }: Released): Generator<GenerateEvent> {
  if (text !== '') yield { type: 'text', choice, text, ...(logprobs.length > 0 ? { logprobs } : {}) }
}

/**
 * Returns the stop strings of an answer. Some templates end a turn with ordinary text, so this text is also a stop string. A raw prompt has no turns,
 * and a grammar ends the answer itself. In both cases, only the stop strings of the caller apply.
 */
function stopsOf({ runtime, request }: SequenceCall, plan: Plan, trigger: Trigger | undefined): string[] {
  if (plan.grammar || request.completion) return request.stop
  return [...request.stop, ...runtime.format.endMarks, ...(trigger?.type === 'text' ? [trigger.text] : [])]
}

/**
 * Whether the answer begins with a given text. The beginning is sampled here and again when the answer is generated. Both runs use the same seed, so
 * they produce the same tokens.
 */
async function beginsWith(call: SequenceCall, plan: Plan, choice: number, text: string): Promise<boolean> {
  const decoder = new TokenText(call.runtime.model)
  let said = ''
  for await (const { token } of sampleChoice(call, plan, choice)) {
    said = (said + decoder.push(token)).trimStart()
    if (said.startsWith(text)) return true
    if (!text.startsWith(said)) return false
  }
  return false
}

/**
 * Generates the rest of a choice that became a tool call in the form of the model's chat template. The model first selects the tool's name,
 * then generates the arguments.
 *
 * @param spoken Tokens of the answer before the call
 */
async function* writeNativeCall(
  call: SequenceCall,
  plan: Plan,
  choice: number,
  spoken: readonly Token[],
  { rest }: Trigger,
): AsyncGenerator<GenerateEvent, number> {
  const { runtime, signal } = call
  const { tools } = runtime.format
  if (!tools) throw new Error('The chat template of the model does not support tool calls.')
  const before = [...plan.prompt, ...spoken]
  const prompt = async (name?: string) => [
    ...before,
    ...(await tokensOf(runtime, joinPieces(callPieces(tools, rest, name)), signal)),
  ]
  const names = plan.callable.map(({ name }) => name)
  const unnamed = await prompt()
  const room = runtime.contextTokens - unnamed.length
  const picked = room > NAME_TOKENS_MAX && names.length > 1 ? await sampleName(call, unnamed, names) : undefined
  const name = names.length > 1 ? picked : names[0]
  const tool = plan.callable.find((one) => one.name === name)
  const named = await prompt(name)
  const left = Math.min(plan.budget.tokens - spoken.length, runtime.contextTokens - named.length)
  if (!tool || left < 1) {
    yield { type: 'finish', choice, reason: 'length', ...(plan.budget.isContextBound ? { context_full: true } : {}) }
    return spoken.length
  }
  const grammar = await makeGrammar(call, tool)
  const budget = { tokens: left, isContextBound: plan.budget.isContextBound }
  return spoken.length + (yield* writeCall(call, { ...plan, tool, prompt: named, grammar, budget }, tool, choice))
}

async function* writeCall(
  call: SequenceCall,
  plan: Plan,
  tool: Tool,
  choice: number,
): AsyncGenerator<GenerateEvent, number> {
  const decoder = new TokenText(call.runtime.model)
  yield { type: 'tool_call', choice, call: 0, id: '', name: tool.name }
  let tokens = 0
  for await (const { token } of sampleChoice(call, plan, choice)) {
    tokens++
    const text = decoder.push(token)
    if (text !== '') yield { type: 'tool_arguments', choice, call: 0, text }
    if (tokens === plan.budget.tokens) break
  }
  const text = decoder.flush()
  if (text !== '') yield { type: 'tool_arguments', choice, call: 0, text }
  yield finish(plan, choice, tokens)
  return tokens
}

function sampleChoice(call: SequenceCall, plan: Plan, choice: number): AsyncGenerator<Sampled> {
  const sampling = openSampling(call.runtime, call.request, plan.grammar, choice)
  return sample(call.sequence, plan.prompt, sampling, call.signal)
}

function finish({ budget, tool }: Plan, choice: number, tokens: number): GenerateEvent {
  if (tokens < budget.tokens) return { type: 'finish', choice, reason: tool ? 'tool_calls' : 'stop' }
  return { type: 'finish', choice, reason: 'length', ...(budget.isContextBound ? { context_full: true } : {}) }
}

function logprobOf({ runtime, request }: LlamaCall, { token, probabilities }: Sampled) {
  return probabilities && describeToken(runtime.model, token, probabilities, request.top_logprobs ?? 0)
}

interface Plan {
  readonly tool: Tool | undefined
  readonly callable: readonly Tool[]
  readonly prompt: readonly Token[]
  readonly grammar: LlamaGrammar | undefined
  readonly budget: Budget
}

async function makePlan(call: LlamaCall): Promise<Plan> {
  const { runtime, request, signal } = call
  if (request.completion) {
    const prompt = await rawTokensOf(runtime, request, signal)
    return { tool: undefined, callable: [], prompt, budget: budgetOf(call, prompt), grammar: undefined }
  }
  const tool = await chooseTool(call)
  if (tool) {
    const prompt = runtime.format.tools
      ? await nativeCallTokens(call, tool.name)
      : await fittingTokensOf(runtime, describeCall(runtime, request, tool), signal)
    const grammar = await makeGrammar(call, tool)
    return { tool, callable: [], prompt, budget: budgetOf(call, prompt), grammar }
  }
  const callable = runtime.format.tools && !request.response_format ? offeredTools(request) : []
  // Schemas that no grammar can enforce are rejected here, before any output.
  for (const one of callable) if (one.strict) await makeGrammar(call, one)
  const prompt = await fittingTokensOf(runtime, describeAnswer(runtime, request), signal)
  const grammar = await makeGrammar(call, undefined)
  return { tool: undefined, callable, prompt, budget: budgetOf(call, prompt), grammar }
}

function budgetOf({ request, config, runtime }: LlamaCall, prompt: readonly Token[]): Budget {
  return getBudget(request, config, prompt.length, runtime.contextTokens)
}

/**
 * Makes the grammar of an answer or of a tool's arguments. An unsupported keyword is an error. In tools without `strict`, the keyword is ignored,
 * because agents send many such keywords.
 */
async function makeGrammar(
  { runtime, request, signal }: LlamaCall,
  tool: Tool | undefined,
): Promise<LlamaGrammar | undefined> {
  const format = request.response_format
  if (!tool && !format) return undefined
  const paths = SCHEMA_PATHS[request.dialect]
  const param = tool ? `tools[${request.tools.indexOf(tool)}].${paths.tool}` : paths.format
  const { llama, grammars } = runtime
  const schema = tool
    ? { type: 'object', properties: {}, ...tool.parameters }
    : format?.type === 'json_schema'
      ? format.schema
      : undefined
  const options = { isStrict: tool === undefined || tool.strict === true }
  const grammar = schema ? await grammars.convert(schema, param, options, signal) : JSON_OBJECT_GRAMMAR
  try {
    return await llama.createGrammar({ grammar })
  } catch (cause) {
    throw new ServiceError('invalid_value', 'The JSON schema is too complex for this model.', { cause, param })
  }
}

/**
 * Returns the tokens of the request's only raw prompt, with a BOS token if the model expects one. Text such as `<|im_start|>` becomes a control
 * token, as in vLLM and llama.cpp.
 *
 * @throws ServiceError `invalid_value` for an unknown token id, or `context_length_exceeded`. The signal's reason, if the signal aborts
 */
async function rawTokensOf(runtime: LlamaRuntime, request: GenerateRequest, signal: AbortSignal): Promise<Token[]> {
  const { model, contextTokens, tokenBytesMax } = runtime
  const [given] = request.completion?.tokens ?? []
  if (given) return knownTokens(runtime, given)
  const text = textOf(request)
  const least = Math.ceil(Buffer.byteLength(text) / tokenBytesMax)
  if (least >= contextTokens) throw inPrompt(promptTooLong(runtime, `over ${least - 1}`))
  const tokens = await runYielding(tokenizeRaw(model, text), signal)
  const { bos, shouldPrependBosToken } = model.tokens
  if (bos !== null && shouldPrependBosToken && tokens[0] !== bos) tokens.unshift(bos)
  return requireFitting(runtime, tokens)
}

function rawTextOf({ model }: LlamaRuntime, request: GenerateRequest): string {
  const [given] = request.completion?.tokens ?? []
  return given ? model.detokenize(given as Token[], true) : textOf(request)
}

function textOf({ turns: [turn] }: GenerateRequest): string {
  const [part] = turn?.parts ?? []
  return part?.type === 'text' ? part.text : ''
}

function knownTokens(runtime: LlamaRuntime, given: readonly number[]): Token[] {
  const vocabulary = runtime.model.fileInfo.metadata.tokenizer.ggml.tokens.length
  const unknown = given.find((id) => id >= vocabulary)
  if (unknown !== undefined) {
    const message = `Invalid 'prompt': ${unknown} is not a token of this model (0 to ${vocabulary - 1}).`
    throw new ServiceError('invalid_value', message, { param: 'prompt' })
  }
  return requireFitting(runtime, [...given] as Token[])
}

function requireFitting(runtime: LlamaRuntime, tokens: Token[]): Token[] {
  if (tokens.length >= runtime.contextTokens) throw inPrompt(promptTooLong(runtime, tokens.length))
  return tokens
}

function inPrompt({ code, message }: ServiceError): ServiceError {
  return new ServiceError(code, message.replaceAll('messages', 'prompt'), { param: 'prompt' })
}
