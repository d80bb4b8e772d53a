import type { LlamaModel, Token } from 'node-llama-cpp'
import type { Logprob } from '#schemas/generate.ts'

/** Tokens one character may be spread over; after that it is taken for broken output of the model. */
const CHARACTER_TOKENS_MAX = 8
/** What an impossible token's log probability is called (docs/protocol.md, Chat answers). */
const NEVER = -9999
const BROKEN = '\ufffd'

/** Turns tokens into text as they come, whole characters only: many are spread over two to four tokens. */
export class TokenText {
  readonly #model: LlamaModel
  #last: Token[] = []
  #pending: Token[] = []

  constructor(model: LlamaModel) {
    this.#model = model
  }

  /** The text that is complete with this token; '' inside a character. */
  push(token: Token): string {
    this.#pending.push(token)
    const text = this.#model.detokenize(this.#pending, false, this.#last)
    if (text.endsWith(BROKEN) && this.#pending.length < CHARACTER_TOKENS_MAX) return ''
    this.#last = [...this.#last, ...this.#pending].slice(-CHARACTER_TOKENS_MAX)
    this.#pending = []
    return text
  }

  /** What is left at the end, without the beginning of a character that was cut off. */
  flush(): string {
    const text = this.#model.detokenize(this.#pending, false, this.#last)
    this.#pending = []
    return text.replace(/\ufffd+$/, '')
  }
}

/**
 * A sampled token in the OpenAI shape.
 *
 * @param probabilities Of the whole vocabulary, highest first, after temperature and grammar: llama.cpp gives no others
 */
export function describeToken(
  model: LlamaModel,
  token: Token,
  probabilities: ReadonlyMap<Token, number>,
  topCount: number,
): Logprob {
  const top = [...probabilities.entries().take(topCount)].map(([other, probability]) =>
    nameToken(model, other, probability),
  )
  return { ...nameToken(model, token, probabilities.get(token) ?? 0), top_logprobs: top }
}

function nameToken(model: LlamaModel, token: Token, probability: number) {
  const text = model.detokenize([token], true)
  // The bytes of part of a character cannot be told from its text.
  const bytes = text.includes(BROKEN) ? null : [...Buffer.from(text)]
  return { token: text, logprob: probability > 0 ? Math.max(NEVER, Math.log(probability)) : NEVER, bytes }
}
