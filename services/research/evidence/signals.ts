/*
 * Scores how well one sentence answers a question. Signals between 0 and 1 describe the sentence, and their weighted sum is its score.
 *
 * Each term of the question counts with its idf weight, multiplied by a credit for the position at which the term was found. The credit is 1 in the
 * sentence. The credit is lower in the sentence's label, table header or heading, or in the previous sentence to which the sentence refers. Example
 * for the question "What is the default of shared_buffers?":
 *
 *     shared_buffers (integer)
 *     The default is typically 128 megabytes.
 *
 * The second line is the answer, although it contains only one of the two terms. The label above it supplies the second term.
 *
 * The weights come from a softmax regression over 142 questions of three sets (`bench/quality`). The predicted event is that a sentence states a
 * requested fact. The weights are scaled so that the score is a log-odds.
 */
import { bm25, type CountedPassage, massOf } from '#services/research/question/passages.ts'
import type { Anchor, Weights } from '#services/research/question/question.ts'
import { STATED_VALUE } from '#shared/search/text/contexts.ts'
import type { QueryTerms } from '#shared/search/text/query-terms.ts'
import { synonymsOf } from '#shared/search/text/synonyms.ts'
import { subjectOf } from '#shared/search/text/terms.ts'
import { type AnswerForm, type AnswerType, fitOf, formFitOf } from './answer-type.ts'
import type { Quotable } from './quotes.ts'

export interface AnswerCriteria {
  readonly question: string
  readonly terms: readonly string[]
  readonly types: readonly AnswerType[]
  readonly form: AnswerForm | undefined
  readonly asked: QueryTerms
  readonly anchors: readonly Anchor[]
  readonly isEnglish: boolean
  /** Whether a sentence must contain an answer of a requested type, because the question asks for a date, a number or a person. */
  readonly isTypeRequired: boolean
}

/** Credit of a term of the question, by the position at which it was found. A term in the sentence itself has credit 1. */
const SYNONYM = 0.7
const CONTEXT = 0.9
const REFERENT = 0.8
const HEADING = 0.6
const TITLE = 0.35
const NEIGHBOUR = 0.3
const LABEL_CHARS_MAX = 120
/** Minimum {@link labelFit} with which a sentence counts as the definition, if a question asks for a definition. */
const DEFINED_LABEL_MIN = 0.35
/** Number of UTF-16 units at which the length signal reaches 1. */
const LENGTH_CHARS = 500
/** Number of neighbouring sentences on each side of a sentence that the signal `window` includes. */
const WINDOW = 3
/** Distance from the start of the document, in UTF-16 units, at which the position signal is 0.5. */
const POSITION_CHARS = 4_000
const EXAMPLE = /\b(?:for example|for instance|example|e\.g|suppose|imagine|in this case)\b/i
const DEFAULT = /\bdefault/i
const NUMBER = /^(?!(?:19|20)\d\d$)\d[\d.]*$/

const WEIGHTS = {
  /**
   * Share of the weight of the question's terms that occurs in the sentence and around it. The weight of
   * each term is multiplied by the credit of its position.
   */
  whole: 0.55,
  /**
   * Weights of the fit of the sentence to the requested type of answer, such as a date (see `fitOf`). `fitAbout` weighs the fit times the value of
   * `whole`. `fitRequired` weighs the fit alone, and only if the question requires the type.
   */
  fitAbout: 1.7,
  fitRequired: 0.68,
  /** BM25 score of the passage, as a share of the best score of all passages. */
  passage: 1.51,
  /** Share of the weight of the question's terms that occurs in the best passage of the source. */
  source: 0.52,
  /** 1 / (1 + r) for a source with the rank r. The source of the best passage has the rank 0. */
  sourceRank: 0.49,
  /** Share of the weight of the question's terms that occurs in the sentence and its neighbours (see {@link WINDOW}). */
  window: 0.83,
  /** 1 at the start of the document. The value decreases with the distance from the start (see {@link POSITION_CHARS}). */
  position: 0.59,
  length: -0.47,
  /** Share of the question's terms that occur neither in the sentence nor in the sentences next to it. */
  missing: -0.9,
  /**
   * Similarity of label or heading to the question, if the question asks for a definition or a default
   * value (see {@link labelFit}). 0 for other questions.
   */
  labelAsked: 1.29,
  /** 1 for a line that states a value, such as `Default: 0`, if the question asks for a value. */
  value: 0.95,
  /**
   * The signals `default` and `example` are 0 unless the question asks for a value. `default`: 1 for a sentence with the word `default`.
   * `example`: 1 for a sentence with words such as `for example`.
   */
  default: 0.94,
  example: -0.54,
  row: 0.45,
  /** Share of the numbers in the question that the sentence contains. Years do not count. */
  numbers: 0.82,
  /**
   * 1 for a sentence that refers to the previous sentence. A reader may not understand the sentence without the previous one. The weight is set by
   * hand.
   */
  lacksReferent: -0.5,
  /**
   * Share of the anchors that are neither in the sentence nor in its context. The weight is high and set by hand, because a
   * fact of 2024 does not answer a question about 2021.
   */
  unanchored: -2,
}
const BIAS = -5.6

