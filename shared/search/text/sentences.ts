import type { Block, BlockType, Snapshot } from '#shared/search/search.ts'
import type { Span } from './contexts.ts'

/** A sentence of a source that a report can quote. `text` is equal to `text.slice(start, end)` of the source's snapshot. */
export interface Sentence extends Span {
  readonly isCode?: boolean
  readonly isRow?: boolean
  /** True for a defined term or a table header, which is never quoted alone. */
  readonly isLabel?: boolean
  /** Earlier texts that a reader needs to understand the sentence, such as the header of its table or the term that it defines (`contexts.ts`). */
  readonly contexts?: readonly Span[]
}

/** Maximum UTF-16 units of a quote. Longer texts are tables, code or noise. */
export const QUOTE_CHARS_MAX = 480
const SENTENCES_MAX = 400
/** Maximum lines of a code block that can be quoted as code, from its beginning. Prose in the block has its own limit, {@link SENTENCES_MAX}. */
const CODE_LINES_MAX = 12
/** A preformatted line counts as prose if at least this number and this share of its pieces are words. */
const PROSE_WORDS_MIN = 4
const PROSE_SHARE_MIN = 0.6
/** Maximum lines of a preformatted block that are read. */
const PREFORMATTED_LINES_MAX = 2_000
/** A line such as `maxconn <number>` counts as a term that the prose below explains, if it has at most this many UTF-16 units. */
const TERM_CHARS_MAX = 80

const segmenter = new Intl.Segmenter('en', { granularity: 'sentence' })
const ABBREVIATION =
  /(?:^|[\s(“"'])(?:e\.g|i\.e|cf|vs|approx|incl|vol|pp?|fig|eds|al|dr|mr|mrs|ms|prof|jr|sr|inc|ltd|corp|dept|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|u\.s|u\.k|z\.\s?b|d\.\s?h|bzw|usw|ca|nr|str|sra?|mme|(?:am|vom|zum|bis|ab|den|der|dem|des) \d{1,2})\.\s*$/i
const UNMARKED = /[\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}]/u
const PHRASE_END =
  /(?<=[\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}] )(?=[\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}])/u
