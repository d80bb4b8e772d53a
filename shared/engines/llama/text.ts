import type { LlamaModel, Token } from 'node-llama-cpp'
import type { Logprob } from '#schemas/generate.ts'

/** Maximum tokens of one character. A longer incomplete sequence is invalid output and becomes U+FFFD. */
const CHARACTER_TOKENS_MAX = 8
/** Log probability of an impossible token (docs/reference/compatibility.md, Chat answers). */
const NEVER = -9999
const BROKEN = '\ufffd'

/** Converts tokens into text as they arrive, in whole characters only: many characters span two to four tokens. */
export class TokenText {
  readonly #model: LlamaModel
  #last: Token[] = []
  #pending: Token[] = []

  constructor(model: LlamaModel) {
    this.#model = model
  }

  /** The text that is complete with this token; '' within a character. */
  push(token: Token): string {
    this.#pending.push(token)
    const text = this.#model.detokenize(this.#pending, false, this.#last)
    if (text.endsWith(BROKEN) && this.#pending.length < CHARACTER_TOKENS_MAX) return ''
    this.#last = [...this.#last, ...this.#pending].slice(-CHARACTER_TOKENS_MAX)
    this.#pending = []
    return text
  }

  /** The rest of the text, without an incomplete last character. */
  flush(): string {
    const text = this.#model.detokenize(this.#pending, false, this.#last)
    this.#pending = []
    return text.replace(/\ufffd+$/, '')
  }
}

/**
 * A sampled token in OpenAI's form.
 *
 * @param probabilities Probabilities of the whole vocabulary, highest first, after temperature and grammar: llama.cpp provides no others
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
  // The bytes of an incomplete character cannot be derived from its text.
  const bytes = text.includes(BROKEN) ? null : [...Buffer.from(text)]
  return { token: text, logprob: probability > 0 ? Math.max(NEVER, Math.log(probability)) : NEVER, bytes }
}