export type Signals = Readonly<Record<keyof typeof WEIGHTS, number>>

export function scoreOf(signals: Signals): number {
  const names = Object.keys(WEIGHTS) as (keyof typeof WEIGHTS)[]
  return names.reduce((sum, name) => sum + WEIGHTS[name] * signals[name], BIAS)
}

export function likelihoodOf(score: number): number {
  return 1 / (1 + Math.exp(-score))
}

export interface PassageTerms {
  readonly own: readonly ReadonlySet<string>[]
  readonly contexts: readonly ReadonlySet<string>[]
  readonly heading: ReadonlySet<string>
  readonly title: ReadonlySet<string>
}

const NONE: ReadonlySet<string> = new Set()

export function passageTermsOf({ source, heading, sentences }: CountedPassage, asked: QueryTerms): PassageTerms {
  return {
    own: sentences.map(({ text }) => asked.termsIn(text)),
    contexts: sentences.map(({ contexts }) =>
      contexts ? asked.termsIn(contexts.map(({ text }) => text).join('\n')) : NONE,
    ),
    heading: asked.termsIn(heading),
    title: asked.termsIn(subjectOf(source)),
  }
}

/** Returns a function that gives the credit of a term (0 to 1) for one sentence. The credit depends on the nearest position of the term. */
export function creditIn(
  terms: PassageTerms,
  at: number,
  hasReference: boolean,
  isEnglish: boolean,
): (term: string) => number {
  const { own, contexts, heading, title } = terms
  const [before, after] = [own[at - 1] ?? NONE, own[at + 1] ?? NONE]
  return (term) => {
    if (own[at]?.has(term)) return 1
    if (contexts[at]?.has(term)) return CONTEXT
    if (hasReference && before.has(term)) return REFERENT
    if (isEnglish && hasSynonymOf(term, own[at] ?? NONE)) return SYNONYM
    if (heading.has(term)) return HEADING
    if (title.has(term)) return TITLE
    return before.has(term) || after.has(term) || (hasReference && contexts[at - 1]?.has(term)) ? NEIGHBOUR : 0
  }
}

function hasSynonymOf(term: string, own: ReadonlySet<string>): boolean {
  for (const other of synonymsOf(term)) if (own.has(other)) return true
  return false
}

export interface SentenceInPassage {
  readonly quotable: Quotable
  readonly passage: CountedPassage
  readonly terms: PassageTerms
  /** Signals of the passage and its source, equal for all sentences of the passage. */
  readonly place: Pick<Signals, 'passage' | 'source' | 'sourceRank'>
}

