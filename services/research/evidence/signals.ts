/*
 * Scores how well one sentence answers a question. Signals between 0 and 1 describe the sentence; their weighted sum is its score.
 *
 * Each term of the question counts with its idf weight, multiplied by a credit for the position at which the term was found. The credit is
 * 1 in the sentence. The credit is lower in the sentence's label, table header or heading, or in the previous sentence to which the
 * sentence refers. Example for the question "What is the default of shared_buffers?":
 *
 *     shared_buffers (integer)
 *     The default is typically 128 megabytes.
 *
 * The second line is the answer, though it contains only one of the two terms. The label above it supplies the other one.
 *
 * The weights come from a logistic regression over 110 questions of three sets (`bench/quality`). The predicted label is whether the
 * sentence states a requested fact.
 */
import { type CountedPassage, massOf } from '#services/research/question/passages.ts'
import type { Anchor, Weights } from '#services/research/question/question.ts'
import { STATED_VALUE } from '#shared/search/text/contexts.ts'
import type { QueryTerms } from '#shared/search/text/query-terms.ts'
import { synonymsOf } from '#shared/search/text/synonyms.ts'
import { subjectOf, termsOf } from '#shared/search/text/terms.ts'
import { type AnswerType, fitOf } from './answer-type.ts'
import type { Quotable } from './quotes.ts'

export interface AnswerCriteria {
  readonly question: string
  readonly terms: readonly string[]
  readonly types: readonly AnswerType[]
  readonly asked: QueryTerms
  readonly anchors: readonly Anchor[]
  /** Terms that name a product: proper names in the question, and words of the question that are also a folder of a source. */
  readonly products: ReadonlySet<string>
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
/** Maximum distance, counted in terms of the text, at which two adjacent terms of the question count as close together. */
const PAIR_DISTANCE_MAX = 3
const LABEL_CHARS_MAX = 120
/** If a question asks for a definition, then a sentence with at least this {@link labelFit} counts as the definition. */
const DEFINED_LABEL_MIN = 0.35
/** Number of terms of a sentence at which the signal `length` reaches its maximum, 1. */
const LENGTH_TERMS = 20

const WEIGHTS = {
  own: -0.04,
  /** Share of the idf weight of the question's terms in and around the sentence. Each term is multiplied by the credit of its position. */
  whole: 1.14,
  /** Share of the pairs of adjacent terms of the question that are close together in the sentence. */
  pairs: 0.25,
  /**
   * How well the answer type of the sentence fits, see `fitOf`. `fitAbout`: `fit` times `whole`. `fitRequired`: `fit` if the question
   * requires the type, else 0.
   */
  fit: 0.65,
  fitAbout: 1.09,
  fitRequired: 0.87,
  /** Shares of the idf weight of the question's terms: in the title, in the passage, and in the source's best passage. */
  title: 0.43,
  passage: 0.92,
  source: 0.55,
  /** Reciprocal rank of the passage, 1 / (1 + rank). The best passage has rank 0. */
  rank: 0.54,
  news: -0.46,
  length: -0.16,
  code: -0.38,
  lacksReferent: -0.48,
  /** Share of the question's terms that are neither in the sentence nor around it. */
  missing: -1.36,
  /** 1 for the first sentence below a heading, otherwise 0. */
  lead: 0.36,
  /** Similarity of the sentence's label or heading to the question, see {@link labelFit}. */
  label: 0.49,
  /** Equal to `label` if the question asks for a definition or a default value, otherwise 0. */
  labelAsked: 0.69,
  /** Share, by idf weight, of the product names in the question that are neither in the sentence nor around it, such as in the title. */
  unnamed: -0.43,
  /** 1 for a line that states a value, such as `Default: 0`, if the question asks for a value. */
  value: 0.35,
  /**
   * Share of the anchors (exact strings such as years) that are missing in and around the sentence. The value is set by hand: a fact of
   * 2024 does not answer a question about 2021.
   */
  unanchored: -2,
}
const BIAS = -4.2

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
  readonly rank: number
  readonly sourceMass: number
}

export function signalsOf(
  wanted: AnswerCriteria,
  weights: Weights,
  { quotable, passage, terms, ...place }: SentenceInPassage,
): Signals {
  const { at, text, hasReference, lacksReferent, isCode } = quotable
  const credit = creditIn(terms, at, hasReference, wanted.isEnglish)
  const own = terms.own[at] ?? NONE
  const share = (held: ReadonlySet<string>) => massOf(wanted.terms, weights, (term) => held.has(term))
  const whole = creditSum(wanted.terms, weights, credit)
  const count = Math.max(1, wanted.terms.length)
  const label = labelFit(wanted, weights, passage, terms, at)
  const isDefinition = wanted.types.includes('definition') && label >= DEFINED_LABEL_MIN
  const fit = wanted.types.length === 0 ? 0.5 : isDefinition ? 1 : fitOf(text, wanted.question, wanted.types)
  return {
    own: share(own),
    whole,
    pairs: pairsIn(text, wanted.terms),
    fit,
    fitAbout: fit * whole,
    fitRequired: wanted.isTypeRequired ? fit : 0,
    title: share(terms.title),
    passage: share(passage.terms),
    source: place.sourceMass,
    rank: 1 / (1 + place.rank),
    news: own.size === 0 ? 0 : own.difference(new Set(wanted.terms)).size / own.size,
    length: Math.min(1, own.size / LENGTH_TERMS),
    code: isCode ? 1 : 0,
    lacksReferent: lacksReferent ? 1 : 0,
    missing: wanted.terms.filter((term) => credit(term) === 0).length / count,
    lead: at === 0 && passage.heading !== '' ? 1 : 0,
    label,
    labelAsked: wanted.types.includes('definition') || wanted.types.includes('default') ? label : 0,
    unnamed: wanted.products.size === 0 ? 0 : massOf(wanted.products, weights, (term) => credit(term) === 0),
    value: isValueAsked(wanted) && STATED_VALUE.test(text) && fit > 0.5 ? 1 : 0,
    unanchored: unanchored(wanted.anchors, quotable, passage),
  }
}

function isValueAsked({ types }: AnswerCriteria): boolean {
  return types.includes('default') || types.includes('number') || types.includes('date')
}

/**
 * Returns the best F-measure of a sentence's heading or labels: share of the label in the question, and share of the question in the label.
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

function pairsIn(text: string, terms: readonly string[]): number {
  if (terms.length < 2) return 0
  const places = new Map<string, number[]>()
  let at = 0
  for (const { term } of termsOf(text)) {
    places.set(term, [...(places.get(term) ?? []), at])
    at++
  }
  let together = 0
  for (let pair = 1; pair < terms.length; pair++) {
    const [a, b] = [places.get(terms[pair - 1] ?? '') ?? [], places.get(terms[pair] ?? '') ?? []]
    if (a.some((x) => b.some((y) => Math.abs(x - y) <= PAIR_DISTANCE_MAX))) together++
  }
  return together / (terms.length - 1)
}
