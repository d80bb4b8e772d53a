/*
 * Finds the context of each block: earlier blocks that a reader needs to understand it. For a table row, the context is the header and the caption.
 * For a definition, it is the term, and for a list item the sentence that introduces the list. For an FAQ answer, it is the question.
 *
 * A *label* is a term or question, and a *lead-in* is a sentence that introduces a list. Example:
 *
 *     shared_buffers (integer)                      label of the next two blocks
 *     Sets the amount of memory that is used …
 *     The default is typically 128 megabytes.
 *     The levels are:                               lead-in of the items
 *     - debug
 *
 * HTML and Markdown mark table headers, and HTML marks defined terms. In other documents, headers and terms are recognized by their form.
 */
import type { Block, Snapshot } from '#shared/search/search.ts'

export interface Span {
  readonly start: number
  readonly end: number
  readonly text: string
}

export interface BlockContext {
  readonly isLabel: boolean
  readonly spans: readonly Span[]
}

/** Maximum UTF-16 units of a label and of a lead-in. A label is a defined term or a question. A lead-in is a sentence that introduces a list. */
const LABEL_CHARS_MAX = 90
const LABEL_QUESTION_CHARS_MAX = 200
const LEAD_CHARS_MAX = 240
/** Maximum number of blocks that a label, such as a defined term, introduces. If another label follows earlier, then the first one ends there. */
const LABEL_BLOCKS_MAX = 5
const HEAD_ROWS = 6
const HEAD_CELL_CHARS_MAX = 40
/** Maximum consecutive labels that introduce the same block, such as several terms with one definition. */
const CHAINED_MAX = 4
/**
 * The first row of a table is its header if the cells of the other rows are on average this many times as long. A first row without numbers is also a
 * header if another row has a number.
 */
const HEAD_LENGTH_RATIO = 1.5

