import { setImmediate as nextTurn } from 'node:timers/promises'
import { type EmbedInput, TOKENS_MAX } from '#schemas/embeddings.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { EmbedText } from '#shared/engines/batching/batch.ts'
import { inputsTooLong, inputTooLong } from '#shared/engines/batching/limits.ts'
import { guessTokens, loadTokens } from '#shared/engines/batching/tokens.ts'

/** How long inputs are looked at before other jobs have their turn. */
const YIELD_INTERVAL_MS = 5

/**
 * The texts of a job: tokens decoded, lengths checked where it takes a tokenizer to know them. Most texts are so short
 * that they cannot have too many tokens (a token is a byte at least), and then no vocabulary is loaded.
 *
 * @throws ServiceError `context_length_exceeded`, `invalid_value` for tokens that do not exist; the signal's reason
 */
export async function textsOf(
  inputs: readonly EmbedInput[],
  model: ModelConfig,
  signal: AbortSignal,
): Promise<EmbedText[]> {
  const texts: EmbedText[] = []
  const counter = new Counter(inputs, model)
  let turnEnds = performance.now() + YIELD_INTERVAL_MS
  for (const [index, input] of inputs.entries()) {
    signal.throwIfAborted()
    const text = typeof input === 'string' ? input : await decode(input, inputs.length > 1 ? index : undefined, model)
    await counter.check(input, index)
    texts.push({ text, tokens: typeof input === 'string' ? guessTokens(text) : input.length })
    if (performance.now() < turnEnds) continue
    await nextTurn()
    turnEnds = performance.now() + YIELD_INTERVAL_MS
  }
  return texts
}

/** @param index Of the input; undefined for the only one, which may have come as `[1, 2]` or as `[[1, 2]]` */
async function decode(ids: readonly number[], index: number | undefined, model: ModelConfig): Promise<string> {
  const tokens = await loadTokens(model.embeddings.token_encoding)
  return tokens.decode(ids, (place) => (index === undefined ? 'input' : `input[${index}][${place}]`))
}

/** Counts tokens, of a single input and of all, as far as anything depends on it. */
class Counter {
  readonly #model: ModelConfig
  /** Of one input; undefined where the engine refuses longer ones itself, by its own tokenizer. */
  readonly #most: number | undefined
  /** All inputs together may be too many, so each is counted. */
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

/** A token is a byte at least. */
function tokensAtMost(input: EmbedInput): number {
  return typeof input === 'string' ? Buffer.byteLength(input) : input.length
}
