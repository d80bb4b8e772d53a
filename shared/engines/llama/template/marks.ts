/**
 * The marks of a model in a rendered prompt: texts such as `<|im_end|>` that stand for one control token.
 *
 * A template is rendered to text, and its marks must become tokens, while a user who writes `<|im_end|>` must get text: else a
 * caller could end a turn and speak as the system. So each string of the caller is escaped before the template is rendered:
 * an escape character stands in front of every character where a mark begins. Templates may trim, split and join the
 * strings; the escape character moves along. {@link Marks.split} then finds the marks of the template alone.
 *
 * A mark must not come about at a border either, where a caller's `INST` meets a template's `[` and `]`, or one string of a
 * caller meets the next. So the beginning and the end of a string are escaped if they could be part of a mark.
 *
 * Rejected: placeholders in place of the strings. A template that trims or splits them would render something else.
 */

/** A control token and its text. */
export interface Mark {
  readonly text: string
  readonly token: number
  /** The token takes the blanks before or after it. */
  readonly lstrip?: boolean
  readonly rstrip?: boolean
}

/** Plain text, or a control token. */
export type Piece = string | number

/** Characters of which one that a conversation does not contain is its escape character: Unicode has them for internal use. */
const ESCAPES = Array.from({ length: 32 }, (_, i) => String.fromCharCode(0xfdd0 + i))

export class Marks {
  readonly #byText: ReadonlyMap<string, Mark>
  readonly #alternatives: string
  readonly #starts: RegExp | undefined
  readonly #lengthMax: number
  readonly #prefixes = new Set<string>()
  readonly #suffixes = new Set<string>()
  /** Parts of marks that neither begin nor end them, and the suffixes. */
  readonly #insides = new Set<string>()
  readonly #splitters = new Map<string, RegExp>()

  constructor(marks: readonly Mark[]) {
    const known = marks.filter(({ text }) => text !== '')
    this.#byText = new Map(known.map((mark) => [mark.text, mark]))
    // In descending order a mark comes before those that begin it.
    const texts = [...this.#byText.keys()].sort((a, b) => (a < b ? 1 : -1))
    this.#alternatives = texts.map((text) => RegExp.escape(text)).join('|')
    this.#starts = texts.length > 0 ? new RegExp(`(?=${this.#alternatives})`, 'g') : undefined
    this.#lengthMax = texts.reduce((most, { length }) => Math.max(most, length), 0)
    for (const text of texts) this.#learnParts(text)
  }

  #learnParts(text: string): void {
    for (let at = 1; at < text.length; at++) {
      this.#prefixes.add(text.slice(0, at))
      this.#suffixes.add(text.slice(at))
      for (let end = at + 1; end <= text.length; end++) this.#insides.add(text.slice(at, end))
    }
  }

  /** An escape character that a value of the caller does not contain; undefined if it contains all of them. */
  escapeFor(value: unknown): string | undefined {
    const texts = [...textsOf(value)]
    return ESCAPES.find((guard) => !texts.some((text) => text.includes(guard) || text.includes(asciiOf(guard))))
  }

  /** A value of the caller, with its strings escaped, keys included. */
  escapeAll(value: unknown, guard: string): unknown {
    if (typeof value === 'string') return this.escape(value, guard)
    if (Array.isArray(value)) return value.map((one) => this.escapeAll(one, guard))
    if (typeof value !== 'object' || value === null) return value
    const entries = Object.entries(value).map(([key, one]) => [this.escape(key, guard), this.escapeAll(one, guard)])
    return Object.fromEntries(entries)
  }

  escape(text: string, guard: string): string {
    if (!this.#starts || text === '') return text
    const places = new Set<number>()
    if (this.#couldContinueMark(text)) places.add(0)
    for (const { index } of text.matchAll(this.#starts)) places.add(index)
    for (let length = Math.min(this.#lengthMax - 1, text.length); length > 0; length--) {
      if (this.#prefixes.has(text.slice(-length))) places.add(text.length - length)
    }
    if (places.size === 0) return text
    let escaped = ''
    let from = 0
    for (const at of [...places].sort((a, b) => a - b)) {
      escaped += text.slice(from, at) + guard
      from = at
    }
    return escaped + text.slice(from)
  }

  #couldContinueMark(text: string): boolean {
    if (text.length < this.#lengthMax && this.#insides.has(text)) return true
    for (let length = 1; length < this.#lengthMax && length <= text.length; length++) {
      if (this.#suffixes.has(text.slice(0, length))) return true
    }
    return false
  }

  /** Takes a rendered prompt apart, and removes the escape characters. */
  split(text: string, guard: string): Piece[] {
    const pieces: Piece[] = []
    let plain = ''
    let at = 0
    const strip = { next: false }
    const addPlain = (more: string) => {
      plain += strip.next ? more.trimStart() : more
      if (plain !== '') strip.next = false
    }
    for (const match of text.matchAll(this.#splitterOf(guard))) {
      addPlain(text.slice(at, match.index))
      at = match.index + match[0].length
      const mark = match[1] === undefined ? this.#byText.get(match[0]) : undefined
      if (!mark) {
        addPlain(match[1] ?? '')
        continue
      }
      if (mark.lstrip) plain = plain.trimEnd()
      if (plain !== '') pieces.push(plain)
      pieces.push(mark.token)
      plain = ''
      strip.next = mark.rstrip ?? false
    }
    addPlain(text.slice(at))
    if (plain !== '') pieces.push(plain)
    return pieces
  }

  /** A template that writes JSON in ASCII writes the escape character as six. */
  #splitterOf(guard: string): RegExp {
    const known = this.#splitters.get(guard)
    if (known) return known
    const escaped = `(?:${guard}|${RegExp.escape(asciiOf(guard))})([\\s\\S]?)`
    const splitter = new RegExp(this.#alternatives === '' ? escaped : `${escaped}|${this.#alternatives}`, 'g')
    this.#splitters.set(guard, splitter)
    return splitter
  }
}

function asciiOf(guard: string): string {
  return `\\u${guard.charCodeAt(0).toString(16)}`
}

function* textsOf(value: unknown): Generator<string> {
  if (typeof value === 'string') yield value
  if (typeof value !== 'object' || value === null) return
  for (const [key, one] of Object.entries(value)) {
    yield key
    yield* textsOf(one)
  }
}
