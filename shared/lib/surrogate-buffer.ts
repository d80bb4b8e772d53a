/**
 * Keeps surrogate pairs whole: the first half of a pair waits for the next piece of text.
 *
 * Upstreams escape characters beyond the BMP as two `\u` escapes and may split between them. Half a pair is invalid text and
 * becomes U+FFFD when it is encoded as UTF-8. A half without its counterpart becomes U+FFFD here. Use one instance per text.
 */
export class SurrogateBuffer {
  #held = ''

  /** The complete characters of the buffered text plus this piece; possibly empty. */
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

  flush(): string {
    const rest = this.#held === '' ? '' : '\uFFFD'
    this.#held = ''
    return rest
  }
}

export function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdbff
}

export function isLowSurrogate(unit: number): boolean {
  return unit >= 0xdc00 && unit <= 0xdfff
}
