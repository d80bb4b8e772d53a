/**
 * Keeps surrogate pairs whole: no piece of a text ends in half a pair, whose first half waits for the next piece.
 *
 * Upstreams escape characters beyond the BMP as two `\u` escapes and may cut between them; half a pair is not text, and
 * becomes U+FFFD on the first hop that writes UTF-8. Halves that never meet become it here. One instance serves one run of
 * text.
 */
export class SurrogateBuffer {
  #held = ''

  /** The piece with what waited before it, as far as it is whole; possibly empty. */
  push(text: string): string {
    if (text === '') return ''
    const joined = this.#held + text
    if (!isHighSurrogate(joined.charCodeAt(joined.length - 1))) {
      this.#held = ''
      return joined.toWellFormed()
    }
    this.#held = joined.slice(-1)
    return joined.slice(0, -1).toWellFormed()
  }

  /** What is left when no more text comes. */
  flush(): string {
    const rest = this.#held === '' ? '' : '\uFFFD'
    this.#held = ''
    return rest
  }
}

/** Whether a UTF-16 unit is the first half of a pair. */
export function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdbff
}

/** Whether it is the second half. */
export function isLowSurrogate(unit: number): boolean {
  return unit >= 0xdc00 && unit <= 0xdfff
}
