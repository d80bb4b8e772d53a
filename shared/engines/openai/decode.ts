import type { GenerateEvent, GenerateRequest, NativeUsage, Usage } from '#schemas/kinds/generate.ts'
import type { AnswerDecoder } from '#shared/engines/upstream/answer.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { estimateInputTokens } from '#shared/engines/upstream/usage.ts'
import { nativeEvent } from '#shared/kinds/encode.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { ChoiceState, type WireChoice } from './choice.ts'

type Chunk = Readonly<Record<string, unknown>>

/**
 * Answer fields that need no pass-through, because the internal form represents them or an encoder sets them. `obfuscation` is padding for the frames
 * of one connection, so it is dropped.
 */
const KNOWN_FIELDS: ReadonlySet<string> = new Set([
  ...['id', 'object', 'created', 'model', 'choices', 'message', 'usage', 'system_fingerprint', 'error', 'obfuscation'],
])
const ANSWER_FIELDS_MAX = 64
/** A valid answer without text may report up to this many output tokens per choice, because some servers count the end marker as a token. */
const SILENT_TOKENS_MAX = 1

/**
 * Reads chat completions, streamed or whole, in the forms of many servers.
 *
 * Filter results may follow the finish reason, and usage comes last, so finish events are held back until the end. The answer is complete if each
 * choice has its finish reason. Without finish reasons, the answer is complete if there was some output, followed by `[DONE]` or by the end of a
 * whole answer.
 *
 * If the usage or the finish reason reports output, but no output could be read, then the answer is an error. An empty answer is never returned in
 * this case.
 */
export class OpenAiDecoder implements AnswerDecoder {
  readonly #request: GenerateRequest
  readonly #isSame: boolean
  readonly #choices: ChoiceState[] = []
  readonly #others = new Map<unknown, ChoiceState>()
  readonly #usage = new UsageReader()
  /**
   * Unknown answer fields that were already sent to the caller, as JSON. Many servers repeat these fields in each
   * chunk.
   */
  readonly #answered = new Map<string, string>()
  #hasStarted = false
  #sawDone = false
  #isWhole = false

  constructor(request: GenerateRequest) {
    this.#request = request
    this.#isSame = request.dialect === 'openai' && request.completion === undefined
  }

  get isDone(): boolean {
    return this.#sawDone
  }

  get isComplete(): boolean {
    const choices = this.#known()
    return choices.length >= this.#request.n && choices.every(({ finish }) => finish !== undefined)
  }

  get usage(): Partial<Usage> | undefined {
    return this.#usage.known(this.#hasOutput)
  }

  get nativeUsage(): NativeUsage | undefined {
    return this.#isSame ? this.#usage.native : undefined
  }

  isEnd(data: string): boolean {
    if (data.trim() !== '[DONE]') return false
    this.#sawDone = true
    return true
  }

  frame(data: Record<string, unknown>, out: GenerateEvent[]): void {
    this.#read(data, out)
  }

  whole(body: Record<string, unknown>, out: GenerateEvent[]): undefined {
    this.#isWhole = true
    this.#read(body, out)
  }

  *end(out: GenerateEvent[]): Generator<undefined, void> {
    const choices = this.#known()
    if (choices.length === 0) throw this.#incomplete()
    if (choices.length < this.#request.n) {
      // The server returned fewer choices than requested, so it does not support `n`. A retry cannot help.
      const message = `The upstream of model '${this.#request.model}' returned ${choices.length} of ${this.#request.n} choices.`
      throw new ServiceError('upstream_refused', message, { param: 'n' })
    }
    const isClosed = this.#sawDone || this.#isWhole
    if (choices.some(({ finish, hasOutput }) => !finish && !(isClosed && hasOutput))) throw this.#incomplete()
    if (!this.#hasOutput && choices.some((choice) => this.#reportsOutput(choice))) {
      throw answerError(this.#request.model, 'reported output tokens, but sent no readable output')
    }
    for (const choice of choices) yield* choice.end(out)
  }

  get #hasOutput(): boolean {
    return this.#choices.some((choice) => choice?.hasOutput)
  }

