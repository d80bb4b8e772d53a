export interface TemplateMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string
  readonly reasoning?: string
  readonly calls?: readonly TemplateCall[]
  /** For the result of a tool: the id of its call, and the name of the tool. */
  readonly callId?: string
  readonly name?: string
}

interface TemplateCall {
  readonly id: string
  readonly name: string
  readonly arguments: string
}

export interface TemplateTool {
  readonly name: string
  readonly description: string
  readonly parameters: object
}

export interface Conversation {
  readonly messages: readonly TemplateMessage[]
  readonly tools: readonly TemplateTool[]
  readonly prefill: string
  /** Whether the model reasons before it answers. If undefined, then the template decides. */
  readonly thinks?: boolean | undefined
}

export interface ToolForms {
  readonly arguments: 'object' | 'text'
  readonly ids: 'any' | 'nine'
  /** Value of `content` that the template expects in an assistant message that has tool calls but no text. */
  readonly noContent: '' | null
  readonly before: readonly Piece[]
  readonly between: readonly Piece[]
}

/** The capabilities of a template, which are detected by rendering small conversations. */
export interface TemplateForms {
  readonly content: 'text' | 'parts'
  /**
   * Value of the template variable `tools` for a request without tools. The value must be a list for a template that always loops over the variable.
   */
  readonly noTools: readonly [] | null
  /** System turns that the template supports: none, one at the beginning, or any number at any place. */
  readonly system: 'none' | 'first' | 'any'
  /** Form of tool calls. Undefined if the template drops tools, calls or results, or if its calls are not a name followed by JSON arguments. */
  readonly tools: ToolForms | undefined
  /** Plain text that ends an assistant turn. Undefined if a control token ends the turn. */
  readonly endMark: string | undefined
}

export interface TemplateSource {
  readonly source: string
  readonly bosToken: string
  readonly eosToken: string
  readonly marks: readonly { text: string; token: number; lstrip?: boolean; rstrip?: boolean }[]
}

export type ThreadTask =
  | { readonly add: readonly TemplateMessage[] }
  | { readonly render: Omit<Conversation, 'messages'> }

/** Reply of the thread. `refusal` means that the template rejects the conversation. `problem` means that the template is unusable or failed. */
export type ThreadReply =
  | { readonly forms: TemplateForms }
  | PackedPieces
  | { readonly refusal: string }
  | { readonly problem: string }

/**
 * Pieces of a prompt as one string and one array, which are quick to transfer between threads. The string joins all text pieces. The array has one
 * entry, the token, for each piece that is already a token. For each text piece, the array has two entries: -1 and the end position of the piece in
 * the string.
 */
interface PackedPieces {
  readonly text: string
  readonly layout: Int32Array
}

export function packPieces(pieces: readonly Piece[]): PackedPieces {
  const layout: number[] = []
  let text = ''
  for (const piece of pieces) {
    if (typeof piece !== 'string') {
      layout.push(piece)
      continue
    }
    text += piece
    layout.push(-1, text.length)
  }
  return { text, layout: Int32Array.from(layout) }
}

export function* unpackPieces({ text, layout }: PackedPieces): Generator<undefined, Piece[]> {
  const pieces: Piece[] = []
  let from = 0
  for (let at = 0; at < layout.length; at++) {
    const token = layout[at] as number
    if (token >= 0) {
      pieces.push(token)
      continue
    }
    const end = layout[++at] as number
    pieces.push(text.slice(from, end))
    from = end
    if (pieces.length % 1_000 === 0) yield
  }
  return pieces
}

export interface Mark {
  readonly text: string
  readonly token: number
  /** Whether the token absorbs the whitespace before it (`lstrip`) and after it (`rstrip`). */
  readonly lstrip?: boolean
  readonly rstrip?: boolean
}

export type Piece = string | number

/** Code points that Unicode reserves for internal use. One that does not occur in the conversation becomes the escape character. */
const ESCAPES = Array.from({ length: 32 }, (_, i) => String.fromCharCode(0xfdd0 + i))

/**
 * The marks of a model in a rendered prompt. A mark is a text such as `<|im_end|>` that stands for one control token.
 *
 * A template is rendered to text, and its marks must become tokens. A mark that a user writes must stay text. Otherwise a caller could end a turn and
 * speak as the system.
 *
 * Each string of the caller is therefore escaped before rendering. An escape character is inserted before each character at which a mark begins.
 * Templates may trim, split and join the strings, and the escape characters move along. {@link Marks.split} then finds only the marks of the
 * template.
 *
 * A mark must also not arise at a border between two strings, such as a template's `[`, a caller's `INST` and a template's `]`. The beginning and the
 * end of a string are therefore escaped if they could be part of a mark.
 *
 * Rejected alternative: placeholders instead of the strings. A template that trims or splits strings would then render a different prompt.
 */
export class Marks {
  readonly #byText: ReadonlyMap<string, Mark>
  readonly #alternatives: string
  readonly #starts: RegExp | undefined
  readonly #lengthMax: number
  readonly #prefixes = new Set<string>()
  readonly #suffixes = new Set<string>()
  readonly #insides = new Set<string>()
  readonly #splitters = new Map<string, RegExp>()

  constructor(marks: readonly Mark[]) {
    const known = marks.filter(({ text }) => text !== '')
    this.#byText = new Map(known.map((mark) => [mark.text, mark]))
    // The texts are sorted in descending order, so that a longer mark precedes its prefixes and the expression matches
    // the longest mark.
    const texts = [...this.#byText.keys()].sort((a, b) => (a < b ? 1 : -1))
    this.#alternatives = texts.map((text) => RegExp.escape(text)).join('|')
    this.#starts = texts.length > 0 ? new RegExp(`(?=${this.#alternatives})`, 'g') : undefined
    this.#lengthMax = texts.reduce((most, { length }) => Math.max(most, length), 0)
    for (const text of texts) this.#addParts(text)
  }

  #addParts(text: string): void {
    for (let at = 1; at < text.length; at++) {
      this.#prefixes.add(text.slice(0, at))
      this.#suffixes.add(text.slice(at))
      for (let end = at + 1; end <= text.length; end++) this.#insides.add(text.slice(at, end))
    }
  }

  escapeFor(value: unknown): string | undefined {
    const texts = [...textsOf(value)]
    return ESCAPES.find((guard) => !texts.some((text) => text.includes(guard) || text.includes(asciiOf(guard))))
  }

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

  /**
   * Returns the expression that finds marks and escape characters. The escape character is also found as `\u` and four digits, because some templates
   * write JSON in ASCII.
   */
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
