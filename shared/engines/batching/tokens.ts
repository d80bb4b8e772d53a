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
