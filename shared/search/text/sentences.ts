import type { Block, BlockType, Snapshot } from '#shared/search/search.ts'

/** A sentence that can be quoted: `text.slice(start, end)` of its snapshot, character for character. */
export interface Sentence {
  readonly start: number
  readonly end: number
  readonly text: string
  /** A line of code, which is quoted as it stands. */
  readonly isCode?: boolean
}

/** UTF-16 units of a quote; longer ones are no sentences but tables, code or noise. */
export const QUOTE_CHARS_MAX = 480
/** Sentences of one block that are told apart. */
const SENTENCES_MAX = 400
/** Lines of one block of code that can be quoted: what it shows stands at its beginning. */
const CODE_LINES_MAX = 12

const segmenter = new Intl.Segmenter('en', { granularity: 'sentence' })
/** Words after which a full stop ends no sentence. */
const ABBREVIATION =
  /(?:^|[\s(“"'])(?:e\.g|i\.e|cf|vs|approx|incl|vol|pp?|fig|eds|al|dr|mr|mrs|ms|prof|jr|sr|inc|ltd|corp|dept|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|u\.s|u\.k)\.\s*$/i
/** A letter with a full stop stands for a name. */
const INITIAL = /(?:^|[\s(“"'])\p{Lu}\.\s*$/u

/** Sentences of a block in order; a row of a table that is not too long for a quote and an item without full stops are one each. */
export function sentencesOf({ text }: Pick<Snapshot, 'text'>, { type, start, end }: Block): Sentence[] {
  if (type === 'heading') return []
  const block = text.slice(start, end)
  const pieces = piecesOf(type, block)
  const sentences: Sentence[] = []
  let at = start
  for (const piece of pieces) {
    const own = trimmed(text, at, at + piece.length)
    at += piece.length
    if (own) sentences.push(type === 'code' ? { ...own, isCode: true } : own)
  }
  return sentences
}

function piecesOf(type: BlockType, block: string): string[] {
  if (type === 'code') return block.split(/(?<=\n)/, CODE_LINES_MAX)
  return type === 'row' ? piecesOfRow(block) : joined(block)
}

/** A row that is too long for one quote is as many as its cells have sentences. */
function piecesOfRow(row: string): string[] {
  return row.length <= QUOTE_CHARS_MAX ? [row] : row.split(/(?<=\t)/).flatMap(joined)
}

/**
 * Pieces of the segmenter, those put together again that a full stop of an abbreviation has parted. What is looked at of a piece is
 * its end in the block: a piece of thousands of segments that was joined to be looked at would be copied for each of them.
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
  return ends.map((end, at) => block.slice(ends[at - 1] ?? 0, end))
}

function trimmed(text: string, from: number, to: number): Sentence | undefined {
  let start = from
  let end = to
  while (start < end && /\s/.test(text[start] ?? '')) start++
  while (end > start && /\s/.test(text[end - 1] ?? '')) end--
  if (end === start) return undefined
  return { start, end, text: text.slice(start, end) }
}