const SENTENCE_END = /[.!?:;,…。！？：；、،؟।]['"”’»)\]]?$/
const ASKS = /[?？؟]$/
const LEADS = /[:：]$/
/** Scripts that have no punctuation mark at the end of a sentence. */
const UNMARKED = /[\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u
const CAPTION = /^(?:table|tab\.|figure|listing|tabelle|tableau|tabla|tabella)\b/i
const NUMERIC = /^[\p{Sc}~<>≤≥±+-]{0,2}\s?\p{N}[\p{N}.,:/%\s-]*\p{L}{0,4}\.?$/u
const YEAR = /^(?:1[5-9]|20)\d\d$/
/** Matches a line with a property and its value, such as `Default: 0` or `Type: boolean`. */
export const STATED_VALUE = /^\p{Lu}\p{L}*(?: \p{L}+){0,3}:\s+\S.{0,80}$/u
/** Titles of boxes such as notes and warnings, which do not begin a section. */
const BOX_TITLE = /^(?:note|notes|tip|hint|warning|caution|important|attention|example|notice|info|see also)[.:!]?$/i

export function isBoxTitle(heading: string): boolean {
  return BOX_TITLE.test(heading.trim())
}

export function contextsOf({ text, blocks }: Pick<Snapshot, 'text' | 'blocks'>): BlockContext[] {
  const labels = labelsOf(text, blocks)
  const contexts: BlockContext[] = []
  let scope: Scope = NO_SCOPE
  for (const [at, block] of blocks.entries()) {
    const own = spanOf(text, block)
    if (block.type === 'heading') {
      if (!isBoxTitle(own.text)) scope = NO_SCOPE
      contexts.push({ isLabel: false, spans: [] })
      continue
    }
    if (labels[at]) {
      scope = { ...NO_SCOPE, label: own, left: labels[at] }
      contexts.push({ isLabel: true, spans: [] })
      continue
    }
    scope = entered(scope, at, text, blocks)
    const isHead = scope.head !== undefined && scope.head.start === block.start
    contexts.push({
      isLabel: isHead,
      spans: isHead ? [] : spansIn(applying(scope, block, blocks[at - 1]), block.type === 'row'),
    })
    scope = left(scope, own, block)
  }
  return contexts
}

interface Scope {
  readonly label: Span | undefined
  readonly left: number
  /** Lead-in: the sentence with a colon before a block. If a list, code or table follows, then the lead-in applies to each of its blocks. */
  readonly lead: Span | undefined
  /** Title of a table, such as `Table 2: Limits`. Applies only to the rows of the table. */
  readonly caption: Span | undefined
  readonly head: Span | undefined
  readonly isInTable: boolean
}

const NO_SCOPE: Scope = {
  label: undefined,
  left: 0,
  lead: undefined,
  caption: undefined,
  head: undefined,
  isInTable: false,
}

/**
 * Returns the scope with the labels and the lead-in that apply at a block. If a table begins at the block, then the scope also has the table's
 * header.
 */
function entered(scope: Scope, at: number, text: string, blocks: readonly Block[]): Scope {
  const block = blocks[at]
  if (block?.type !== 'row' && block?.type !== 'head') return { ...scope, head: undefined, isInTable: false }
  if (block.type === 'head') return { ...scope, head: spanOf(text, block), isInTable: true }
  if (scope.isInTable) return scope
  const rows: string[] = []
  for (let row = at; rows.length < HEAD_ROWS && blocks[row]?.type === 'row'; row++)
    rows.push(text.slice(blocks[row]?.start, blocks[row]?.end))
  return { ...scope, head: isHeader(rows) ? spanOf(text, block) : undefined, isInTable: true }
}

/** Removes the lead-in at a paragraph after a list or a table, because the lead-in introduced only that list or table. */
function applying(scope: Scope, { type }: Block, before: Block | undefined): Scope {
  return type === 'text' && before?.type !== 'text' ? { ...scope, lead: undefined } : scope
}

function left(scope: Scope, own: Span, { type }: Block): Scope {
  if (type !== 'text') return scope
  const isUsed = scope.left <= 1
  const lead = LEADS.test(own.text) ? lastSentence(own) : undefined
  const isCaption = own.text.length <= LABEL_QUESTION_CHARS_MAX && CAPTION.test(own.text)
  return {
    ...scope,
    lead,
    caption: isCaption ? own : undefined,
    label: isUsed ? undefined : scope.label,
    left: isUsed ? 0 : scope.left - 1,
  }
}

function spansIn({ label, lead, caption, head }: Scope, isRow: boolean): Span[] {
  const spans = isRow ? [label, lead, caption, head] : [label, lead]
  return spans.filter((span) => span !== undefined)
}

function labelsOf(text: string, blocks: readonly Block[]): number[] {
  const reach = blocks.map(() => 0)
  let next: number | undefined
  let chain = 0
  for (let at = blocks.length - 1; at >= 0; at--) {
    const block = blocks[at]
    if (block?.type === 'heading') next = undefined
    const isChained = chain > 0 && chain < CHAINED_MAX
    chain = block && isLabelAt(at, text, blocks, isChained) ? chain + 1 : 0
    if (chain === 0) continue
    // The end of a list of definitions cannot be detected, so the last label of such a list introduces only one block.
    reach[at] = next === undefined ? 1 : Math.min(LABEL_BLOCKS_MAX, next - at)
    next = at
  }
  return reach
}

/**
 * Whether a block is a label, such as a defined term.
 *
 * @param isChained Whether the next block is a label too, because a definition may have several terms.
 */
function isLabelAt(at: number, text: string, blocks: readonly Block[], isChained: boolean): boolean {
  const [block, after] = [blocks[at], blocks[at + 1]]
  if (!block || !after || after.type === 'heading') return false
  if (block.type === 'term') return true
  if (block.type !== 'text') return false
  const length = block.end - block.start
  if (length > LABEL_QUESTION_CHARS_MAX) return false
  const own = text.slice(block.start, block.end)
  if (ASKS.test(own)) return after.end - after.start > length / 2
  if (length > LABEL_CHARS_MAX || SENTENCE_END.test(own) || UNMARKED.test(own) || CAPTION.test(own)) return false
  if (STATED_VALUE.test(own)) return false
  return after.type !== 'text' || after.end - after.start > length || isChained
}

function isHeader(rows: readonly string[]): boolean {
  const [first = [], ...others] = rows.map((row) => row.split(/\t| \| /).map((cell) => cell.trim()))
  if (others.length === 0 || first.length < 2) return false
  if (first.some((cell) => cell.length > HEAD_CELL_CHARS_MAX || /[.!?;]$/.test(cell))) return false
  if (first.some((cell) => NUMERIC.test(cell) && !YEAR.test(cell))) return false
  if (others.some((cells) => cells.some((cell) => NUMERIC.test(cell)))) return true
  if (first.length < 3) return false
  const mean = (cells: readonly string[]) => cells.join('').length / Math.max(1, cells.length)
  const below = others.reduce((sum, cells) => sum + mean(cells), 0) / others.length
  return below >= HEAD_LENGTH_RATIO * mean(first)
}

/** Returns the last sentence of a block, which introduces the next block (its lead-in). Undefined if the sentence is too long. */
function lastSentence({ start, end, text }: Span): Span | undefined {
  const from =
    text.length <= LEAD_CHARS_MAX ? 0 : Math.max(...['. ', '? ', '! '].map((mark) => text.lastIndexOf(mark))) + 2
  if (text.length - from > LEAD_CHARS_MAX || from === 1) return undefined
  return { start: start + from, end, text: text.slice(from) }
}

function spanOf(text: string, { start, end }: Block): Span {
  return { start, end, text: text.slice(start, end) }
}
