import type { ModelConfig } from '#schemas/models.ts'
import { cutAfter } from '#shared/engines/token-cuts.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'

export type TokenEncoding = ModelConfig['embeddings']['token_encoding']

/**
 * Maximum characters per tokenizer call. The cost of the tokenizer grows with the square of a run without spaces. A run of 60,000 letters blocks the
 * process for 8 s, and a run of this maximum takes 2 ms.
 */
const SLICE_CHARS = 1_024

/** Matches words, numbers and symbols. A token within such a match has {@link WORD_BYTES} bytes on average. */
const WORDS = /\p{L}+|\p{N}{1,3}|[^\s\p{L}\p{N}]+/gu
const WORD_BYTES = 6
const SAMPLE_CHARS = 4_096

/**
 * Estimates the tokens of a text without a vocabulary. Inputs are divided among calls, and costs among inputs, in proportion to this estimate. The
 * result is at least 1.
 */
export function estimateTokens(text: string): number {
  const sample = text.slice(0, SAMPLE_CHARS)
  let tokens = 0
  for (const [word] of sample.matchAll(WORDS)) tokens += Math.ceil(Buffer.byteLength(word) / WORD_BYTES)
  return Math.max(1, Math.ceil((tokens * text.length) / sample.length))
}

export interface Tokens {
  /**
   * Counts the tokens of a text. Text that looks like a special token counts as plain text. Counting yields to the event loop and stops soon after
   * `most` tokens.
   *
   * A run of more than 1,024 characters without a space may count one or two tokens too many. All other counts are exact.
   */
  count(text: string, most: number): Promise<number>
  /**
   * Returns the text of token ids. Bytes that are not valid UTF-8 become U+FFFD.
   *
   * @param pathOf Returns the path of an unknown id by its position, such as `input[2][5]`
   * @throws ServiceError `invalid_value` for an unknown id
   */
  decode(ids: readonly number[], pathOf: (place: number) => string): string
}

const LOADERS = { cl100k_base: loadCl100k, o200k_base: loadO200k }
const loaded = new Map<TokenEncoding, Promise<Tokens>>()

/** Returns the tokenizer of an encoding. The first call loads the vocabulary, which takes 60 to 120 MB and 0.2 s. */
export function loadTokens(encoding: TokenEncoding): Promise<Tokens> {
  let tokens = loaded.get(encoding)
  if (!tokens) {
    tokens = LOADERS[encoding]()
    loaded.set(encoding, tokens)
  }
  return tokens
}

async function loadCl100k(): Promise<Tokens> {
  const { countTokens } = await import('gpt-tokenizer/encoding/cl100k_base')
  const { default: ranks } = await import('gpt-tokenizer/bpeRanks/cl100k_base')
  const { Cl100KBase } = await import('gpt-tokenizer/encodingParams/cl100k_base')
  return new Vocabulary(ranks, Cl100KBase(ranks).specialTokensEncoder, countTokens)
}

async function loadO200k(): Promise<Tokens> {
  const { countTokens } = await import('gpt-tokenizer/encoding/o200k_base')
  const { default: ranks } = await import('gpt-tokenizer/bpeRanks/o200k_base')
  const { O200KBase } = await import('gpt-tokenizer/encodingParams/o200k_base')
  return new Vocabulary(ranks, O200KBase(ranks).specialTokensEncoder, countTokens)
}

type Rank = string | readonly number[]

class Vocabulary implements Tokens {
  readonly #ranks: readonly (Rank | undefined)[]
  readonly #specials: ReadonlyMap<number, string>
  readonly #countSlice: (text: string) => number

  constructor(
    ranks: readonly Rank[],
    specials: ReadonlyMap<string, number>,
    count: (text: string, options: { disallowedSpecial: Set<string> }) => number,
  ) {
    this.#ranks = ranks
    this.#specials = new Map([...specials].map(([text, id]) => [id, text]))
    const plain = { disallowedSpecial: new Set<string>() }
    this.#countSlice = (text) => count(text, plain)
  }

  async count(text: string, most: number): Promise<number> {
    return await runYielding(this.#count(text, most))
  }

  *#count(text: string, most: number): Generator<undefined, number> {
    let tokens = 0
    for (let at = 0; at < text.length && tokens <= most; ) {
      const end = cutAfter(text, at, SLICE_CHARS)
      tokens += this.#countSlice(text.slice(at, end))
      at = end
      yield
    }
    return tokens
  }

  decode(ids: readonly number[], pathOf: (place: number) => string): string {
    const bytes = ids.map((id, place) => this.#bytesOf(id) ?? refuseToken(id, pathOf(place)))
    return Buffer.concat(bytes).toString('utf8')
  }

  #bytesOf(id: number): Buffer | undefined {
    const value = this.#ranks[id] ?? this.#specials.get(id)
    if (typeof value === 'string') return Buffer.from(value)
    return value && Buffer.from(value)
  }
}

function refuseToken(id: number, param: string): never {
  throw new ServiceError('invalid_value', `Invalid '${param}': ${id} is not a token of this model.`, { param })
}
