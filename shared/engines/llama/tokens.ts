import type { LlamaModel, Token } from 'node-llama-cpp'
import { cutAfter } from '#shared/engines/token-cuts.ts'
import type { Prompt } from './format.ts'

/** Characters that are tokenized at once: about 5 ms. If a text has no token boundary, then up to four times as many. */
const PIECE_CHARS = 4_096
const PIECE_CHARS_MAX = 16_384

/**
 * Tokenizes a prompt for a GGUF model. The library needs one to three microseconds per character, and a prompt may have 30 million. Run it
 * by `runYielding`.
 *
 * @returns The tokens that llama.cpp returns for the whole text. Only in runs of more than 16,384 characters without a space or a full stop
 * there may be one or two more
 */
export function* tokenizePrompt(model: LlamaModel, prompt: Prompt): Generator<undefined, Token[]> {
  const tokens: Token[] = []
  for (const piece of prompt) {
    if (typeof piece === 'string') yield* addPlain(model, piece, tokens)
    else tokens.push(piece)
    yield
  }
  return tokens
}

/** Tokenizes the raw prompt of a completion, in which the caller may write control tokens. */
export function* tokenizeRaw(model: LlamaModel, text: string): Generator<undefined, Token[]> {
  const tokens: Token[] = []
  yield* addPlain(model, text, tokens, true)
  return tokens
}

/** If a vocabulary inserts a space before a text, then it is inserted before the first piece only. */
function* addPlain(model: LlamaModel, text: string, tokens: Token[], readsMarks = false): Generator<undefined, void> {
  for (let at = 0; at < text.length; ) {
    const end = cutAfter(text, at, PIECE_CHARS, PIECE_CHARS_MAX)
    const trim = at > 0 || readsMarks ? 'trimLeadingSpace' : undefined
    for (const token of model.tokenize(text.slice(at, end), readsMarks, trim)) tokens.push(token)
    at = end
    yield
  }
}

/** A quick lower bound of the number of tokens, by which long texts are rejected without tokenization. */
export function leastTokens(prompt: Prompt, tokenBytesMax: number): number {
  let bytes = 0
  for (const piece of prompt) if (typeof piece === 'string') bytes += Buffer.byteLength(piece)
  return Math.ceil(bytes / tokenBytesMax)
}

/**
 * Upper bound of the bytes of text of a model's longest token. Infinity for vocabularies that change a text before they split it (WordPiece
 * and Unigram drop spaces), because its bytes then give no bound.
 */
export function longestTokenBytes(model: LlamaModel): number {
  const { model: kind, tokens } = model.fileInfo.metadata.tokenizer?.ggml ?? {}
  if (!tokens || (kind !== 'gpt2' && kind !== 'llama')) return Number.POSITIVE_INFINITY
  // An upper bound: gpt2 writes each byte as a character of one or two bytes, llama a space as a character of three.
  return tokens.reduce((most, token) => Math.max(most, Buffer.byteLength(token)), 1)
}
