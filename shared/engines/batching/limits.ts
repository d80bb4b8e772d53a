import { TOKENS_MAX } from '#schemas/kinds/embeddings.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Estimates of tokens and answer sizes. The ingress checks lengths by these estimates, and a worker checks the exact token counts. */

/** Maximum bytes of a token in any supported encoding. A text therefore has at least `bytes / TOKEN_BYTES_MAX` tokens. */
export const TOKEN_BYTES_MAX = 128

/** Maximum base64 bytes of one vector with 4,096 numbers, including the JSON around it. */
const VECTOR_BYTES_MAX = 24 * 1024

export function answerBytesMax(inputs: number): number {
  return (inputs + 4) * VECTOR_BYTES_MAX
}

export function inputTooLong(index: number, tokens: number | string, most: number): ServiceError {
  const message = `Input ${index} has ${tokens} tokens; this model accepts at most ${most} per input.`
  return new ServiceError('context_length_exceeded', message, { param: 'input' })
}

export function inputsTooLong(): ServiceError {
  const message = `The inputs have more than ${TOKENS_MAX} tokens together, the maximum per request.`
  return new ServiceError('context_length_exceeded', message, { param: 'input' })
}

/** Matches words, numbers and symbols. A token within such a match has {@link WORD_BYTES} bytes on average. */
const WORDS = /\p{L}+|\p{N}{1,3}|[^\s\p{L}\p{N}]+/gu
const WORD_BYTES = 6
const SAMPLE_CHARS = 4_096

/**
 * Estimates the tokens of a text without a vocabulary. The result is at least 1. The estimate bounds the size of a batch, and divides the cost of a
 * call among its inputs.
 */
export function estimateTokens(text: string): number {
  const sample = text.slice(0, SAMPLE_CHARS)
  let tokens = 0
  for (const [word] of sample.matchAll(WORDS)) tokens += Math.ceil(Buffer.byteLength(word) / WORD_BYTES)
  return Math.max(1, Math.ceil((tokens * text.length) / sample.length))
}
