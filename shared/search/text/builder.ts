import type { Block, BlockType } from '#shared/search/search.ts'

export interface ReadText {
  readonly text: string
  readonly blocks: readonly Block[]
}

export interface ReadDocument extends ReadText {
  /** The title in the metadata of the document. If it is missing, then the first heading. If there is none, then an empty string. */
  readonly title: string
}

const NAMED: Readonly<Record<string, string>> = {
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  apos: "'",
  nbsp: ' ',
  ndash: '–',
  mdash: '—',
  hellip: '…',
}

/**
 * Matches invisible characters that change the display of other characters: control characters, and marks for the text
 * direction.
 */
// biome-ignore lint/suspicious/noControlCharactersInRegex: the pattern removes control characters.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g
/**
 * Matches zero-width joiners outside of words and emoji, where they are invisible. Between letters (Persian, Sinhala) or emoji, a joiner belongs to
 * the spelling and stays.
 */
const HIDDEN_JOINER =
  /(?<![\p{L}\p{M}\p{Extended_Pictographic}\p{Emoji_Modifier}])(?:\u200c|\u200d)|(?:\u200c|\u200d)(?![\p{L}\p{Extended_Pictographic}])/gu

/**
 * Matches text in plain ASCII, which {@link seenOf} does not change. Most texts match, and one match takes a quarter of the time of the replacements.
 */
const ASCII = /^[\t\n\r -~]*$/
/** Maximum raw characters of a block that are read per character of the result, because white space is collapsed afterwards. */
const RAW_CHARS_PER_CHAR = 2

export class TextBuilder {
  readonly #parts: string[] = []
  readonly #blocks: Block[] = []
  readonly #charsMax: number
  #length = 0
  #title = ''

  constructor(charsMax: number) {
    this.#charsMax = charsMax
  }

  get isFull(): boolean {
    return this.#length >= this.#charsMax
  }

  add(type: BlockType, raw: string): void {
    if (this.isFull) return
    const charsMax = this.#charsMax - this.#length
    const text = tidy(type, raw.slice(0, charsMax * RAW_CHARS_PER_CHAR)).slice(0, charsMax)
    if (!/[\p{L}\p{N}]/u.test(text)) return
    if (this.#parts.length > 0) this.#push('\n\n')
    const start = this.#length
    this.#push(text)
    this.#blocks.push({ type, start, end: this.#length })
    if (type === 'heading' && this.#title === '') this.#title = text
  }

  build(): ReadDocument {
    return { title: this.#title, text: this.#parts.join(''), blocks: this.#blocks }
  }

  #push(text: string): void {
    this.#parts.push(text)
    this.#length += text.length
  }
}

function tidy(type: BlockType, raw: string): string {
  if (type === 'row' || type === 'head') return raw.split('\t').map(lineOf).join('\t').trim()
  return type === 'code' ? seenOf(raw).trimEnd() : lineOf(raw)
}

export function lineOf(raw: string): string {
  return seenOf(raw.replace(/\s+/g, ' ')).trim()
}

function seenOf(raw: string): string {
  if (ASCII.test(raw)) return raw
  return raw.normalize('NFC').replace(UNSEEN, '').replace(HIDDEN_JOINER, '').toWellFormed()
}

export function decodeEntities(text: string): string {
  return text.replace(/&(#\d{1,7}|#[xX][\da-fA-F]{1,6}|[a-zA-Z]{2,8});/g, (whole, name: string) => {
    if (!name.startsWith('#')) return NAMED[name] ?? whole
    const code = /^#[xX]/.test(name) ? Number.parseInt(name.slice(2), 16) : Number(name.slice(1))
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole
  })
}
