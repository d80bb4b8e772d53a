import { Readability } from '@mozilla/readability'
import { parseHTML } from 'linkedom'
import type { BlockType } from '#shared/search/search.ts'
import type { ReadDocument, TextBuilder } from '#shared/search/text/builder.ts'

/** Elements that are looked at; a page with more is no text for people. */
const ELEMENTS_MAX = 60_000
/** Levels of a page that are followed. */
const DEPTH_MAX = 200

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
  DT: 'text',
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
/** Blocks that may hold others; these then stand by themselves. */
const NESTING = new Set(['BLOCKQUOTE', 'DD', 'LI'])

const ELEMENT = 1
const TEXT = 3

/** What is used of the parser's nodes. */
interface DomNode {
  readonly nodeType: number
  readonly nodeName: string
  readonly textContent: string | null
  readonly childNodes: ArrayLike<DomNode>
}

/** Reads a page as people see it: its article where it has one (Mozilla's Readability), else all of its body. */
export function readHtml(html: string, builder: TextBuilder): ReadDocument {
  const article = articleOf(html)
  const { document } = parsed(html)
  const ownTitle = document.title?.trim() ?? ''
  walkHtml(article?.content ? bodyOf(article.content) : (document.body as unknown as DomNode), builder)
  const read = builder.build()
  return { ...read, title: (article?.title || ownTitle || read.title).trim() }
}

/** The body of a page, or of a piece of one. */
export function bodyOf(html: string): DomNode {
  return parsed(html).document.body as unknown as DomNode
}

/** The parser makes no body of its own where the page writes none. */
function parsed(html: string): { document: Document } {
  const isWhole = /<html[\s>]/i.test(html.slice(0, 64 * 1024))
  return parseHTML(isWhole ? html : `<!doctype html><html><head></head><body>${html}</body></html>`) as unknown as {
    document: Document
  }
}

/** What is used of the parser's document. */
interface Document {
  readonly title?: string
  readonly body: unknown
}

/** It takes the document apart that it is given, so it is given its own. */
function articleOf(html: string): { title?: string | null; content?: string | null } | undefined {
  try {
    const { document } = parsed(html)
    return (
      new Readability(document as never, { maxElemsToParse: ELEMENTS_MAX, charThreshold: 200 }).parse() ?? undefined
    )
  } catch {
    return undefined
  }
}

/** Adds the blocks of an element in the order of the page; text between them belongs to none and is a block by itself. */
export function walkHtml(root: DomNode, builder: TextBuilder): void {
  let loose = ''
  let seen = 0
  const flush = () => {
    if (loose.trim() !== '') builder.add('text', loose)
    loose = ''
  }
  const visit = (node: DomNode, depth: number): void => {
    if (depth > DEPTH_MAX || ++seen > ELEMENTS_MAX || builder.isFull) return
    if (node.nodeType === TEXT) {
      loose += node.textContent ?? ''
      return
    }
    const name = node.nodeName.toUpperCase()
    if (node.nodeType !== ELEMENT || LEFT_OUT.has(name)) return
    const type = BLOCKS[name]
    if (type !== undefined && !(NESTING.has(name) && hasBlocks(node))) {
      flush()
      return builder.add(type, type === 'row' ? rowText(node) : (node.textContent ?? ''))
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

function rowText(row: DomNode): string {
  const cells = Array.from(row.childNodes).filter(({ nodeType }) => nodeType === ELEMENT)
  return cells
    .map(({ textContent }) => (textContent ?? '').trim())
    .filter((cell) => cell !== '')
    .join(' | ')
}