/** Minimum UTF-16 units of a phrase in Thai, Lao or Khmer that counts as a sentence. These scripts do not mark the ends of sentences. */
const PHRASE_CHARS_MIN = 40
const INITIAL = /(?:^|[\s(“"'])\p{Lu}\.\s*$/u

/** Returns the sentences of a block. An item without full stops is one sentence, and so is a row of at most {@link QUOTE_CHARS_MAX}. */
export function sentencesOf({ text }: Pick<Snapshot, 'text'>, { type, start, end }: Block): Sentence[] {
  if (type === 'heading') return []
  const block = text.slice(start, end)
  const sentences: Sentence[] = []
  let at = start
  let codeLines = 0
  for (const { text: piece, isCode } of piecesOf(type, block)) {
    const own = trimmed(text, at, at + piece.length)
    at += piece.length
    if (isCode && ++codeLines > CODE_LINES_MAX) continue
    if (own) sentences.push({ ...own, ...(isCode && { isCode: true }), ...(type === 'row' && { isRow: true }) })
  }
  return sentences
}

interface Piece {
  readonly text: string
  readonly isCode: boolean
}

function piecesOf(type: BlockType, block: string): Piece[] {
  if (type === 'code') return piecesOfCode(block)
  return (type === 'row' ? piecesOfRow(block) : joined(block)).map(prose)
}

function prose(text: string): Piece {
  return { text, isCode: false }
}

/**
 * Divides a preformatted block. Manuals and the output of `--help` are preformatted too, so consecutive lines of words are joined to a paragraph
 * and divided into sentences. Each other line is code, except a term above the prose that explains it.
 */
function piecesOfCode(block: string): Piece[] {
  const lines = block.split(/(?<=\n)/, PREFORMATTED_LINES_MAX)
  const pieces: Piece[] = []
  let proseCount = 0
  for (let at = 0; at < lines.length && proseCount < SENTENCES_MAX; ) {
    const from = isTerm(lines[at], lines[at + 1]) ? at + 1 : at
    if (!isProse(lines[from])) {
      pieces.push({ text: lines[at++] ?? '', isCode: true })
      continue
    }
    let to = from + 1
    while (!COMMENT.test(lines[from] ?? '') && continues(lines[to])) to++
    const paragraph = paragraphOf(lines.slice(at, to).join(''))
    proseCount += paragraph.length
    pieces.push(...paragraph)
    at = to
  }
  return pieces
}

/** Divides a preformatted paragraph into sentences. The line breaks are hidden from the segmenter, because it would end a sentence there. */
function paragraphOf(text: string): Piece[] {
  const pieces: Piece[] = []
  let at = 0
  for (const { length } of joined(text.replaceAll('\n', ' '))) {
    pieces.push(prose(text.slice(at, at + length)))
    at += length
  }
  // The number of sentences per paragraph is limited. The rest of the paragraph must still be a piece, because the offsets of later pieces depend on
  // its length.
  return at < text.length ? [...pieces, { text: text.slice(at), isCode: true }] : pieces
}

/** Matches a word in ordinary spelling, with punctuation. A word in capitals, such as `SELECT`, does not match. */
const PLAIN_WORD = /^[(“"'‘]*\p{L}[\p{Ll}’'-]+[)”"'’.,;:!?]*$/u
const WORDS_ONLY = /^\s*[\p{L}\p{N}’'-]+[.,;:!?]?(?: [\p{L}\p{N}’'-]+[.,;:!?]?)*\s*$/u
/** Matches punctuation of JSON, and the backslash at the end of a shell line that the next line continues. */
const DATA = /[{}[\]]|":|\\$/
const COLUMNS = /\S(?: {2,}|\t)\S/
const COMMENT = /^\s*(?:#|\/\/)/
const MARKED = /^\s*(?:[-*•|#/+]|\d+[.)])/

function isProse(line: string | undefined): boolean {
  const pieces = line?.trim().split(/\s+/) ?? []
  const words = pieces.filter((piece) => PLAIN_WORD.test(piece)).length
  return words >= PROSE_WORDS_MIN && words >= PROSE_SHARE_MIN * pieces.length && !DATA.test(line ?? '')
}

/** Whether a line continues the paragraph above. A line with columns, or that begins with a mark such as `-`, begins another paragraph. */
function continues(line: string | undefined): boolean {
  return line !== undefined && (isProse(line) || WORDS_ONLY.test(line)) && !COLUMNS.test(line) && !MARKED.test(line)
}

function isTerm(line: string | undefined, next: string | undefined): boolean {
  if (line === undefined || !isProse(next) || isProse(line)) return false
  const own = line.trim()
  return own !== '' && own.length <= TERM_CHARS_MAX && !/[:;{}\\$]$/.test(own) && indentOf(line) < indentOf(next ?? '')
}

function indentOf(line: string): number {
  return line.search(/\S/)
}

function piecesOfRow(row: string): string[] {
  return row.length <= QUOTE_CHARS_MAX ? [row] : row.split(/(?<=\t)/).flatMap(joined)
}

/**
 * Joins parts of a sentence that `Intl.Segmenter` has split after an abbreviation such as `No.`. Only end offsets are stored, because joining strings
 * would copy a long sentence once per part.
 */
function joined(block: string): string[] {
  const ends: number[] = []
  for (const { segment, index } of segmenter.segment(block)) {
    const before = block.slice(Math.max(ends.at(-2) ?? 0, index - 12), index)
    const goesOn =
      ends.length > 0 && (ABBREVIATION.test(before) || INITIAL.test(before) || /^[\p{Ll}),;]/u.test(segment))
    if (goesOn) ends.pop()
    else if (ends.length >= SENTENCES_MAX) break
    ends.push(index + segment.length)
  }
  return ends.flatMap((end, at) => phrasesOf(block.slice(ends[at - 1] ?? 0, end)))
}

/** Splits a text of Thai, Lao or Khmer at spaces. In these scripts a space ends a sentence, but also surrounds numbers and names. */
function phrasesOf(piece: string): string[] {
  if (!UNMARKED.test(piece)) return [piece]
  const phrases: string[] = []
  let open = ''
  for (const part of piece.split(PHRASE_END)) {
    if (open.length >= PHRASE_CHARS_MIN) {
      phrases.push(open)
      open = ''
    }
    open += part
  }
  return open.trim().length < PHRASE_CHARS_MIN / 2 && phrases.length > 0
    ? [...phrases.slice(0, -1), phrases.at(-1) + open]
    : [...phrases, open]
}

function trimmed(text: string, from: number, to: number): Sentence | undefined {
  let start = from
  let end = to
  while (start < end && /\s/.test(text[start] ?? '')) start++
  while (end > start && /\s/.test(text[end - 1] ?? '')) end--
  if (end === start) return undefined
  return { start, end, text: text.slice(start, end) }
}
