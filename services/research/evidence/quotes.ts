import type { Passage } from '#shared/search/text/passages.ts'
import { isForReaders, isQuotable } from '#shared/search/text/quotable.ts'
import { QUOTE_CHARS_MAX, type Sentence } from '#shared/search/text/sentences.ts'

const PRONOUN =
  /^(?:it|its|they|their|them|this|these|that|those|he|she|his|her|such|then|there|both|so|but|and|or|else|here)\b/i
/** Matches phrases that refer to the previous sentence: `that Office`, `in these cases`, `the latter`. */
const REFERENCE =
  /\b(?:this|that|these|those|such)\s+\p{Lu}\p{L}+|^(?:\p{L}+\s+){0,3}(?:this|these|those|such)\s+\p{L}{3,}|\b(?:the latter|the former|the same|thereof|therein)\b/u

/** A quotable piece of a passage: one sentence, preceded by the previous sentence if it refers to that sentence. */
export interface Quotable {
  readonly at: number
  readonly start: number
  readonly end: number
  readonly text: string
  readonly hasReference: boolean
  /** True if the sentence refers to the previous sentence and the quote omits that sentence. */
  readonly lacksReferent: boolean
  /** True for a line of code that is quoted without the sentence that introduces it. */
  readonly isCode: boolean
}

export function quotablesIn(text: string, { sentences }: Pick<Passage, 'sentences'>): Quotable[] {
  return sentences.flatMap((sentence, at) => {
    if (!isQuotable(sentence)) return []
    const before = sentences[at - 1]
    const hasReference = refersBack(sentence)
    const start = before && isJoined(text, before, sentence) ? before.start : sentence.start
    const isWhole = start < sentence.start
    return [
      {
        at,
        start,
        end: sentence.end,
        text: text.slice(start, sentence.end),
        hasReference,
        lacksReferent: hasReference && !isWhole,
        isCode: (sentence.isCode === true || isCodeLike(sentence.text)) && !isWhole,
      },
    ]
  })
}

export function refersBack({ text, isCode, isRow }: Sentence): boolean {
  return !isCode && !isRow && (PRONOUN.test(text) || REFERENCE.test(text))
}

const STATEMENT =
  /^\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|GRANT|import|from|def|class|return|if|for|while|#include|var|let|const|function)\b.*[;(){}=:]/
const SYMBOL = /[{}()[\]=;<>|\\$#*+~^@]|::|->|--/g
const SYMBOL_SHARE_MAX = 0.1

export function isCodeLike(text: string): boolean {
  if (STATEMENT.test(text) && /[;{}]\s*$|\)\s*(?:VALUES|;|$)|^\s*(?:INSERT|CREATE|GRANT|ALTER)\b/.test(text))
    return true
  return (text.match(SYMBOL)?.length ?? 0) > SYMBOL_SHARE_MAX * text.length
}

/**
 * Whether a sentence is quoted together with the previous sentence. A line of code is joined with the sentence that introduces it. A sentence that
 * refers to the previous sentence is joined with it if both are in one paragraph, because text between paragraphs may be missing.
 */
function isJoined(text: string, before: Sentence, sentence: Sentence): boolean {
  if (before.isCode || before.isLabel || !isForReaders(before.text)) return false
  if (sentence.end - before.start > QUOTE_CHARS_MAX) return false
  if (sentence.isCode) return before.text.endsWith(':')
  return refersBack(sentence) && !text.slice(before.end, sentence.start).includes('\n')
}
