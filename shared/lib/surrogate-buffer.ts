/**
 * Prevents a text stream from being split inside a surrogate pair: the first half waits for the next piece of text.
 *
 * Upstreams escape characters beyond the BMP as two `\u` escapes and may split a text between them. Half a pair is invalid text,
 * which UTF-8 encoders replace with U+FFFD. If the second half never arrives, then this class also returns U+FFFD. Use one instance
 * per text.
 */
export class SurrogateBuffer {
  #held = ''

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
