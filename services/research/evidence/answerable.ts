/*
 * Whether sources answer a question at all. Nobody answers from passages that share words with it and nothing more: a wrong
 * answer is worse than none.
 */

import type { CountedPassage } from '#services/research/passages.ts'
import {
  type Anchor,
  anchorsOf,
  askedTermsIn,
  namesOf,
  type Question,
  type Weights,
} from '#services/research/question.ts'
import type { Snapshot } from '#shared/search/search.ts'
import type { AskedTerms } from '#shared/search/text/asked.ts'
import { folded } from '#shared/search/text/fold.ts'
import type { Sentence } from '#shared/search/text/sentences.ts'
import { subjectOf, termSet } from '#shared/search/text/terms.ts'
import { answerTypesOf, fitOf, requiredOf } from './answer-type.ts'

/** One passage must carry this share of what a question says, and of one that says little more. */
export const MASS_MIN = 0.42
const SHORT_MASS_MIN = 0.7
/** Of a short question of another language than English, whose stop words and endings are known less well; and of one that asks for a number or day. */
const SHORT_FOREIGN_MASS_MIN = 0.5
const SHORT_FOREIGN_TYPED_MASS_MIN = 0.4
/** Terms up to which a question says little. */
export const SHORT_TERMS = 3
/** Of some sentences that stand together: the share of the names, and of what is asked of them, that they must carry. */
const NAMES_MIN = 0.4
const ASKED_MIN = 0.25
/** Below this weight, as `created` has, what is asked says too little to be looked for. */
const ASKED_WEIGHT_MIN = 4
const TITLE_CREDIT = 0.5
const SYNONYM_CREDIT = 0.7
/** How well they must fit the type of the answer. */
const FIT_MIN = 0.5
/** Sentences that stand together, and passages whose sentences are looked at. */
const TOGETHER = 3
const PASSAGES_MAX = 150

/** A question, or a clause of one, and where its answer may stand. */
export interface Part {
  readonly text: string
  readonly terms: readonly string[]
  /** Those of sources that use its rarest name too; all where it has none. */
  readonly passages: readonly CountedPassage[]
  /** Terms of its names. */
  readonly names: ReadonlySet<string>
  /** Words that an answer must have around it. */
  readonly anchors: readonly Anchor[]
  readonly asked: AskedTerms
  readonly isEnglish: boolean
}

/** A text with the passages that may answer it. Yields so that it can be done in turns. */
export function* partOf(
  { text, terms }: { readonly text: string; readonly terms: readonly string[] },
  question: Question,
  passages: readonly CountedPassage[],
  weights: Weights,
): Generator<void, Part> {
  const { isEnglish } = question.language
  // In German every noun has a capital, and elsewhere a name has endings.
  const names = isEnglish ? namesOf(text) : []
  const nameTerms = new Set(names.flatMap((name) => [...termSet(name)]).filter((term) => weights.has(term)))
  const asked = askedTermsIn(question)
  const named = yield* namedPassages(names, passages, weights)
  return { text, terms, passages: named, names: nameTerms, anchors: anchorsOf(text), asked, isEnglish }
}

/** The share of what some terms say that the best passage carries. */
export function carriedBy(terms: readonly string[], passages: readonly CountedPassage[], weights: Weights): number {
  return Math.max(
    0,
    ...passages.map(({ terms: own, similar }) =>
      creditOf(terms, weights, (term) => (own.has(term) ? 1 : similar.has(term) ? SYNONYM_CREDIT : 0)),
    ),
  )
}

/** Whether one passage carries so much of a part that it may be an answer. */
export function isCarried(part: Part, weights: Weights): boolean {
  return carriedBy(part.terms, part.passages, weights) >= leastMassOf(part)
}

function leastMassOf({ text, terms, isEnglish }: Part): number {
  if (terms.length > SHORT_TERMS)
    return isEnglish || requiredOf(answerTypesOf(text, isEnglish)).length === 0
      ? MASS_MIN
      : SHORT_FOREIGN_TYPED_MASS_MIN
  if (isEnglish) return SHORT_MASS_MIN
  return requiredOf(answerTypesOf(text, isEnglish)).length > 0 ? SHORT_FOREIGN_TYPED_MASS_MIN : SHORT_FOREIGN_MASS_MIN
}

/**
 * Whether some sentences that stand together speak of what a part names, say something of what it asks of that, and hold a thing
 * of the kind that it asks for. Yields so that it can be done in turns.
 */
