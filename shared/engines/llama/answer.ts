import type { LlamaContextSequence, LlamaGrammar, Token } from 'node-llama-cpp'
import type { GenerateEvent, GenerateRequest, Tool } from '#schemas/generate.ts'
import { type Budget, getBudget, StopFilter } from '#shared/engines/stop.ts'
import { ServiceError } from '#shared/error.ts'
import { writeSchemaGrammar } from './grammar/grammar.ts'
import { JSON_OBJECT_GRAMMAR } from './grammar/rules.ts'
import { fittingTokensOf, writeCallPrompt, writeTextPrompt } from './prompt.ts'
import { rawTextOf, rawTokensOf } from './raw.ts'
import type { LlamaCall, LlamaRuntime } from './runtime.ts'
import { openSampling, readPrompt, type Sampled, sample } from './sample.ts'
import { describeToken, TokenText } from './text.ts'
import { chooseTool } from './tools.ts'

/** A call with the sequence that it holds. */
interface SequenceCall extends LlamaCall {
  readonly sequence: LlamaContextSequence
}

/** How the answer comes about, the same for each of the n choices. */
interface Plan {
  /** The tool that is called; undefined: the answer is text. */
  readonly tool: Tool | undefined
  readonly prompt: readonly Token[]
  readonly grammar: LlamaGrammar | undefined
  readonly budget: Budget
}

/**
 * Answers one request. `input_tokens` are those of the prompt that the answer continues: with tools its system turn
 * also describes the tool that is called, and the short question which tool to call is not counted.
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

async function makePlan(call: LlamaCall): Promise<Plan> {
  const { runtime, request, signal, config } = call
  if (request.completion) {
    const prompt = await rawTokensOf(runtime, request, signal)
    const budget = getBudget(request, config, prompt.length, runtime.contextTokens)
    return { tool: undefined, prompt, budget, grammar: undefined }
  }
  const tool = await chooseTool(call)
  const text = tool ? writeCallPrompt(runtime, request, tool) : writeTextPrompt(runtime, request)
  const prompt = await fittingTokensOf(runtime, text, signal)
  const budget = getBudget(request, config, prompt.length, runtime.contextTokens)
  return { tool, prompt, budget, grammar: await makeGrammar(runtime, request, tool) }
}

/** Where each API has the schemas of a tool and of the answer. */
const SCHEMA_PATHS: Readonly<Record<GenerateRequest['dialect'], { readonly tool: string; readonly format: string }>> = {
  openai: { tool: 'function.parameters', format: 'response_format.json_schema.schema' },
  anthropic: { tool: 'input_schema', format: 'output_config.format.schema' },
  responses: { tool: 'parameters', format: 'text.format.schema' },
}

/** Tools are held to their schema as far as a grammar can, unless they are strict: agents send keywords that no grammar enforces. */
async function makeGrammar(
  { llama }: LlamaRuntime,
  request: GenerateRequest,
  tool: Tool | undefined,
): Promise<LlamaGrammar | undefined> {
  const format = request.response_format
  if (!tool && !format) return undefined
  const paths = SCHEMA_PATHS[request.dialect]
  const param = tool ? `tools[${request.tools.indexOf(tool)}].${paths.tool}` : paths.format
  const grammar = tool
    ? writeSchemaGrammar({ type: 'object', properties: {}, ...tool.parameters }, param, {
        isStrict: tool.strict === true,
      })
    : format?.type === 'json_schema'
      ? writeSchemaGrammar(format.schema, param)
      : JSON_OBJECT_GRAMMAR
  try {
    return await llama.createGrammar({ grammar })
  } catch (cause) {
    throw new ServiceError('invalid_value', 'The JSON schema is too complex for this model.', { cause, param })
  }
}

/** Gives one choice in words or JSON. Returns how many tokens were generated. */
async function* writeText(call: SequenceCall, plan: Plan, choice: number): AsyncGenerator<GenerateEvent, number> {
  const { runtime, request } = call
  const decoder = new TokenText(runtime.model)
  // Some templates end a turn with ordinary text, which the model writes like any other. A raw prompt has no turns.
  const isPlain = plan.grammar || request.completion
  const stops = new StopFilter(isPlain ? request.stop : [...request.stop, ...endMarks(runtime)])
  let tokens = 0
  if (request.completion?.echo) yield { type: 'text', choice, text: rawTextOf(runtime, request) }
  if (plan.budget.tokens === 0) {
    yield finish(plan, choice, tokens)
    return tokens
  }
  for await (const sampled of sampleChoice(call, plan, choice)) {
    tokens++
    const { text, logprobs, hit } = stops.push(decoder.push(sampled.token), logprobOf(call, sampled))
    if (text !== '') yield { type: 'text', choice, text, ...(logprobs.length > 0 ? { logprobs } : {}) }
    if (hit !== undefined) {
      yield { type: 'finish', choice, reason: 'stop', ...(request.stop.includes(hit) ? { stop_sequence: hit } : {}) }
      return tokens
    }
    if (tokens === plan.budget.tokens) break
  }
  const { text, logprobs } = stops.flush(decoder.flush())
  if (text !== '') yield { type: 'text', choice, text, ...(logprobs.length > 0 ? { logprobs } : {}) }
  yield finish(plan, choice, tokens)
  return tokens
}

/** Gives one choice that calls a tool: the grammar allows nothing but its arguments. */
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

function endMarks({ wrapper }: LlamaRuntime): string[] {
  const { stopGenerationTriggers } = wrapper.generateContextState({ chatHistory: [] })
  return stopGenerationTriggers
    .map((trigger) => trigger.values.map((value) => (typeof value === 'string' ? value : '')).join(''))
    .filter((mark) => mark !== '')
}
