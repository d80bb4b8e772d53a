import { isLowSurrogate } from '#shared/lib/surrogate-buffer.ts'

/** Splits a text for tokenizers, so that the pieces together have the same tokens as the whole. */

/**
 * The end of the piece that begins at `start`, at a token boundary if possible.
 *
 * @param chars Maximum characters of the piece.
 * @param charsMost Maximum characters if no boundary is found within `chars`; default: `chars`.
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
 * True at places that no token of a byte-level encoding (GPT, Llama 3, Qwen) or of SentencePiece spans. Such places are before the space
 * after a word, and before a full stop after a letter.
 */
function isSafeCut(text: string, at: number): boolean {
  const next = text[at] as string
  if (next === ' ') return /\S/.test(text[at - 1] as string)
  return '、。，！？'.includes(next) && /\p{L}/u.test(text[at - 1] as string)
}