  #known(): ChoiceState[] {
    return this.#choices.filter((choice) => choice !== undefined)
  }

  /**
   * Whether the server reported output, such as text or a tool call, that should have arrived. Hidden reasoning and the tokens of a stop string do
   * not count, because they produce no text.
   */
  #reportsOutput({ finish }: ChoiceState): boolean {
    if (finish === 'tool_calls') return true
    const { output_tokens, reasoning_tokens = 0 } = this.usage ?? {}
    if (output_tokens === undefined) return finish === 'length'
    if (finish === 'content_filter' || (finish === 'stop' && this.#request.stop.length > 0)) return false
    return output_tokens - reasoning_tokens > SILENT_TOKENS_MAX * this.#request.n
  }

  #read(chunk: Chunk, out: GenerateEvent[]): void {
    if (!this.#hasStarted) this.#start(chunk, out)
    const choices = choicesOf(chunk)
    this.#usage.read(chunk, choices)
    if (this.#isSame) this.#answerFields(chunk, out)
    let position = 0
    for (const choice of choices) {
      this.#choice(choice.index ?? position)?.read(choice as WireChoice, this.#isWhole, out)
      position++
    }
  }

  #start(chunk: Chunk, out: GenerateEvent[]): void {
    this.#hasStarted = true
    const fingerprint = chunk.system_fingerprint
    out.push({
      type: 'start',
      model: this.#request.model,
      input_tokens: estimateInputTokens(this.#request),
      ...(typeof fingerprint === 'string' && fingerprint !== '' ? { fingerprint } : {}),
    })
  }

  #answerFields(chunk: Chunk, out: GenerateEvent[]): void {
    let changed: Record<string, unknown> | undefined
    for (const name in chunk) {
      const value = chunk[name]
      if (value === null || KNOWN_FIELDS.has(name) || name === '__proto__') continue
      const json = JSON.stringify(value)
      if (this.#answered.get(name) === json) continue
      if (this.#answered.size < ANSWER_FIELDS_MAX) this.#answered.set(name, json)
      changed ??= {}
      changed[name] = value
    }
    if (changed) out.push(nativeEvent('openai', 'answer', changed))
  }

  /**
   * Returns the choice with an index. Some servers do not count choices from zero. An unexpected index therefore means the first choice without
   * output, if there is one.
   */
  #choice(index: unknown): ChoiceState | undefined {
    const known = this.#others.get(index)
    if (known) return known
    const { n } = this.#request
    const number = typeof index === 'string' ? Number(index) : index
    if (Number.isInteger(number) && (number as number) >= 0 && (number as number) < n) {
      return this.#open(number as number)
    }
    for (let place = 0; place < n; place++) {
      const taken = this.#choices[place]
      if (taken?.hasOutput || (taken && [...this.#others.values()].includes(taken))) continue
      const choice = this.#open(place)
      this.#others.set(index, choice)
      return choice
    }
    return undefined
  }

  #open(place: number): ChoiceState {
    this.#choices[place] ??= new ChoiceState(place, this.#request)
    return this.#choices[place]
  }

  #incomplete(): ServiceError {
    return answerError(this.#request.model, 'ended its response before it was complete')
  }
}

/** Returns the choices of a chunk. In Ollama's own API, the chunk itself is the only choice. */
function choicesOf(chunk: Chunk): Record<string, unknown>[] {
  const { choices, message, done, done_reason } = chunk
  if (Array.isArray(choices)) return choices.filter(isObject)
  if (isObject(choices)) return [choices]
  if (!isObject(message)) return []
  return [{ index: 0, message, finish_reason: done === true ? (done_reason ?? 'stop') : null }]
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

type Json = Readonly<Record<string, unknown>>
type Counts = { [Name in 'input' | 'output' | 'total' | 'cached' | 'written' | 'reasoning']?: number }

/** Field names of each token count, the most common first. A dot separates the names of nested fields. */
const NAMES: Readonly<Record<keyof Counts, readonly string[]>> = {
  input: [
    ...['prompt_tokens', 'input_tokens', 'promptTokens', 'inputTokens', 'prompt_eval_count', 'promptTokenCount'],
    ...['inputTokenCount', 'tokens_evaluated'],
  ],
  output: [
    ...['completion_tokens', 'output_tokens', 'completionTokens', 'outputTokens', 'eval_count', 'candidatesTokenCount'],
    ...['outputTokenCount', 'tokens_predicted', 'predicted_n', 'generated_tokens'],
  ],
  total: ['total_tokens', 'totalTokens', 'totalTokenCount'],
  cached: [
    ...['prompt_tokens_details.cached_tokens', 'input_tokens_details.cached_tokens', 'prompt_cache_hit_tokens'],
    ...['cached_tokens', 'cache_read_input_tokens', 'cachedContentTokenCount', 'cache_n'],
  ],
  written: ['prompt_tokens_details.cache_write_tokens', 'cache_creation_input_tokens'],
  reasoning: [
    ...['completion_tokens_details.reasoning_tokens', 'output_tokens_details.reasoning_tokens', 'reasoning_tokens'],
    'thoughtsTokenCount',
  ],
}
const COUNTS = Object.entries(NAMES).map(([count, names]) => {
  return [count as keyof Counts, names.map((name) => name.split('.'))] as const
})

/**
 * Reads token usage in the forms of servers with OpenAI's API. Usage may be in a chunk, in a choice or in `x_groq`, and
 * may grow over several chunks. Some servers use field names of other APIs (Ollama, Gemini, Bedrock, llama.cpp), or
 * send zeros until the last chunk.
 *
 * Each count is read separately. A positive number replaces the previous number, and a zero is ignored.
 */
class UsageReader {
  readonly #counts: Counts = {}
  #native: Json = {}

  read(chunk: Json, choices: readonly Json[]): void {
    if (chunk.usage) this.#usage(chunk.usage)
    for (const choice of choices) {
      if (choice.usage) this.#usage(choice.usage)
      for (const inner of [choice.delta, choice.message]) if (isObject(inner) && inner.usage) this.#usage(inner.usage)
    }
    if (isObject(chunk.x_groq) && chunk.x_groq.usage) this.#usage(chunk.x_groq.usage)
    for (const field of SIDE_FIELDS) if (isObject(chunk[field])) this.#fill(countsIn(chunk[field]))
    if (isObject(chunk.timings)) this.#fill(timingCounts(chunk.timings))
    if (chunk.eval_count !== undefined || chunk.prompt_eval_count !== undefined) this.#fill(countsIn(chunk))
  }

  /**
   * Returns the token counts that the server reported.
   *
   * @param hasOutput If true, then a reported output count of zero is ignored
   */
  known(hasOutput: boolean): Partial<Usage> | undefined {
    const { input, output, total = 0, cached, written, reasoning } = this.#counts
    const input_tokens = input || (output ? total - output : 0)
    const output_tokens = output || (input ? total - input : 0)
    const hasNone = output !== undefined && !hasOutput
    const usage: Partial<Usage> = {
      ...(input_tokens > 0 && { input_tokens }),
      ...((output_tokens > 0 || hasNone) && { output_tokens: Math.max(0, output_tokens) }),
      ...(cached !== undefined && { cached_tokens: cached }),
      ...(written !== undefined && { cache_write_tokens: written }),
      ...(reasoning !== undefined && { reasoning_tokens: reasoning }),
    }
    return usage.input_tokens === undefined && usage.output_tokens === undefined ? undefined : usage
  }

  get native(): NativeUsage | undefined {
    const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total, ...others } = this.#native
    const isSum = total === undefined || total === (prompt as number) + (completion as number)
    if (isSum && Object.keys(others).length === 0) return undefined
    return { dialect: 'openai', value: { ...this.#native } }
  }

  #usage(usage: unknown): void {
    if (!isObject(usage)) return
    for (const [count, value] of Object.entries(countsIn(usage))) {
      if (value > 0 || this.#counts[count as keyof Counts] === undefined) this.#counts[count as keyof Counts] = value
    }
    this.#native = joined(this.#native, usage)
  }

  #fill(counts: Counts): void {
    for (const [count, value] of Object.entries(counts)) this.#counts[count as keyof Counts] ||= value
  }
}

/** Objects other than `usage` that contain token counts, sent by Gemini, LangChain's servers and Bedrock. */
const SIDE_FIELDS = ['usageMetadata', 'usage_metadata', 'amazon-bedrock-invocationMetrics'] as const

function countsIn(usage: Json): Counts {
  const counts: Counts = {}
  for (const [count, paths] of COUNTS) {
    for (const path of paths) {
      const value = valueAt(usage, path)
      if (!isCount(value)) continue
      counts[count] = value
      if (value > 0) break
    }
  }
  return counts
}

function timingCounts(timings: Json): Counts {
  const { prompt_n, cache_n = 0 } = timings
  const counts = countsIn(timings)
  return isCount(prompt_n) && isCount(cache_n) ? { ...counts, input: prompt_n + cache_n } : counts
}

function valueAt(object: Json, path: readonly string[]): unknown {
  let value: unknown = object
  for (const key of path) value = isObject(value) ? value[key] : undefined
  return value
}

function joined(before: Json, after: Json): Json {
  const fields: Record<string, unknown> = { ...before }
  for (const [name, value] of Object.entries(after)) {
    const old = Object.hasOwn(fields, name) ? fields[name] : undefined
    if (value === null || name === '__proto__' || (value === 0 && old !== undefined)) continue
    fields[name] = isObject(old) && isObject(value) ? joined(old, value) : value
  }
  return fields
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0
}
