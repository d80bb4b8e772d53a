import { setImmediate as nextTurn } from 'node:timers/promises'
import { type EmbedInput, TOKENS_MAX } from '#schemas/embeddings.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { EmbedText } from '#shared/engines/batching/batch.ts'
import { inputsTooLong, inputTooLong } from '#shared/engines/batching/limits.ts'
import { guessTokens, loadTokens } from '#shared/engines/batching/tokens.ts'

/** Maximum time between event-loop yields while inputs are checked. */
const YIELD_INTERVAL_MS = 5

/**
 * The texts of a job. Token inputs are decoded, and lengths are checked if that requires a tokenizer.
 *
 * A token has at least one byte. Most texts are so short that they cannot have too many tokens, and then no vocabulary is loaded.
 *
 * @throws ServiceError `context_length_exceeded`; `invalid_value` for unknown token ids; the signal's reason
 */
export async function textsOf(
  inputs: readonly EmbedInput[],
  model: ModelConfig,
  signal: AbortSignal,
): Promise<EmbedText[]> {
  const texts: EmbedText[] = []
  const counter = new Counter(inputs, model)
  let yieldAt = performance.now() + YIELD_INTERVAL_MS
  for (const [index, input] of inputs.entries()) {
    signal.throwIfAborted()
    const text = typeof input === 'string' ? input : await decode(input, inputs.length > 1 ? index : undefined, model)
    await counter.check(input, index)
    texts.push({ text, tokens: typeof input === 'string' ? guessTokens(text) : input.length })
    if (performance.now() < yieldAt) continue
    await nextTurn()
    yieldAt = performance.now() + YIELD_INTERVAL_MS
  }
  return texts
}

/**
 * Decodes token ids. @param index Position of the input, for error messages; undefined for an only input, sent as `[1, 2]` or `[[1, 2]]`
 */
async function decode(ids: readonly number[], index: number | undefined, model: ModelConfig): Promise<string> {
  const tokens = await loadTokens(model.embeddings.token_encoding)
  return tokens.decode(ids, (place) => (index === undefined ? 'input' : `input[${index}][${place}]`))
}

/** Counts the tokens of each input, and of all inputs together, only if a limit may be exceeded. */
class Counter {
  readonly #model: ModelConfig
  /** Maximum tokens of one input. Undefined for local engines, which refuse longer inputs by their own tokenizer. */
  readonly #most: number | undefined
  /** Whether all inputs together may exceed the limit, so that each input must be counted. */
  readonly #countsAll: boolean
  #sum = 0

  constructor(inputs: readonly EmbedInput[], model: ModelConfig) {
    this.#model = model
    this.#most = model.engine.type === 'local' ? undefined : model.limits.context_tokens
    this.#countsAll = inputs.reduce((sum, input) => sum + tokensAtMost(input), 0) > TOKENS_MAX
  }

  async check(input: EmbedInput, index: number): Promise<void> {
    const most = this.#most ?? Number.POSITIVE_INFINITY
    if (!this.#countsAll && tokensAtMost(input) <= most) return
    const tokens = typeof input === 'string' ? await this.#count(input) : input.length
    if (tokens > most) throw inputTooLong(index, tokens, most)
    this.#sum += tokens
    if (this.#countsAll && this.#sum > TOKENS_MAX) throw inputsTooLong()
  }

  async #count(text: string): Promise<number> {
    const tokens = await loadTokens(this.#model.embeddings.token_encoding)
    return await tokens.count(text, TOKENS_MAX)
  }
}

/** Upper bound of an input's tokens: a token has at least one byte. */
function tokensAtMost(input: EmbedInput): number {
  return typeof input === 'string' ? Buffer.byteLength(input) : input.length
}