export function* isAnswered(
  { text, terms, passages, names, anchors, asked: ofQuestion, isEnglish }: Part,
  weights: Weights,
): Generator<void, boolean> {
  const types = requiredOf(answerTypesOf(text, isEnglish))
  const asked = terms.filter((term) => !names.has(term))
  const isVague = asked.reduce((sum, term) => sum + (weights.get(term) ?? 0), 0) < ASKED_WEIGHT_MIN
  const isCompared = answerTypesOf(text, isEnglish).includes('compare')
  for (const passage of passages.slice(0, PASSAGES_MAX)) {
    for (const { holds, said, about } of together(passage, ofQuestion)) {
      if (!isAnchored(anchors, passage, `${about}\n${said}`, isCompared)) continue
      const carries = (some: Iterable<string>) => creditOf(some, weights, holds)
      if (names.size > 0 && carries(names) < NAMES_MIN) continue
      if (!isVague && carries(asked) < ASKED_MIN) continue
      if (types.length === 0 || fitOf(said, text, types) >= FIT_MIN) return true
      // Numbers in words are known in English only.
      if (!isEnglish && carries(terms) >= SHORT_MASS_MIN) return true
    }
    yield
  }
  return false
}

/** Whether the anchors stand in some sentences or above them; one of them if the question compares. */
export function isAnchored(
  anchors: readonly Anchor[],
  { source, heading, context }: CountedPassage,
  said: string,
  isCompared: boolean,
): boolean {
  if (anchors.length === 0) return true
  const around = `${source.title}\n${source.url}\n${heading}\n${context}\n${said}`
  const stands = ({ pattern }: Anchor) => pattern.test(around)
  return isCompared ? anchors.some(stands) : anchors.every(stands)
}

/** Neighbouring sentences of a passage: what they say, and how far a term is said by them or stands above them, 0 to 1. */
function* together(
  { source, heading, sentences: all }: CountedPassage,
  asked: AskedTerms,
): Generator<{ said: string; about: string; holds: (term: string) => number }> {
  const sentences = all.filter(({ isCode }) => !isCode)
  const above = asked.heldIn(heading)
  const about = (sentence: Sentence) => (sentence.contexts ?? []).map((span) => span.text).join('\n')
  const title = asked.heldIn(subjectOf(source))
  const own = sentences.map((sentence) => asked.heldIn(`${sentence.text}\n${about(sentence)}`))
  const similar = own.map((terms) => new Set([...terms].flatMap((term) => asked.similar(term))))
  for (const [at, first] of sentences.entries()) {
    const some = own.slice(at, at + TOGETHER)
    const last = sentences[Math.min(at + TOGETHER, sentences.length) - 1] ?? first
    const holds = (term: string) => {
      if (above.has(term) || some.some((terms) => terms.has(term))) return 1
      if (similar.slice(at, at + TOGETHER).some((terms) => terms.has(term))) return SYNONYM_CREDIT
      return title.has(term) ? TITLE_CREDIT : 0
    }
    yield { said: source.text.slice(first.start, last.end), about: about(first), holds }
  }
}

/** The share of what terms say, 0 to 1, each as far as it is held. */
function creditOf(terms: Iterable<string>, weights: Weights, holds: (term: string) => number): number {
  let [all, held] = [0, 0]
  for (const term of terms) {
    const weight = weights.get(term) ?? 0
    all += weight
    held += weight * holds(term)
  }
  return all === 0 ? 0 : held / all
}

/** Passages of sources that use the rarest of some names; all where there are none. */
function* namedPassages(
  names: readonly string[],
  passages: readonly CountedPassage[],
  weights: Weights,
): Generator<void, readonly CountedPassage[]> {
  const name = rarest(names, weights)
  if (name === undefined) return passages
  const pattern = wholeWords(folded(name))
  const holding = new Set<Snapshot>()
  for (const source of new Set(passages.map((passage) => passage.source))) {
    if (pattern.test(folded(`${source.title}\n${source.text}`))) holding.add(source)
    yield
  }
  return passages.filter(({ source }) => holding.has(source))
}

function rarest(names: readonly string[], weights: Weights): string | undefined {
  const weighed = names.map((name) => {
    const weight = [...termSet(name)].reduce((sum, term) => sum + (weights.get(term) ?? 0), 0)
    return { name, weight }
  })
  return weighed.toSorted((a, b) => b.weight - a.weight)[0]?.name
}

function wholeWords(name: string): RegExp {
  const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/\s+/g, '\\s+')
  return new RegExp(`(?<![\\p{L}\\p{N}])${escaped}(?!\\p{L}{3}|\\.?\\p{N})`, 'iu')
}
