import { isLowSurrogate } from '#shared/surrogate-buffer.ts'

/** Where a text may be cut so that its pieces have the tokens of the whole. */

/**
 * The end of the piece that begins at `start`: where tokens end anyway, if there is such a place.
 *
 * @param chars Most characters of the piece.
 * @param charsMost Characters up to which such a place is looked for where there is none before; default: `chars`.
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
 * No token of a byte-level encoding (GPT, Llama 3, Qwen) or of SentencePiece reaches over these places: before the blank
 * after a word, before a stop after a letter.
 */
function isSafeCut(text: string, at: number): boolean {
  const next = text[at] as string
  if (next === ' ') return /\S/.test(text[at - 1] as string)
  return '、。，！？'.includes(next) && /\p{L}/u.test(text[at - 1] as string)
}
