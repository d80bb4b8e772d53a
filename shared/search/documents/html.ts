import { Readability } from '@mozilla/readability'
import { parseHTML } from 'linkedom'
import type { BlockType } from '#shared/search/search.ts'
import type { ReadDocument, TextBuilder } from '#shared/search/text/builder.ts'
import { DEPTH_MAX as PAGE_DEPTH_MAX, type ReducedPage, reducePage } from './reduce.ts'

const NODES_MAX = 60_000
/** Maximum depth of visited elements. `reduce.ts` limits the depth of a page, and the DOM parser may add up to 10 levels. */
const DEPTH_MAX = PAGE_DEPTH_MAX + 10
/**
 * Maximum product of elements and depth of a page for Readability. Readability visits the ancestors of each element several times, so larger pages
 * would take too long and are read without it.
 */
export const ARTICLE_WORK_MAX = 60_000

const BLOCKS: Readonly<Record<string, BlockType>> = {
  H1: 'heading',
  H2: 'heading',
  H3: 'heading',
  H4: 'heading',
  H5: 'heading',
  H6: 'heading',
  P: 'text',
  BLOCKQUOTE: 'text',
  DD: 'text',
  DT: 'term',
  FIGCAPTION: 'text',
  LI: 'item',
  TR: 'row',
  PRE: 'code',
}
const LEFT_OUT = new Set([
  'SCRIPT',
  'STYLE',
  'NOSCRIPT',
  'TEMPLATE',
  'SVG',
  'NAV',
  'FORM',
  'BUTTON',
  'IFRAME',
  'HEAD',
  'TITLE',
])
/** Elements that may contain other blocks. Each inner block then becomes a separate block of the text. */
const NESTING = new Set(['BLOCKQUOTE', 'DD', 'LI'])

const FRAME_TAGS = new Set(['HEADER', 'FOOTER'])
const FRAME_ROLES = new Set(['navigation', 'banner', 'contentinfo', 'search', 'complementary', 'menu', 'menubar'])
/**
 * Minimum fraction of the page's text that Readability's article must have. A smaller article lacks parts of the page, which often happens with
 * manuals.
 */
const ARTICLE_SHARE_MIN = 0.9
/** Maximum fraction of link text in a paragraph or item. An element with a larger fraction is treated as navigation and omitted. */
const LINK_SHARE_MAX = 0.8

const ELEMENT = 1
const TEXT = 3

interface DomNode {
  readonly nodeType: number
  readonly nodeName: string
  readonly textContent: string | null
  readonly childNodes: ArrayLike<DomNode>
  readonly parentNode?: DomNode | null
  getAttribute?(name: string): string | null
}

/**
 * Reads the visible text of a page. If Mozilla's Readability finds an article with at least {@link ARTICLE_SHARE_MIN} of the text, then the
 * article is returned. Otherwise the body is returned without headers, footers and navigation.
 */
export function readHtml(html: string, builder: TextBuilder): ReadDocument {
  const page = reducePage(html)
  const article = articleOf(page)
  const { document } = parsed(page.html)
  const ownTitle = document.title?.trim() ?? ''
  const body = document.body as unknown as DomNode
  const main = article?.content ? (parsed(article.content).document.body as unknown as DomNode) : undefined
  if (main && lettersOf(main) >= ARTICLE_SHARE_MIN * lettersOf(body)) walkHtml(main, builder)
  else walkHtml(body, builder, isPageFrame)
  const read = builder.build()
  return { ...read, title: (article?.title || ownTitle || read.title).trim() }
}

function lettersOf(body: DomNode): number {
  let letters = 0
  const count = { isFull: false, add: (_: BlockType, text: string) => (letters += text.replace(/\s+/g, '').length) }
  walkHtml(body, count, isPageFrame)
  return letters
}

function isPageFrame(node: DomNode, name: string): boolean {
  if (FRAME_TAGS.has(name)) return !isWithinArticle(node)
  if (FRAME_ROLES.has(node.getAttribute?.('role') ?? '')) return true
  const type = BLOCKS[name]
  return (type === 'item' || type === 'text') && linkShare(node) > LINK_SHARE_MAX
}

function isWithinArticle(node: DomNode): boolean {
  const name = node.parentNode?.nodeName.toUpperCase()
  return name === 'ARTICLE' || name === 'SECTION' || name === 'MAIN'
}