export function signalsOf(
  wanted: AnswerCriteria,
  weights: Weights,
  { quotable, passage, terms, place }: SentenceInPassage,
): Signals {
  const { at, text, hasReference, lacksReferent } = quotable
  const credit = creditIn(terms, at, hasReference, wanted.isEnglish)
  const whole = creditSum(wanted.terms, weights, credit)
  const isLabelAsked = wanted.types.includes('definition') || wanted.types.includes('default')
  const label = isLabelAsked ? labelFit(wanted, weights, passage, terms, at) : 0
  const isDefined = wanted.types.includes('definition') && label >= DEFINED_LABEL_MIN
  const typeFit = wanted.types.length === 0 ? 0.5 : isDefined ? 1 : fitOf(text, wanted.question, wanted.types)
  const fit = formFitOf(text, wanted.form, typeFit)
  const asksValue = isValueAsked(wanted)
  const around = terms.own.slice(Math.max(0, at - WINDOW), at + WINDOW + 1)
  const numbers = wanted.terms.filter((term) => NUMBER.test(term))
  return {
    ...place,
    whole,
    fitAbout: fit * whole,
    fitRequired: wanted.isTypeRequired ? fit : 0,
    window: massOf(wanted.terms, weights, (term) => around.some((held) => held.has(term))),
    position: 1 / (1 + passage.start / POSITION_CHARS),
    length: Math.min(1, text.length / LENGTH_CHARS),
    missing: wanted.terms.filter((term) => credit(term) === 0).length / Math.max(1, wanted.terms.length),
    labelAsked: label,
    value: asksValue && STATED_VALUE.test(text) && fit > 0.5 ? 1 : 0,
    default: asksValue && DEFAULT.test(text) ? 1 : 0,
    example: asksValue && EXAMPLE.test(text) ? 1 : 0,
    row: passage.sentences[at]?.isRow ? 1 : 0,
    numbers: numbers.filter((term) => terms.own[at]?.has(term)).length / Math.max(1, numbers.length),
    lacksReferent: lacksReferent ? 1 : 0,
    unanchored: unanchored(wanted.anchors, quotable, passage),
  }
}

/** Returns the signals of each passage and its source. The passages are ranked, best first. */
export function placesOf(
  wanted: AnswerCriteria,
  weights: Weights,
  passages: readonly CountedPassage[],
  isReranked: boolean,
) {
  const scores = passages.map((passage) => bm25(wanted.terms, passage, weights))
  // If the passages are ranked by embeddings, then the n-th passage receives the n-th best BM25 score. The order of the
  // scores then agrees with that ranking.
  if (isReranked) scores.sort((a, b) => b - a)
  const best = Math.max(Number.EPSILON, ...scores)
  const sources = [...new Set(passages.map(({ source }) => source))]
  const masses = new Map(sources.map((source) => [source, 0]))
  for (const { source, terms } of passages) {
    const mass = massOf(wanted.terms, weights, (term) => terms.has(term))
    masses.set(source, Math.max(mass, masses.get(source) ?? 0))
  }
  return passages.map(({ source }, at) => ({
    passage: (scores[at] ?? 0) / best,
    source: masses.get(source) ?? 0,
    sourceRank: 1 / (1 + sources.indexOf(source)),
  }))
}

function isValueAsked({ types }: AnswerCriteria): boolean {
  return types.includes('default') || types.includes('number') || types.includes('date')
}

/**
 * Returns how similar the heading or a label of a sentence is to the question, 0 to 1. The result is the F-measure of two shares. One is
 * the share of the question's terms that are in the label. The other is the share of the label's terms that are in the question.
 */
function labelFit(
  { terms, asked }: AnswerCriteria,
  weights: Weights,
  { heading, sentences }: CountedPassage,
  { heading: headingTerms }: PassageTerms,
  at: number,
): number {
  let best = 0
  for (const text of [heading, ...(sentences[at]?.contexts ?? []).map((span) => span.text)]) {
    if (text === '' || text.length > LABEL_CHARS_MAX) continue
    const own = text === heading ? headingTerms : asked.termsIn(text)
    const recall = massOf(terms, weights, (term) => own.has(term))
    const words = [...own].filter((term) => !/^\p{N}+$/u.test(term))
    const precision = words.filter((term) => terms.includes(term)).length / Math.max(1, words.length)
    if (recall + precision > 0) best = Math.max(best, (2 * recall * precision) / (recall + precision))
  }
  return best
}

function unanchored(
  anchors: readonly Anchor[],
  { at, text }: Quotable,
  { source, heading, sentences }: CountedPassage,
): number {
  if (anchors.length === 0) return 0
  const { contexts = [] } = sentences[at] ?? {}
  const around = [
    text,
    sentences[at - 1]?.text ?? '',
    ...contexts.map((span) => span.text),
    heading,
    subjectOf(source),
  ].join('\n')
  return anchors.filter(({ pattern }) => !pattern.test(around)).length / anchors.length
}

export function creditSum(terms: Iterable<string>, weights: Weights, credit: (term: string) => number): number {
  let [all, held] = [0, 0]
  for (const term of terms) {
    const weight = weights.get(term) ?? 0
    all += weight
    held += weight * credit(term)
  }
  return all === 0 ? 0 : held / all
}
