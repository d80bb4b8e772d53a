/*
 * Decides whether the sources answer a question at all. A wrong answer is worse than no answer, so shared words alone do not suffice. Terms
 * are weighted by their idf (inverse document frequency), so rare terms count more.
 *
 * In a small corpus, a question must pass two tests:
 * 1. One passage contains terms with a minimum share of the question's total weight ({@link isCarried}).
 * 2. Up to three neighbouring sentences contain an answer of the requested type and the anchors, which are exact strings such as versions
 *    ({@link isAnswered}). The sentences also contain a minimum share of the names and of the remaining terms.
 *
 * In a large corpus, such shares mislead in both directions. A short question reaches a high share by chance. A long question describes a
 * situation, as in "On a laptop in our office". No document contains these words, so the share is low even next to the answer.
 *
 * For this reason, {@link isEvident} uses a logistic regression over three signals of the best quotes ({@link evidenceOf}). The first two
 * signals are sums, which do not fall with the length of the question. The idf of a term in n of N passages is about ln(N / n). If the idf
 * of independent terms add up to ln(N), then about one passage contains all of them by chance. Only a larger sum is evidence.
 */

import type { CountedPassage } from '#services/research/question/passages.ts'
import {
  type Anchor,
  anchorsOf,
  idf,
  namesOf,
  type Question,
  queryTermsIn,
  type Weights,
} from '#services/research/question/question.ts'
import type { Snapshot } from '#shared/search/search.ts'
import { folded } from '#shared/search/text/fold.ts'
import type { QueryTerms } from '#shared/search/text/query-terms.ts'
import type { Sentence } from '#shared/search/text/sentences.ts'
import { subjectOf, termSet } from '#shared/search/text/terms.ts'
import { answerTypesOf, asksAmount, fitOf, holdsAmount, requiredOf } from './answer-type.ts'
import { creditIn, passageTermsOf } from './signals.ts'

/**
 * Minimum share of the question's total weight that the terms in one passage must have. The weight of a term is its idf, so rare terms
 * count more. `SHORT_MASS_MIN` applies to questions of up to 3 terms.
 */
const MASS_MIN = 0.42
const SHORT_MASS_MIN = 0.7
/**
 * Minimum shares of the question's total weight that the terms in one passage must have, for languages other than English. The stop words
 * and endings of these languages are known less well, so lower shares suffice. The first value is for short questions, the second for
 * questions of any length that ask for a date or a number.
 */
const SHORT_FOREIGN_MASS_MIN = 0.5
const FOREIGN_TYPED_MASS_MIN = 0.4
export const SHORT_TERMS = 3
/**
 * Minimum shares, by idf weight, of the question's terms that a group of neighbouring sentences must contain: `NAMES_MIN` of its names,
 * `ASKED_MIN` of all other terms.
 */
const NAMES_MIN = 0.4
const ASKED_MIN = 0.25
/**
 * Minimum fraction of the question's terms, not counting names, that a group of neighbouring sentences must contain. Applies only to questions with
 * at least `ASKED_COUNTED_MIN` of these terms.
 */
const ASKED_COUNT_MIN = 0.5
const ASKED_COUNTED_MIN = 3
/**
 * Credit of a term by the position at which it was found. The text itself gives credit 1, the title
 * alone `TITLE_CREDIT`, and a synonym `SYNONYM_CREDIT`.
 */
const TITLE_CREDIT = 0.5
const SYNONYM_CREDIT = 0.7
/** Minimum result of `fitOf`, which rates from 0 to 1 how well a text fits the requested type of answer. */
const FIT_MIN = 0.5
/** Number of neighbouring sentences that must contain the answer together. */
const GROUP_SENTENCES = 3
const PASSAGES_MAX = 150
/**
 * Coefficients of the logistic regression, by `bench/quality/fit.ts`. The sum is the log-odds that the documents answer the question, reduced by
 * a margin of 0.4 because a wrong answer is worse than none.
 */
const EVIDENCE_WEIGHTS: Readonly<Record<keyof EvidenceSignals, number>> = { sum: 3.35, count: 1.25, share: 3.83 }
const EVIDENCE_BIAS = -6.29
/** Sum of idf weights at which the signal `sum` reaches 1, as a multiple of the idf of a term that no passage contains. */
const EVIDENCE_SUM = 1.5
/** Sentences on each side of a quote in which its terms are searched. */
const EVIDENCE_WINDOW = 2
/**
 * The test for evidence examines at most `EVIDENT_QUOTES` quotes, and only quotes that contain the subjects of the question. These quotes
 * are selected from the best `EVIDENT_QUOTES_READ` quotes.
 */
