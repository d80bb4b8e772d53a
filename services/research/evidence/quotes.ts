import type { Passage } from '#shared/search/text/passages.ts'
import { isForReaders, isQuotable } from '#shared/search/text/quotable.ts'
import { QUOTE_CHARS_MAX, type Sentence } from '#shared/search/text/sentences.ts'

const PRONOUN =
  /^(?:it|its|they|their|them|this|these|that|those|he|she|his|her|such|then|there|both|so|but|and|or|else|here)\b/i

/** What of a passage can be quoted: a sentence, with the one before where it cannot be understood without it. */
export interface Quotable {
  /** Of the sentence within its passage. */
  readonly at: number
  readonly start: number
  readonly end: number
  readonly text: string
  /** It begins with a word that stands for something said before, and what was said does not fit into the quote. */
  readonly leans: boolean
  /** It is code without the sentence that announces it. */
  readonly isCode: boolean
}

/** The quotes that can be made of a passage of a text, one a sentence or line of code at most, in their order. */
export function quotablesIn(text: string, { sentences }: Pick<Passage, 'sentences'>): Quotable[] {
  return sentences.flatMap((sentence, at) => {
    if (!isQuotable(sentence)) return []
    const before = sentences[at - 1]
    const leans = PRONOUN.test(sentence.text)
    const start = before && isJoined(text, before, sentence) ? before.start : sentence.start
    const isWhole = start < sentence.start
    return [
      {
        at,
        start,
        end: sentence.end,
        text: text.slice(start, sentence.end),
        leans: leans && !isWhole,
        isCode: sentence.isCode === true && !isWhole,
      },
    ]
  })
}

/**
 * Whether a sentence is quoted with the one before: code with what announces it, and what leans on the sentence before within a
 * paragraph. Between two paragraphs the page may hold what was not read.
 */
function isJoined(text: string, before: Sentence, sentence: Sentence): boolean {
  if (before.isCode || !isForReaders(before.text) || sentence.end - before.start > QUOTE_CHARS_MAX) return false
  if (sentence.isCode) return before.text.endsWith(':')
  return PRONOUN.test(sentence.text) && !text.slice(before.end, sentence.start).includes('\n')
}