function linkShare(node: DomNode): number {
  let linked = 0
  const visit = (inner: DomNode, depth: number): void => {
    if (depth > DEPTH_MAX) return
    if (inner.nodeName.toUpperCase() === 'A') linked += (inner.textContent ?? '').trim().length
    else for (const child of Array.from(inner.childNodes)) visit(child, depth + 1)
  }
  visit(node, 0)
  return linked / Math.max(1, (node.textContent ?? '').trim().length)
}

export function bodyOf(html: string): DomNode {
  return parsed(reducePage(html).html).document.body as unknown as DomNode
}

/** Wraps a page without an `html` element into a complete document, because the parser does not create a missing body. */
function parsed(html: string): { document: Document } {
  const isWhole = /<html[\s>]/i.test(html.slice(0, 64 * 1024))
  const whole = isWhole ? html : `<!doctype html><html><head></head><body>${html}</body></html>`
  const { document } = parseHTML(whole) as unknown as { document: Document }
  for (const raised of Array.from(document.querySelectorAll('sup'))) if (isMark(raised)) raised.remove()
  return { document }
}

/**
 * Whether a superscript is a footnote mark: a number or letter that links to another part of the page. Footnote marks are removed, because a reader
 * would take them for a part of the sentence.
 */
function isMark(raised: Raised): boolean {
  const text = (raised.textContent ?? '').trim()
  return /^\[?(?:\d{1,3}|\p{L}|[*†‡])\]?$/u.test(text) && raised.querySelector('a[href*="#"]') !== null
}

interface Document {
  readonly title?: string
  readonly body: unknown
  querySelectorAll(selector: string): ArrayLike<Raised>
}

interface Raised {
  readonly textContent: string | null
  querySelector(selector: string): unknown
  remove(): void
}

/** Returns Readability's article. The page is parsed a second time, because Readability modifies its document. */
function articleOf({
  html,
  elements,
  depth,
}: ReducedPage): { title?: string | null; content?: string | null } | undefined {
  if (elements * depth > ARTICLE_WORK_MAX) return undefined
  try {
    const { document } = parsed(html)
    return new Readability(document as never, { charThreshold: 200 }).parse() ?? undefined
  } catch {
    return undefined
  }
}

/**
 * Adds the blocks of an element to the text, in page order. Text between two blocks becomes a block of its own.
 *
 * @param isLeftOut Returns true for elements to skip. Scripts and styles are always skipped.
 */
export function walkHtml(
  root: DomNode,
  builder: Pick<TextBuilder, 'add' | 'isFull'>,
  isLeftOut: (node: DomNode, name: string) => boolean = () => false,
): void {
  let loose = ''
  let seen = 0
  const flush = () => {
    if (loose.trim() !== '') builder.add('text', loose)
    loose = ''
  }
  const visit = (node: DomNode, depth: number): void => {
    if (depth > DEPTH_MAX || ++seen > NODES_MAX || builder.isFull) return
    if (node.nodeType === TEXT) {
      loose += node.textContent ?? ''
      return
    }
    const name = node.nodeName.toUpperCase()
    if (node.nodeType !== ELEMENT || LEFT_OUT.has(name) || isLeftOut(node, name)) return
    const type = BLOCKS[name]
    if (type !== undefined && !(NESTING.has(name) && hasBlocks(node))) {
      flush()
      return addBlock(node, type, builder)
    }
    const isApart = type !== undefined || /^(DIV|SECTION|ARTICLE|MAIN|UL|OL|DL|TABLE|BR|HR)$/.test(name)
    if (isApart) flush()
    for (const child of Array.from(node.childNodes)) visit(child, depth + 1)
    if (isApart) flush()
  }
  visit(root, 0)
  flush()
}

function hasBlocks(node: DomNode): boolean {
  return Array.from(node.childNodes).some(({ nodeName }) => /^(P|UL|OL|DIV|PRE|TABLE|BLOCKQUOTE|LI)$/i.test(nodeName))
}

function addBlock(node: DomNode, type: BlockType, builder: Pick<TextBuilder, 'add'>): void {
  if (type !== 'row') return builder.add(type, node.textContent ?? '')
  const cells = Array.from(node.childNodes).filter(({ nodeType }) => nodeType === ELEMENT)
  // A row with a single header cell is the title of the rows below, not the header row of the table.
  const isHead = cells.length > 1 && cells.every(({ nodeName }) => nodeName.toUpperCase() === 'TH')
  builder.add(isHead ? 'head' : 'row', rowText(cells))
}

function rowText(cells: readonly DomNode[]): string {
  return cells
    .map(({ textContent }) => (textContent ?? '').replace(/\s+/g, ' ').trim())
    .filter((cell) => cell !== '')
    .join('\t')
}