const EVIDENT_QUOTES = 20
const EVIDENT_QUOTES_READ = 60
/**
 * A term names a subject, such as a product, if its passages are mostly in documents with the term in their title. This value is the
 * minimum share of such passages. A quote is evidence only if it concerns each subject of the question.
 */
const SUBJECT_SHARE_MIN = 0.75

/** Matches a question about a removal, a deprecation or a replacement. A text that only describes the subject does not answer such a question. */
const END_ASKED =
  /\b(?:removed|deprecated|dropped|discontinued|abandoned|retired|withdrawn|renamed|replaced|got rid of)\b/i
const END =
  /\b(?:remov|deprecat|drop|discontinu|abandon|retir|withdr|renam|replac|supersed|obsolet|eliminat|delet|disabl|gone\b|got rid\b|no longer\b|end of (?:life|support)\b|unsupported\b)/i

/** A question or one of its clauses, with the passages that may contain its answer. */
export interface Part {
  readonly text: string
  readonly terms: readonly string[]
  /**
   * Passages that may contain the answer. If the part has names, then only passages of sources that contain the rarest
   * name.
   */
  readonly passages: readonly CountedPassage[]
  readonly names: ReadonlySet<string>
  /** Exact strings, such as versions, that an answer or the text around the answer must contain. */
  readonly anchors: readonly Anchor[]
  readonly asked: QueryTerms
  readonly isEnglish: boolean
}

export function* partOf(
  { text, terms }: { readonly text: string; readonly terms: readonly string[] },
  question: Question,
  passages: readonly CountedPassage[],
  weights: Weights,
): Generator<void, Part> {
  const { isEnglish } = question.language
  // Names are extracted from English questions only. German capitalizes every noun, and other languages inflect names.
  const names = isEnglish ? namesOf(text) : []
  const nameTerms = new Set(names.flatMap((name) => [...termSet(name)]).filter((term) => weights.has(term)))
  const asked = queryTermsIn(question)
  const named = yield* namedPassages(names, passages, weights)
  return { text, terms, passages: named, names: nameTerms, anchors: anchorsOf(text), asked, isEnglish }
}

/** Returns the largest share of the total idf weight of the terms that a single passage contains, 0 to 1. */
export function coverageIn(terms: readonly string[], passages: readonly CountedPassage[], weights: Weights): number {
  return Math.max(
    0,
    ...passages.map(({ terms: own, similar }) =>
      creditOf(terms, weights, (term) => (own.has(term) ? 1 : similar.has(term) ? SYNONYM_CREDIT : 0)),
    ),
  )
}

export function isCarried(part: Part, weights: Weights): boolean {
  return coverageIn(part.terms, part.passages, weights) >= leastMassOf(part)
}

function leastMassOf({ text, terms, isEnglish }: Part): number {
  if (terms.length > SHORT_TERMS)
    return isEnglish || requiredOf(answerTypesOf(text, isEnglish)).length === 0 ? MASS_MIN : FOREIGN_TYPED_MASS_MIN
  if (isEnglish) return SHORT_MASS_MIN
  return requiredOf(answerTypesOf(text, isEnglish)).length > 0 ? FOREIGN_TYPED_MASS_MIN : SHORT_FOREIGN_MASS_MIN
}

/**
 * Whether a group of neighbouring sentences contains the anchors (exact strings such as versions) and enough of the names and other terms.
 * The group must also contain an answer of the requested type. Yields to the event loop between passages.
 */
export function* isAnswered(
  { text, terms, passages, names, anchors, asked: ofQuestion, isEnglish }: Part,
  weights: Weights,
): Generator<void, boolean> {
  const all = answerTypesOf(text, isEnglish)
  const types = requiredOf(all).length === 0 && all.includes('default') ? (['default'] as const) : requiredOf(all)
  const asked = terms.filter((term) => !names.has(term))
  const isCompared = all.includes('compare')
  for (const passage of passages.slice(0, PASSAGES_MAX)) {
    for (const { holds, said, about } of together(passage, ofQuestion)) {
      const around = `${about}\n${said}`
      if (!(isAnchored(anchors, passage, around, isCompared) && holdsRelation(text, `${passage.heading}\n${around}`)))
        continue
      const carries = (some: Iterable<string>) => creditOf(some, weights, holds)
      if (names.size > 0 && carries(names) < NAMES_MIN) continue
      if (!isAbout(asked, weights, holds)) continue
      if (types.length === 0 || fitOf(around, text, types) >= FIT_MIN) return true
      // Number words are recognized in English only. In other languages, a high share of the terms is accepted instead.
      if (!isEnglish && carries(terms) >= SHORT_MASS_MIN) return true
    }
    yield
  }
  return false
}

