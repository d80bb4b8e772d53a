import type { BlockType } from '#shared/search/search.ts'
import { decodeEntities, type TextBuilder } from './builder.ts'

/**
 * Matches the line of dashes below the header row of a table, such as `|---|:-:|`. Adjacent parts of the pattern match different characters, so that
 * matching takes linear time.
 */
const TABLE_RULE = /^\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?$/
const CELLS_MAX = 1_000
const FENCE = /^\s{0,3}(`{3,}|~{3,})/
const HEADING = /^\s{0,3}#{1,6}\s+(\S.*)?$/
/**
 * Matches the number signs that close a heading, as in `## Title ##`. The lookbehind ensures that a run of them is tried only once, so that matching
 * takes linear time.
 */
const HEADING_END = /(?<!#)#+$/
const UNDERLINE = /^\s{0,3}(=+|-+)\s*$/
/** Markup of reStructuredText: the underline of a title, directives such as `.. note::`, and roles. */
const RST_UNDERLINE = /^([~^"'*+#:._`])\1{2,}\s*$/
const RST_DIRECTIVE = /^\s*\.\. (?:[\w-]+::\s*|_[^:]{1,100}:\s*)/
const RST_ROLE = /:[a-z][\w:+.-]{0,30}:`([^`\n]{1,200})`/g
const ITEM = /^\s*(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?(.*)$/
const QUOTE = /^\s{0,3}>\s?/

const FOOTNOTE = /\s?\[\^[\w-]{1,40}\](?!:)/g
/** A link whose text is only a number: `[2](url)`, `[[2]](url)`, `[\[2\]](url)`. */
const NUMBER_LINK = String.raw`\[(?:\\?\[)?\d{1,3}(?:\\?\])?\]\((?=([^)\s]{0,500}))\$[^)]{0,100}\)`
const MARKS = new RegExp(
  String.raw`([^\s[\]]{1,20}\s?)${NUMBER_LINK.replace('$', '2')}(?:[,;]?\s?${NUMBER_LINK.replace('$', '3')}){0,9}`,
  'g',
)
/** Words before a number that belongs to the sentence, as in `section 2` or `issue #3`. A number after such a word is not a footnote mark. */
const NUMBERED =
  /(?:^|[^\p{L}])(?:chapter|section|part|step|fig|figure|table|version|page|no|number|issue|item|appendix|note|rfc|level|phase|day|week|volume|lesson|unit|article|rule|question|example|line|in|see|by|from|of|to|with|and|or|is|are|was|were|than|at|for|on|the)s?\.?\s?$|[#§=]\s?$/iu

/**
 * Reads Markdown as blocks of plain text, without markup, links and pictures. The most frequent markup of reStructuredText is removed too. All other
 * markup stays in the text. The parser works line by line, so it takes linear time.
 */
export function readMarkdown(source: string, builder: TextBuilder): void {
  new MarkdownReader(builder).read(withoutComments(source))
}

class MarkdownReader {
  readonly #builder: TextBuilder
  #open: { type: BlockType; lines: string[] } | undefined
  #fence: string | undefined
  /** Whether the open code block is in a block quote. Each of its lines then begins with `>`, and the first other line ends it. */
  #isQuoted = false

  constructor(builder: TextBuilder) {
    this.#builder = builder
  }

  read(source: string): void {
    const lines = source.split(/\r\n?|\n/)
    const start = frontMatterEnd(lines)
    for (let at = start; at < lines.length && !this.#builder.isFull; at++)
      this.#line(lines[at] ?? '', lines[at + 1] ?? '')
    this.#flush()
  }

  #line(raw: string, next: string): void {
    if (this.#fence !== undefined) {
      if (!this.#isQuoted) return this.#code(raw)
      if (QUOTE.test(raw)) return this.#code(raw.replace(QUOTE, ''))
      this.#fence = undefined
      this.#flush()
    }
    const line = raw.replace(QUOTE, '').replace(RST_DIRECTIVE, '')
    if (this.#rstHeading(line)) return
    const fence = FENCE.exec(line)?.[1]
    if (fence !== undefined) {
      this.#flush()
      this.#fence = fence
      this.#isQuoted = QUOTE.test(raw)
      return
    }
    const trimmed = line.trim()
    if (trimmed === '') return this.#flush()
    if (trimmed.includes('|') && (isTableRule(trimmed) || isTableRule(next))) return this.#tableHead(trimmed)
    if (/^\|.*\|$/.test(trimmed)) return this.#whole('row', cells(trimmed))
    if (this.#heading(line)) return
    const item = ITEM.exec(line)
    if (item) {
      this.#flush()
      this.#open = { type: 'item', lines: [item[1] ?? ''] }
      return
    }
    this.#open ??= { type: 'text', lines: [] }
    this.#open.lines.push(trimmed)
  }

  #code(line: string): void {
    if (line.trim().startsWith(this.#fence ?? '')) {
      this.#fence = undefined
      return this.#flush()
    }
    this.#open ??= { type: 'code', lines: [] }
    this.#open.lines.push(line)
  }

  #heading(line: string): boolean {
    const heading = HEADING.exec(line)
    if (heading) {
      this.#whole('heading', plain((heading[1] ?? '').trimEnd().replace(HEADING_END, '')))
      return true
    }
    if (!UNDERLINE.test(line)) return false
    // A line of dashes below a line of text makes that text a heading. After other lines, the dashes are a horizontal rule.
    const above = this.#open?.type === 'text' ? this.#open.lines : undefined
    this.#open = undefined
    if (above) this.#whole('heading', plain(above.join(' ')))
    return true
  }

  /**
   * Handles a heading of reStructuredText: a line of text, then an underline. Called before the checks for Markdown, because the underline could
   * otherwise be read as a code fence or a horizontal rule.
   */
  #rstHeading(line: string): boolean {
    const lines = this.#open?.type === 'text' ? this.#open.lines : []
    const title = lines[0]
    if (title === undefined || lines.length > 1 || !RST_UNDERLINE.test(line)) return false
    if (line.trim().length < title.length) return false
    this.#open = undefined
    this.#whole('heading', plain(title))
    return true
  }

  #tableHead(line: string): void {
    this.#flush()
    if (!isTableRule(line)) this.#builder.add('head', cells(line))
  }

  #whole(type: BlockType, text: string): void {
    this.#flush()
    this.#builder.add(type, text)
  }

  #flush(): void {
    const open = this.#open
    this.#open = undefined
    if (!open) return
    this.#builder.add(open.type, open.type === 'code' ? open.lines.join('\n') : plain(open.lines.join(' ')))
  }
}

