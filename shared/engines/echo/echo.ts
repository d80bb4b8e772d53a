import { setImmediate as nextTurn } from 'node:timers/promises'
import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/engine.ts'
import { type Budget, getBudget, type Released, StopFilter } from '#shared/engines/stop.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { countPrompt, type Directive, inventLogprob, stepsOf, writeScript } from './script.ts'

const TOKENS_AT_ONCE = 128

/**
 * Opens the deterministic chat engine for tests and load tests. Equal requests get equal answers.
 *
 * The engine repeats the last user turn, or the tool result that follows it. If the caller streams, then each delta is one token. A token is a word
 * or one other character, with the whitespace before it (script.ts), so counts are exact.
 *
 * A response format, and tools whose name occurs in the user's text, get values generated from their JSON Schema (fill.ts). A first line `!echo …`
 * scripts pace, length, tools, reasoning, refusal and failures (script.ts).
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
      yield* request.stream ? perform(call, choice) : join(perform(call, choice))
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
  // If the script schedules the failure for later than the last token, then the failure happens at the end.
  pace.failAfter(Number.MAX_SAFE_INTEGER)
  yield { type: 'finish', choice, reason: script.finish, ...(script.filter ? { filter: script.filter } : {}) }
}

function* released({ text, logprobs }: Released, choice: number): Generator<GenerateEvent> {
  if (text !== '') yield { type: 'text', choice, text, ...(logprobs.length > 0 ? { logprobs } : {}) }
}

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