/** Whether the text mentions a removal or replacement, if the question asks for one ("was X removed?"). True for any other question. */
function holdsRelation(question: string, text: string): boolean {
  return !END_ASKED.test(question) || END.test(text)
}

/**
 * Whether a group of sentences contains enough terms of the question. Both the number and the total idf weight of the found terms must suffice,
 * because one rare word can reach the weight alone.
 */
function isAbout(terms: readonly string[], weights: Weights, holds: (term: string) => number): boolean {
  if (terms.length === 0) return true
  const countMin = terms.length < ASKED_COUNTED_MIN ? 0 : ASKED_COUNT_MIN * terms.length
  return creditOf(terms, weights, holds) >= ASKED_MIN && terms.filter((term) => holds(term) > 0).length >= countMin
}

/**
 * Whether the sentences and their context contain all anchors, which are exact strings such as versions. If the question compares things,
 * then one anchor suffices.
 */
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

/** Yields each group of neighbouring sentences: its text, the labels above it, and a function that returns the credit of a term (0 to 1). */
function* together(
  { source, heading, sentences: all }: CountedPassage,
  asked: QueryTerms,
): Generator<{ said: string; about: string; holds: (term: string) => number }> {
  const prose = all.filter(({ isCode }) => !isCode)
  // Without any prose, lines of code count as sentences, because some manuals consist of preformatted text.
  const sentences = prose.length > 0 ? prose : all
  const above = asked.termsIn(heading)
  const about = (sentence: Sentence) => (sentence.contexts ?? []).map((span) => span.text).join('\n')
  const title = asked.termsIn(subjectOf(source))
  const own = sentences.map((sentence) => asked.termsIn(`${sentence.text}\n${about(sentence)}`))
  const similar = own.map((terms) => new Set([...terms].flatMap((term) => asked.similar(term))))
  for (const [at, first] of sentences.entries()) {
    const some = own.slice(at, at + GROUP_SENTENCES)
    const last = sentences[Math.min(at + GROUP_SENTENCES, sentences.length) - 1] ?? first
    const holds = (term: string) => {
      if (above.has(term) || some.some((terms) => terms.has(term))) return 1
      if (similar.slice(at, at + GROUP_SENTENCES).some((terms) => terms.has(term))) return SYNONYM_CREDIT
      return title.has(term) ? TITLE_CREDIT : 0
    }
    yield { said: source.text.slice(first.start, last.end), about: about(first), holds }
  }
}

function creditOf(terms: Iterable<string>, weights: Weights, holds: (term: string) => number): number {
  let [all, held] = [0, 0]
  for (const term of terms) {
    const weight = weights.get(term) ?? 0
    all += weight
    held += weight * holds(term)
  }
  return all === 0 ? 0 : held / all
}

/** A part of the question: its text, its terms in order, and its quotes, best first. */
interface EvidencePart {
  readonly text: string
  readonly terms: ReadonlySet<string>
  readonly candidates: readonly { readonly passage: CountedPassage; readonly at: number; readonly text: string }[]
}

/** Signals of one quote. Terms of the question count if they are near the quote, in its heading or in its title. */
export interface EvidenceSignals {
  /** Sum of the idf weights of the found terms, without subjects, 0 to 1. Each weight is multiplied by the credit of its position. */
  readonly sum: number
  /** Natural logarithm of 1 + the number of found terms, without subjects. */
  readonly count: number
  /** Fraction of all terms of the question that were found, 0 to 1. */
  readonly share: number
}

export function* isEvident(...input: Parameters<typeof evidenceOf>): Generator<void, boolean> {
  for (const signals of yield* evidenceOf(...input)) if (evidenceScoreOf(signals) >= 0) return true
  return false
}

function evidenceScoreOf({ sum, count, share }: EvidenceSignals): number {
  return EVIDENCE_WEIGHTS.sum * sum + EVIDENCE_WEIGHTS.count * count + EVIDENCE_WEIGHTS.share * share + EVIDENCE_BIAS
}

/**
 * Returns the signals of the best quotes that may answer a part of the question. The context of a quote is the sentences around the quote.
 * A quote counts only if all of these conditions hold:
 * 1. The quote, its context, its heading or its title contains each subject of the part.
 * 2. The context contains the anchors, which are exact strings such as versions. If the part asks whether its subject was removed or
 *    replaced, then the context mentions a removal or replacement.
 * 3. The context contains an answer of a required type. An amount may also be in the quote itself.
 *
 * @param passageCount Passages of the corpus over which the weights were computed.
 */