/** Removes HTML comments. A comment without an end stays as text. */
function withoutComments(source: string): string {
  const kept: string[] = []
  let at = 0
  for (;;) {
    const start = source.indexOf('<!--', at)
    const end = start < 0 ? -1 : source.indexOf('-->', start)
    if (end < 0) return [...kept, source.slice(at)].join(' ')
    kept.push(source.slice(at, start))
    at = end + 3
  }
}

function frontMatterEnd(lines: readonly string[]): number {
  if (lines[0]?.trim() !== '---') return 0
  const end = lines.slice(1, 100).findIndex((line) => line.trim() === '---')
  return end < 0 ? 0 : end + 2
}

function isTableRule(line: string): boolean {
  return TABLE_RULE.test(line.trim())
}

function cells(line: string): string {
  const bare = line.replace(/^\|/, '').replace(/\|$/, '')
  return bare
    .split(/(?<!\\)\|/, CELLS_MAX)
    .map((cell) => plain(cell.replaceAll('\\|', '|')).trim())
    .filter((cell) => cell !== '')
    .join(' | ')
}

/**
 * Match the start of a link or an image up to its address. The text part excludes brackets, so that the regular expression does not
 * backtrack inside the text.
 */
const IMAGE = /!\[([^[\]\n]{0,300})\]\(/g
const LINK = /\[([^[\]\n]{1,300})\]\(/g
const TARGET_CHARS_MAX = 2_300

/** Replaces links by their texts. Each closing bracket is searched only once, so even a line with many links takes linear time. */
function inlineText(line: string, start: RegExp): string {
  const kept: string[] = []
  let [at, close] = [0, -1]
  for (const { 0: whole, 1: text = '', index } of line.matchAll(start)) {
    const target = index + whole.length
    if (index < at) continue
    if (close < target) close = line.indexOf(')', target)
    if (close < 0) break
    if (close - target > TARGET_CHARS_MAX) continue
    kept.push(line.slice(at, index), text)
    at = close + 1
  }
  return at === 0 ? line : kept.join('') + line.slice(at)
}

/**
 * Removes the markup of a line. Each pattern is bounded, so that no line takes long. Link addresses are matched in a lookahead, because the
 * regular-expression engine does not backtrack into a lookahead.
 */
function plain(line: string): string {
  const unmarked = line
    .replace(RST_ROLE, '$1')
    .replace(FOOTNOTE, '')
    .replace(MARKS, (whole, before: string) => (NUMBERED.test(before) ? whole : before.trimEnd()))
  const withoutLinks = inlineText(inlineText(unmarked, IMAGE), LINK)
    .replace(/\[([^[\]\n]{1,300})\]\[[^[\]\n]{0,300}\]/g, '$1')
    .replace(/<(https?:\/\/[^<>\s]{1,2000})>/g, '$1')
    .replace(/<\/?[a-zA-Z][^<>]{0,300}>/g, '')
  const withoutMarks = withoutLinks
    .replace(/`+/g, '')
    .replace(/(\*{1,3}|~~)(?=\S)([^*~\n]{1,300}?\S?)\1/g, '$2')
    .replace(/(?<![\w])_{1,3}(?=\S)([^_\n]{1,300}?)_{1,3}(?![\w])/g, '$1')
    .replace(/\\([\\`*_{}[\]()#+\-.!|<>~])/g, '$1')
  return decodeEntities(withoutMarks)
}
