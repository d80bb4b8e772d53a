import type { LlamaModel, Token } from 'node-llama-cpp'
import { cutAfter } from '#shared/engines/token-cuts.ts'
import type { Prompt } from './format.ts'

/** Characters that are tokenized at once: some 5 ms. Where a text has no place to be cut, up to four times as many. */
const PIECE_CHARS = 4_096
const PIECE_CHARS_MAX = 16_384

/**
 * A prompt to the tokens of a GGUF model, to be run by `runYielding`: the library takes one to three microseconds a character, and
 * a prompt may have 30 million.
 *
 * @returns What llama.cpp gives for the whole, but where more than 16,384 characters have no blank and no stop among them:
 *   there a token or two too many.
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

/** The same for the raw prompt of a completion, whose caller writes the marks of turns in it, if there are to be any. */
export function* tokenizeRaw(model: LlamaModel, text: string): Generator<undefined, Token[]> {
  const tokens: Token[] = []
  yield* addPlain(model, text, tokens, true)
  return tokens
}

/** A vocabulary that puts a blank before a text puts it before the first piece only. */
function* addPlain(model: LlamaModel, text: string, tokens: Token[], readsMarks = false): Generator<undefined, void> {
  for (let at = 0; at < text.length; ) {
    const end = cutAfter(text, at, PIECE_CHARS, PIECE_CHARS_MAX)
    const trim = at > 0 || readsMarks ? 'trimLeadingSpace' : undefined
    for (const token of model.tokenize(text.slice(at, end), readsMarks, trim)) tokens.push(token)
    at = end
    yield
  }
}

/** How many tokens texts have at least, at a glance: what that refuses need not be tokenized. */
export function leastTokens(prompt: Prompt, tokenBytesMax: number): number {
  let bytes = 0
  for (const piece of prompt) if (typeof piece === 'string') bytes += Buffer.byteLength(piece)
  return Math.ceil(bytes / tokenBytesMax)
}

/**
 * Bytes of text that the longest token of a model stands for, or more. Infinity for kinds of vocabulary that change a text
 * before they cut it (WordPiece and Unigram drop blanks): there the bytes of a text tell nothing.
 */
export function longestTokenBytes(model: LlamaModel): number {
  const { model: kind, tokens } = model.fileInfo.metadata.tokenizer?.ggml ?? {}
  if (!tokens || (kind !== 'gpt2' && kind !== 'llama')) return Number.POSITIVE_INFINITY
  // No fewer than they stand for: gpt2 writes bytes as characters of one or two bytes, llama a blank as one of three.
  return tokens.reduce((most, token) => Math.max(most, Buffer.byteLength(token)), 1)
}
