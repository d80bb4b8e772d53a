/**
 * Keeps surrogate pairs whole: a high surrogate at the end of one piece waits for the next piece.
 *
 * Upstreams escape characters beyond the BMP as two `\u` escapes and may cut between them; half a pair is not text, and
 * becomes U+FFFD on the first hop that writes UTF-8. One instance serves one run of text.
 */
export class WholeCharacters {
  #high = ''

  /** The piece with what waited before it, without a half pair at its end; possibly empty. */
  push(piece: string): string {
    const last = piece.charCodeAt(piece.length - 1)
    const isHalf = last >= 0xd800 && last <= 0xdbff
    // The common case allocates nothing.
    if (!isHalf && this.#high === '') return piece
    const text = this.#high + (isHalf ? piece.slice(0, -1) : piece)
    this.#high = isHalf ? piece.slice(-1) : ''
    return text
  }
}
