import type { Passage } from '#shared/search/text/passages.ts'
import { isForReaders, isQuotable } from '#shared/search/text/quotable.ts'
import { QUOTE_CHARS_MAX, type Sentence } from '#shared/search/text/sentences.ts'

const PRONOUN =
  /^(?:it|its|they|their|them|this|these|that|those|he|she|his|her|such|then|there|both|so|but|and|or|else|here)\b/i
/** `that Office`, `in these cases`, `the latter`: words that stand for something in the sentence before. */
const REFERENCE =
  /\b(?:this|that|these|those|such)\s+\p{Lu}\p{L}+|^(?:\p{L}+\s+){0,3}(?:this|these|those|such)\s+\p{L}{3,}|\b(?:the latter|the former|the same|thereof|therein)\b/u

/** A piece of a passage that can be quoted: a sentence, with the one before if it cannot be understood without that one. */
export interface Quotable {
  /** Index of the sentence within its passage. */
  readonly at: number
  readonly start: number
  readonly end: number
  readonly text: string
  /** The sentence refers to the one before. */
  readonly refers: boolean
  /** The sentence refers to the one before, which does not fit into the quote. */
  readonly leans: boolean
  /** A line of code without the sentence that announces it. */
  readonly isCode: boolean
}

/** The quotes that can be made of a passage of a text, one a sentence or line of code at most, in their order. */
export function quotablesIn(text: string, { sentences }: Pick<Passage, 'sentences'>): Quotable[] {
  return sentences.flatMap((sentence, at) => {
    if (!isQuotable(sentence)) return []
    const before = sentences[at - 1]
    const refers = refersBack(sentence)
    const start = before && isJoined(text, before, sentence) ? before.start : sentence.start
    const isWhole = start < sentence.start
    return [
      {
        at,
        start,
        end: sentence.end,
        text: text.slice(start, sentence.end),
        refers,
        leans: refers && !isWhole,
        isCode: (sentence.isCode === true || isCodeLike(sentence.text)) && !isWhole,
      },
    ]
  })
}

/** Whether a sentence cannot be understood without the one before. */
export function refersBack({ text, isCode, isRow }: Sentence): boolean {
  return !isCode && !isRow && (PRONOUN.test(text) || REFERENCE.test(text))
}

const STATEMENT =
  /^\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|GRANT|import|from|def|class|return|if|for|while|#include|var|let|const|function)\b.*[;(){}=:]/
const SYMBOL = /[{}()[\]=;<>|\\$#*+~^@]|::|->|--/g
const SYMBOL_SHARE_MAX = 0.1

/** Whether a line that is not marked as code reads like code: a statement of SQL, a signature, a line of a log. */
export function isCodeLike(text: string): boolean {
  if (STATEMENT.test(text) && /[;{}]\s*$|\)\s*(?:VALUES|;|$)|^\s*(?:INSERT|CREATE|GRANT|ALTER)\b/.test(text))
    return true
  return (text.match(SYMBOL)?.length ?? 0) > SYMBOL_SHARE_MAX * text.length
}

/**
 * Whether a sentence is quoted with the one before: code with its announcement, and a sentence that refers to the one before within a
 * paragraph. Text between two paragraphs may be missing.
 */
function isJoined(text: string, before: Sentence, sentence: Sentence): boolean {
  if (before.isCode || before.isLabel || !isForReaders(before.text)) return false
  if (sentence.end - before.start > QUOTE_CHARS_MAX) return false
  if (sentence.isCode) return before.text.endsWith(':')
  return refersBack(sentence) && !text.slice(before.end, sentence.start).includes('\n')
}
