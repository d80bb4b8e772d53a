/*
 * How well one sentence answers a question, by signals between 0 and 1 whose weighted sum is its score. Each term of the question counts
 * with its rarity, and with a credit for the place where it stands: a sentence is about its label, the header of its table, its heading
 * and the sentence that it refers to. In "shared_buffers (integer) / The default is typically 128 megabytes." the second line answers
 * "What is the default of shared_buffers?", though it contains one of two terms.
 *
 * The weights are a logistic regression over the open questions of `bench/research`: does the sentence state a fact that is asked for?
 */
import { type CountedPassage, massOf } from '#services/research/passages.ts'
import type { Anchor, Weights } from '#services/research/question.ts'
import type { AskedTerms } from '#shared/search/text/asked.ts'
import { synonymsOf } from '#shared/search/text/synonyms.ts'
import { subjectOf, termsOf } from '#shared/search/text/terms.ts'
import { type AnswerType, fitOf } from './answer-type.ts'
import type { Quotable } from './quotes.ts'

/** The question, as sentences are compared with it. */
export interface Wanted {
  readonly question: string
  readonly terms: readonly string[]
  readonly types: readonly AnswerType[]
  readonly asked: AskedTerms
  readonly anchors: readonly Anchor[]
  readonly isEnglish: boolean
  /** Without an answer of its type a sentence is none. */
  readonly isTypeRequired: boolean
}

/** Credits of a term by its place relative to the sentence; 1 within it. */
const SYNONYM = 0.7
const CONTEXT = 0.9
const REFERENT = 0.8
const HEADING = 0.6
const TITLE = 0.35
const NEIGHBOUR = 0.3
/** Words between two neighbouring terms of the question that still stand together. */
const NEAR = 3
/** Terms of a sentence from which on length no longer counts. */
const LONG = 20

/** Signals with their weights. */
const WEIGHTS = {
  /** Share of the question in the sentence itself. */
  own: 0.34,
  /** Share of the question in the sentence and around it. */
  whole: 0.9,
  /** Neighbouring terms of the question that stand together. */
  pairs: 0.4,
  /** An answer of the type that is asked for; by how much of the question is there; if there is no answer without it. */
  fit: 0.52,
  fitAbout: 0.83,
  fitRequired: 0.65,
  /** Share of the question in the heading, in the title, in the passage, in the best passage of the source. */
  heading: 0.39,
  title: 0.42,
  passage: 0.83,
  source: 0.42,
  /** Reciprocal rank of the passage. */
  rank: 0.81,
  /** Terms of the sentence that the question does not have. */
  news: -0.84,
  length: 0.14,
  code: -0.8,
  leans: -0.46,
  /** Credit of the rarest term of the question. */
  rarest: 0.17,
  /** Share of the terms of the question that are nowhere near. */
  missing: -1.38,
  /** The first sentence below a heading. */
  lead: 0.36,
  /** Share of the anchors of the question that stand nowhere near. No training: what is asked of 2021 is not answered by 2024. */
  unanchored: -2,
}
const BIAS = -3.4

export type Signals = Readonly<Record<keyof typeof WEIGHTS, number>>

/** The score of a sentence: the logit of {@link likelihoodOf}. */
export function scoreOf(signals: Signals): number {
  const names = Object.keys(WEIGHTS) as (keyof typeof WEIGHTS)[]
  return names.reduce((sum, name) => sum + WEIGHTS[name] * signals[name], BIAS)
}

/** Likelihood that a sentence with this score states a fact that is asked for. */
export function likelihoodOf(score: number): number {
  return 1 / (1 + Math.exp(-score))
}

/** Sentences of a passage, with the terms that each holds. */
export interface PassageTerms {
  readonly own: readonly ReadonlySet<string>[]
  readonly contexts: readonly ReadonlySet<string>[]
  readonly heading: ReadonlySet<string>
  readonly title: ReadonlySet<string>
}

