/*
 * How well one sentence answers a question. Signals between 0 and 1 describe the sentence; their weighted sum is its score.
 *
 * Each term of the question counts with its idf weight, times a credit for its position. The credit is 1 in the sentence and less in its
 * label, table header, heading or the sentence that it refers to. Example for the question "What is the default of shared_buffers?":
 *
 *     shared_buffers (integer)
 *     The default is typically 128 megabytes.
 *
 * The second line is the answer, though it contains only one of the two terms. The label above it supplies the other one.
 *
 * The weights come from a logistic regression over 110 questions of three sets (`bench/quality`). The predicted label is whether the sentence
 * states a requested fact.
 */
import { type CountedPassage, massOf } from '#services/research/passages.ts'
import type { Anchor, Weights } from '#services/research/question.ts'
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
  /** Terms that name a product: proper names, and words of the question that name a folder of the sources. */
  readonly products: ReadonlySet<string>
  readonly isEnglish: boolean
  /** True if a sentence must contain an answer of one of the types. */
  readonly isTypeRequired: boolean
}

/** Credit of a term that is a synonym or at one of these positions; 1 for the term itself within the sentence. */
const SYNONYM = 0.7
const CONTEXT = 0.9
const REFERENT = 0.8
const HEADING = 0.6
const TITLE = 0.35
const NEIGHBOUR = 0.3
/** Maximum distance, in terms, between two neighbouring terms of the question that count as a pair. */
const PAIR_DISTANCE_MAX = 3
/** Maximum length of a label or heading that may name the subject of the question. */
const LABEL_CHARS_MAX = 120
/** Minimum {@link labelFit} of the term that a sentence defines. */
const DEFINED_LABEL_MIN = 0.35
/** Number of terms at which the length signal reaches 1. */
const LENGTH_TERMS = 20

/** Weight of each signal. */
const WEIGHTS = {
  /** Share of the question's weight in the sentence itself. */
  own: -0.04,
  /** Share of the question's weight in the sentence and around it, by credit. */
  whole: 1.14,
  /** Share of neighbouring terms of the question that are close together in the sentence. */
  pairs: 0.25,
  /** Fit to the answer type; the fit times `whole`; the fit if the type is required, otherwise 0. */
  fit: 0.65,
  fitAbout: 1.09,
  fitRequired: 0.87,
  /** Share of the question's weight in the title, in the passage, and in the best passage of the source. */
  title: 0.43,
  passage: 0.92,
  source: 0.55,
  /** Reciprocal rank of the passage. */
  rank: 0.54,
  /** Share of the sentence's terms that the question lacks. */
  news: -0.46,
  length: -0.16,
  code: -0.38,
  lacksReferent: -0.48,
  /** Share of the question's terms that have no credit at any position. */
  missing: -1.36,
  /** The first sentence below a heading. */
  lead: 0.36,
  /** How well the label or heading of the sentence names the question's subject, and nothing else. */
  label: 0.49,
  /** Weight of `label` for a question that asks for a definition or a default value. */
  labelAsked: 0.69,
  /** Share of the products that the question names which are neither in the title nor around the sentence. */
  unnamed: -0.43,
  /** A stated value, such as `Default: 0`, for a question that asks for a value. */
  value: 0.35,
  /** Share of the anchors missing in and around the sentence. Set by hand: a fact of 2024 does not answer a question about 2021. */
  unanchored: -2,
}
const BIAS = -4.2

export type Signals = Readonly<Record<keyof typeof WEIGHTS, number>>

export function scoreOf(signals: Signals): number {
  const names = Object.keys(WEIGHTS) as (keyof typeof WEIGHTS)[]
  return names.reduce((sum, name) => sum + WEIGHTS[name] * signals[name], BIAS)
}

/** Estimated probability that a sentence with this score states a requested fact. */
export function likelihoodOf(score: number): number {
  return 1 / (1 + Math.exp(-score))
}

/** Terms of the question in each sentence of a passage, in the contexts of each sentence, in the heading and in the title. */
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

/** Returns a function from a term to its credit for one sentence, by the nearest position that contains the term. */
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
  /** Share of the question's weight in the best passage of the source. */
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

/** The best F-measure of a label or heading: share of its terms that are in the question, and share of the question's weight. */
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

/** The share of neighbouring terms of the question that are close together in the text. */
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
