import { isLowSurrogate } from '#shared/lib/buffers.ts'

/**
 * Returns the position at which to cut a text that is tokenized in pieces. The piece begins at `start`. If possible, the cut is at a token boundary,
 * so that the pieces have the same tokens as the whole text.
 *
 * @param chars Maximum characters of the piece.
 * @param charsMost Maximum characters if no boundary is found within `chars`. Default: `chars`.
 */
export function cutAfter(text: string, start: number, chars: number, charsMost = chars): number {
  const end = start + chars
  if (end >= text.length) return text.length
  for (let at = end; at > start; at--) if (isSafeCut(text, at)) return at
  const most = Math.min(text.length, start + charsMost)
  for (let at = end + 1; at < most; at++) if (isSafeCut(text, at)) return at
  return most < text.length && isLowSurrogate(text.charCodeAt(most)) ? most - 1 : most
}

/**
 * Whether no token can span this position. Safe positions are before the space after a word, and before a Chinese or Japanese punctuation mark after
 * a letter. The rule holds for byte-level encodings (GPT, Llama 3, Qwen) and for SentencePiece.
 */
function isSafeCut(text: string, at: number): boolean {
  const next = text[at] as string
  if (next === ' ') return /\S/.test(text[at - 1] as string)
  return '、。，！？'.includes(next) && /\p{L}/u.test(text[at - 1] as string)
}