const NONE: ReadonlySet<string> = new Set()

export function passageTermsOf({ source, heading, sentences }: CountedPassage, asked: AskedTerms): PassageTerms {
  return {
    own: sentences.map(({ text }) => asked.heldIn(text)),
    contexts: sentences.map(({ contexts }) =>
      contexts ? asked.heldIn(contexts.map(({ text }) => text).join('\n')) : NONE,
    ),
    heading: asked.heldIn(heading),
    title: asked.heldIn(subjectOf(source)),
  }
}

/** The credit of a term for a sentence, by the nearest place that contains it. */
export function creditIn(
  terms: PassageTerms,
  at: number,
  refers: boolean,
  isEnglish: boolean,
): (term: string) => number {
  const { own, contexts, heading, title } = terms
  const [before, after] = [own[at - 1] ?? NONE, own[at + 1] ?? NONE]
  return (term) => {
    if (own[at]?.has(term)) return 1
    if (contexts[at]?.has(term)) return CONTEXT
    if (refers && before.has(term)) return REFERENT
    if (isEnglish && isSaidOtherwise(term, own[at] ?? NONE)) return SYNONYM
    if (heading.has(term)) return HEADING
    if (title.has(term)) return TITLE
    return before.has(term) || after.has(term) || (refers && contexts[at - 1]?.has(term)) ? NEIGHBOUR : 0
  }
}

function isSaidOtherwise(term: string, own: ReadonlySet<string>): boolean {
  for (const other of synonymsOf(term)) if (own.has(other)) return true
  return false
}

/** A sentence with its place. */
export interface Placed {
  readonly quotable: Quotable
  readonly passage: CountedPassage
  readonly terms: PassageTerms
  /** Rank of the passage, from 0. */
  readonly rank: number
  /** Share of the question in the best passage of the source. */
  readonly sourceMass: number
}

/** The signals of one sentence. */
export function signalsOf(wanted: Wanted, weights: Weights, { quotable, passage, terms, ...place }: Placed): Signals {
  const { at, text, refers, leans, isCode } = quotable
  const credit = creditIn(terms, at, refers, wanted.isEnglish)
  const own = terms.own[at] ?? NONE
  const share = (held: ReadonlySet<string>) => massOf(wanted.terms, weights, (term) => held.has(term))
  const whole = creditSum(wanted.terms, weights, credit)
  const fit = wanted.types.length === 0 ? 0.5 : fitOf(text, wanted.question, wanted.types)
  const count = Math.max(1, wanted.terms.length)
  return {
    own: share(own),
    whole,
    pairs: pairsIn(text, wanted.terms),
    fit,
    fitAbout: fit * whole,
    fitRequired: wanted.isTypeRequired ? fit : 0,
    heading: share(terms.heading),
    title: share(terms.title),
    passage: share(passage.terms),
    source: place.sourceMass,
    rank: 1 / (1 + place.rank),
    news: own.size === 0 ? 0 : own.difference(new Set(wanted.terms)).size / own.size,
    length: Math.min(1, own.size / LONG),
    code: isCode ? 1 : 0,
    leans: leans ? 1 : 0,
    rarest: credit(rarestOf(wanted.terms, weights)),
    missing: wanted.terms.filter((term) => credit(term) === 0).length / count,
    lead: at === 0 && passage.heading !== '' ? 1 : 0,
    unanchored: unanchored(wanted.anchors, quotable, passage),
  }
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

function rarestOf(terms: readonly string[], weights: Weights): string {
  return terms.reduce((rarest, term) => ((weights.get(term) ?? 0) > (weights.get(rarest) ?? 0) ? term : rarest), '')
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

/** The share of neighbouring terms of the question that stand together in a text as well. */
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
    if (a.some((x) => b.some((y) => Math.abs(x - y) <= NEAR))) together++
  }
  return together / (terms.length - 1)
}
