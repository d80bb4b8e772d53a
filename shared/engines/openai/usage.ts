import type { NativeUsage, Usage } from '#schemas/generate.ts'

/*
 * Usage in the forms of servers with OpenAI's API. Usage may be in a chunk, in a choice or in `x_groq`, and may grow over several chunks.
 * Some servers use field names of other APIs (Ollama, Gemini, Bedrock, llama.cpp), or send zeros until the last chunk.
 *
 * Each count is read separately: a positive number replaces the previous one, and zero never does.
 */

type Json = Readonly<Record<string, unknown>>
type Counts = { [Name in 'input' | 'output' | 'total' | 'cached' | 'written' | 'reasoning']?: number }

/** Names of a count, the most common first. A dot separates nested field names. */
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

export class UsageReader {
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

  /** The counts that were reported. @param hasOutput If true, then zero output tokens are ignored as not counted. */
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

  /** The merged usage objects in their own form; undefined if they have only the standard fields. */
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

  /** Fills in counts that no usage object has reported. */
  #fill(counts: Counts): void {
    for (const [count, value] of Object.entries(counts)) this.#counts[count as keyof Counts] ||= value
  }
}

/** Objects other than `usage` that contain token counts: Gemini, LangChain's servers, Bedrock. */
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

/** In llama.cpp the prompt count excludes cached tokens. */
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

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0
}
