import type { GenerateEvent, GenerateRequest, Usage } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { type Budget, getBudget } from '#shared/engines/budget.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/chat.ts'
import { type Released, StopFilter } from '#shared/engines/stop.ts'
import { inTurns } from '#shared/in-turns.ts'
import { EchoPace } from './pace.ts'
import { type Step, stepsOf, writeScript } from './script.ts'
import { countPrompt, inventLogprob } from './text.ts'

/**
 * Opens the deterministic chat engine, for tests and load: the same request always gives the same answer.
 *
 * It repeats the last user turn (after a tool's result: that result), one token a delta when the caller streams, and
 * counts tokens exactly: a word or one other character, with the white space before it (text.ts). A response
 * format, and tools whose name occurs in the user's text, are served with values made from their JSON Schema
 * (fill.ts). A first line `!echo …` scripts pace, length, tools, reasoning, refusal, failures (directive.ts).
 */
export function openEchoEngine(model: ModelConfig): ChatEngine {
  return {
    generate: (request, options) => generate(model, request, options),
    countTokens: (request, { signal }) => inTurns(countPrompt(request), signal),
    close: async () => {},
  }
}

/** What the choices of one call share. */
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
  const inputTokens = await inTurns(countPrompt(request), options.signal)
  const budget = getBudget(request, model, inputTokens, model.limits.context_tokens)
  const pace = new EchoPace(directive, options)
  try {
    if (directive.after === undefined) pace.failAfter(0)
    yield { type: 'start', model: model.id, input_tokens: inputTokens, fingerprint: 'fp_echo_1' }
    const call: Call = { request, budget, pace, reasoningTokens: 0 }
    for (let choice = 0; choice < request.n; choice++) {
      yield* request.stream ? perform(call, choice) : join(perform(call, choice))
    }
    yield { type: 'usage', usage: usageOf(call, inputTokens) }
  } finally {
    pace.close()
  }
}

async function* perform(call: Call, choice: number): AsyncGenerator<GenerateEvent> {
  const { request, budget, pace } = call
  const script = writeScript(request, choice)
  const stops = new StopFilter(request.stop)
  let tokens = 0
  for (const step of stepsOf(script)) {
    if (tokens++ === budget.tokens) {
      yield* released(stops.flush(), choice)
      yield { type: 'finish', choice, reason: 'length', ...(budget.isContextBound ? { context_full: true } : {}) }
      return
    }
    await pace.next()
    if (step.type === 'reasoning') call.reasoningTokens++
    if (step.type !== 'text') {
      yield { ...step, choice }
      continue
    }
    const release = stops.push(step.text, logprobOf(step, request))
    yield* released(release, choice)
    if (release.hit !== undefined) {
      yield { type: 'finish', choice, reason: 'stop', stop_sequence: release.hit }
      return
    }
  }
  yield* released(stops.flush(), choice)
  // A script may ask for a failure after more tokens than there are: then it comes at the end.
  pace.failAfter(Number.MAX_SAFE_INTEGER)
  yield { type: 'finish', choice, reason: script.finish, ...(script.filter ? { filter: script.filter } : {}) }
}

function* released({ text, logprobs }: Released, choice: number): Generator<GenerateEvent> {
  if (text !== '') yield { type: 'text', choice, text, ...(logprobs.length > 0 ? { logprobs } : {}) }
}

function logprobOf(step: Step & { text: string }, request: GenerateRequest) {
  return request.logprobs ? inventLogprob(step.text, request.top_logprobs ?? 0) : undefined
}

function usageOf({ pace, reasoningTokens }: Call, inputTokens: number): Usage {
  return {
    input_tokens: inputTokens,
    output_tokens: pace.tokens,
    ...(reasoningTokens > 0 ? { reasoning_tokens: reasoningTokens } : {}),
  }
}

/** Joins neighbouring deltas of the same text into one. */
async function* join(events: AsyncIterable<GenerateEvent>): AsyncGenerator<GenerateEvent> {
  let last: GenerateEvent | undefined
  for await (const event of events) {
    if (last && 'text' in last && 'text' in event && last.type === event.type && callOf(last) === callOf(event)) {
      last.text += event.text
      if (last.type === 'text' && event.type === 'text') last.logprobs?.push(...(event.logprobs ?? []))
      continue
    }
    if (last) yield last
    last = { ...event }
  }
  if (last) yield last
}

function callOf(event: GenerateEvent): number {
  return 'call' in event ? event.call : -1
}