export function* evidenceOf(
  question: Question,
  { text: asking, terms: own, candidates }: EvidencePart,
  read: readonly CountedPassage[],
  weights: Weights,
  passageCount: number,
): Generator<void, EvidenceSignals[]> {
  const asked = queryTermsIn(question)
  const { isEnglish } = question.language
  const terms = [...own]
  const subjects = yield* subjectTermsIn(terms, read, asked)
  const property = terms.filter((term) => !subjects.includes(term))
  const anchors = anchorsOf(asking)
  const types = isEnglish ? answerTypesOf(asking) : []
  const required = requiredOf(types)
  const isAmountAsked = isEnglish && asksAmount(asking)
  const evidence: EvidenceSignals[] = []
  let left = EVIDENT_QUOTES
  for (const { passage, at, text } of candidates.slice(0, EVIDENT_QUOTES_READ)) {
    yield
    const held = passageTermsOf(passage, asked)
    const credit = creditIn(held, at, false, isEnglish)
    if (subjects.some((term) => credit(term) === 0)) continue
    if (left-- === 0) break
    const { heading, sentences, source } = passage
    const labels = (sentences[at]?.contexts ?? []).map((span) => span.text)
    const [first, last] = [sentences[Math.max(0, at - 1)], sentences[Math.min(at + 1, sentences.length - 1)]]
    const around = [...labels, source.text.slice(first?.start, last?.end)].join('\n')
    if (!isAnchored(anchors, passage, around, types.includes('compare'))) continue
    if (!holdsRelation(asking, `${heading}\n${around}`)) continue
    if (isAmountAsked && !holdsAmount([...labels, text].join('\n'), asking)) continue
    if (required.length > 0 && fitOf(around, asking, types) < FIT_MIN) continue
    // A question such as "What is nginx?" asks for no property, so a quote that holds the subjects suffices.
    if (property.length === 0) {
      evidence.push({ sum: 1, count: Math.LN2, share: 1 })
      continue
    }
    const near = [...held.own.slice(Math.max(0, at - EVIDENCE_WINDOW), at + EVIDENCE_WINDOW + 1), held.heading]
    const found = (term: string) => {
      if (near.some((some) => some.has(term)) || held.contexts[at]?.has(term)) return 1
      return held.title.has(term) ? TITLE_CREDIT : passage.similar.has(term) ? SYNONYM_CREDIT : 0
    }
    const credits = new Map(terms.map((term) => [term, found(term)]))
    const creditOf = (term: string) => credits.get(term) ?? 0
    const sum = property.reduce((total, term) => total + (weights.get(term) ?? 0) * creditOf(term), 0)
    evidence.push({
      sum: Math.min(1, sum / (EVIDENCE_SUM * idf(passageCount, 0))),
      count: Math.log1p(property.filter((term) => creditOf(term) > 0).length),
      share: terms.filter((term) => creditOf(term) > 0).length / Math.max(1, terms.length),
    })
  }
  return evidence
}

/**
 * Returns the terms that name a subject (see {@link SUBJECT_SHARE_MIN}). Example: `nginx`, if most passages about nginx are in the manual
 * of nginx.
 */
function* subjectTermsIn(
  terms: readonly string[],
  passages: readonly CountedPassage[],
  asked: QueryTerms,
): Generator<void, string[]> {
  const titles = new Map<Snapshot, ReadonlySet<string>>()
  for (const { source } of passages) {
    if (titles.has(source)) continue
    titles.set(source, asked.termsIn(subjectOf(source)))
    yield
  }
  const subjects: string[] = []
  for (const term of terms) {
    yield
    const holding = passages.filter((passage) => passage.terms.has(term))
    const titled = holding.filter(({ source }) => titles.get(source)?.has(term))
    if (titled.length > 0 && titled.length >= SUBJECT_SHARE_MIN * holding.length) subjects.push(term)
  }
  return subjects
}

/** Returns the passages of sources that contain the rarest of the names. Without names, all passages are returned. */
function* namedPassages(
  names: readonly string[],
  passages: readonly CountedPassage[],
  weights: Weights,
): Generator<void, readonly CountedPassage[]> {
  const name = rarest(names, weights)
  if (name === undefined) return passages
  const patterns = folded(name).split(/\s+/).map(wholeWord)
  const holding = new Set<Snapshot>()
  for (const source of new Set(passages.map((passage) => passage.source))) {
    const text = folded(`${source.title}\n${source.text}`)
    if (patterns.every((pattern) => pattern.test(text))) holding.add(source)
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

/** Minimum length of a name that matches longer words: `Postgres` matches `PostgreSQL`, but `Java` does not match `JavaScript`. */
const PREFIX_CHARS_MIN = 6

function wholeWord(name: string): RegExp {
  const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
  const after = name.length < PREFIX_CHARS_MIN ? '(?!\\p{L}{3}|\\.?\\p{N})' : '(?!\\.?\\p{N})'
  return new RegExp(`(?<![\\p{L}\\p{N}])${escaped}${after}`, 'iu')
}
