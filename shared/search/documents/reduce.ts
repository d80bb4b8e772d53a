import { Parser } from 'htmlparser2'

/*
 * Reduces a page before a DOM is built from it. The time for building a DOM grows with the product of elements, depth and attributes, so a hostile
 * page of 30 KB could take a minute.
 *
 * A streaming parser therefore reads the page first, in linear time. The parser writes only the elements that matter for the text, up to a maximum
 * depth and number of elements.
 */

export const ELEMENTS_MAX = 8_000
/** Maximum depth of elements. Text in deeper elements stays, without the tags around it. */
export const DEPTH_MAX = 100
const ATTRIBUTE_CHARS_MAX = 200
/** Maximum open elements. For each further element, the streaming parser moves all open ones, so the page is truncated at this maximum. */
const OPEN_MAX = 4_000
/** Maximum number of the characters `&`, `<` and `>` in the text. The DOM parser creates a node for each of them, which costs time. */
const MARKS_MAX = 8_000
const CHUNK_CHARS = 64 * 1024

const DROPPED = new Set([
  'script',
  'style',
  'noscript',
  'template',
  'svg',
  'math',
  'iframe',
  'object',
  'canvas',
  'select',
])
const UNWRAPPED = new Set(
  'abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark q s samp small span strike strong time tt u var wbr'.split(
    ' ',
  ),
)
const VOID = new Set(['br', 'hr'])
const KEPT_ATTRIBUTES = ['id', 'class', 'role', 'href'] as const

const MARK = /[&<>]/g

export interface ReducedPage {
  readonly html: string
  readonly elements: number
  readonly depth: number
}

export function reducePage(html: string): ReducedPage {
  const reducer = new Reducer()
  const parser = new Parser(reducer, { decodeEntities: true, lowerCaseTags: true })
  for (let at = 0; at < html.length && !reducer.isFull; at += CHUNK_CHARS)
    parser.write(html.slice(at, at + CHUNK_CHARS))
  if (!reducer.isFull) parser.end()
  return reducer.page()
}

class Reducer {
  readonly #parts: string[] = []
  /** One entry per open element: its name, or an empty string if its tag was not written. */
  readonly #open: string[] = []
  #depth = 0
  #deepest = 0
  #elements = 0
  #marks = 0
  /** Number of open elements when a dropped element, such as a script, began. Undefined outside of dropped elements. */
  #droppedAt: number | undefined

  get isFull(): boolean {
    return this.#elements >= ELEMENTS_MAX || this.#open.length >= OPEN_MAX
  }

  onopentag(name: string, attributes: Record<string, string>): void {
    if (this.#droppedAt === undefined && DROPPED.has(name)) this.#droppedAt = this.#open.length
    const isWritten = this.#droppedAt === undefined && !this.isFull && !UNWRAPPED.has(name) && this.#depth < DEPTH_MAX
    this.#open.push(isWritten && !VOID.has(name) ? name : '')
    if (!isWritten) return
    this.#elements++
    this.#parts.push(`<${name}${attributesOf(attributes)}>`)
    if (VOID.has(name)) return
    this.#deepest = Math.max(this.#deepest, ++this.#depth)
  }

  ontext(text: string): void {
    if (this.#droppedAt !== undefined || this.isFull) return
    this.#parts.push(this.#marks < MARKS_MAX ? escaped(text) : text.replace(MARK, ''))
    this.#marks += text.match(MARK)?.length ?? 0
  }

  onclosetag(): void {
    const name = this.#open.pop()
    if (this.#droppedAt === this.#open.length) this.#droppedAt = undefined
    if (!name) return
    this.#depth--
    this.#parts.push(`</${name}>`)
  }

  page(): ReducedPage {
    const ends = this.#open.toReversed().map((name) => (name ? `</${name}>` : ''))
    return { html: this.#parts.join('') + ends.join(''), elements: this.#elements, depth: this.#deepest }
  }
}

function attributesOf(attributes: Record<string, string>): string {
  return KEPT_ATTRIBUTES.map((name) => {
    const value = attributes[name]
    return value === undefined
      ? ''
      : ` ${name}="${escaped(value.slice(0, ATTRIBUTE_CHARS_MAX)).replaceAll('"', '&quot;')}"`
  }).join('')
}

function escaped(text: string): string {
  return text.replace(MARK, (mark) => (mark === '&' ? '&amp;' : mark === '<' ? '&lt;' : '&gt;'))
}
