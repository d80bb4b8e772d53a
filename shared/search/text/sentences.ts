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
/** Maximum lines of a code block that can be quoted, from its beginning. */
const CODE_LINES_MAX = 12

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
  const pieces = piecesOf(type, block)
  const sentences: Sentence[] = []
  let at = start
  for (const piece of pieces) {
    const own = trimmed(text, at, at + piece.length)
    at += piece.length
    if (own)
      sentences.push({ ...own, ...(type === 'code' && { isCode: true }), ...(type === 'row' && { isRow: true }) })
  }
  return sentences
}

function piecesOf(type: BlockType, block: string): string[] {
  if (type === 'code') return block.split(/(?<=\n)/, CODE_LINES_MAX)
  return type === 'row' ? piecesOfRow(block) : joined(block)
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
