import { type CountedPassage, massOf } from '#services/research/question/passages.ts'
import {
  type Anchor,
  anchorsOf,
  type Question,
  queryTermsIn,
  vocabularyOf,
  type Weights,
} from '#services/research/question/question.ts'
import type { Snapshot } from '#shared/search/search.ts'
import { STATED_VALUE } from '#shared/search/text/contexts.ts'
import { isForReaders } from '#shared/search/text/quotable.ts'
import { isUndivided } from '#shared/search/text/scripts.ts'
import { synonymsOf } from '#shared/search/text/synonyms.ts'
import { termOf, termSet } from '#shared/search/text/terms.ts'
import { answerFormOf, answerTypesOf, requiredOf } from './answer-type.ts'
import { coverageIn, isAnswered, isCarried, isEvident, type Part, partOf, SHORT_TERMS } from './answerable.ts'
import { type Quotable, quotablesIn } from './quotes.ts'
import { type AnswerCriteria, passageTermsOf, placesOf, type Signals, scoreOf, signalsOf } from './signals.ts'

/** A verbatim quote: `text` is equal to `source.text.slice(start, end)`. Offsets are in UTF-16 units. */
export interface Quote {
  readonly source: Snapshot
  readonly start: number
  readonly end: number
  readonly text: string
}

export interface Candidate extends Quote {
  readonly score: number
  readonly signals: Signals
  readonly terms: ReadonlySet<string>
  /** The text in lower case, with punctuation and white space replaced by single spaces, for comparison with other quotes. */
  readonly words: string
  readonly passage: CountedPassage
  readonly at: number
  readonly isCode: boolean
  /** Labels, lead-ins or table headers shown with the sentence, because they contain words of the question that the sentence lacks. */
  readonly context: string | undefined
}

export interface PartEvidence {
  readonly text: string
  readonly terms: ReadonlySet<string>
  /**
   * Whether this part of the question asks for a number or a date. If sources state different values, then the report mentions the
   * difference only for such a part.
   */
  readonly isValueAsked: boolean
  readonly candidates: readonly Candidate[]
}

export interface Evidence {
  readonly candidates: readonly Candidate[]
  readonly parts: readonly PartEvidence[]
  readonly gaps: readonly string[]
}

/** Statistics of a corpus that is so large that a missing word means a missing subject. */
export interface LargeCorpus {
  readonly passages: number
  /** Terms of the question that no passage contains. A part of the question with such a term counts as unanswered. */
  readonly absent: ReadonlySet<string>
}

/** Number of best passages whose sentences are scored. In addition, up to 8 passages of each of the 8 best sources are scored. */
const PASSAGES_MAX = 64
const BEST_SOURCES = 8
const SOURCE_PASSAGES = 8
/**
 * Minimum weight of a source's best passage, as a fraction of the weight of the best passage of all sources. The weight of a passage is the
 * sum of the idf of the question's terms in it. A source below this fraction is dropped.
 */
const SOURCE_SHARE_MIN = 0.55
/**
 * Minimum share of the idf weight of the question's terms that a sentence and its surroundings (label, heading, title, neighbours) must
 * contain.
 */
const SENTENCE_MASS_MIN = 0.05
/** Factor for the weight of terms that only other parts of the question contain, when sentences are scored for one part. */
const OTHER_PARTS = 0.4
/**
 * Factor for the weight of the noun after `which` or `what`. An answer to "which city" contains the name of a city and
 * may lack the word "city".
 */
const KIND = 0.5

/**
 * Finds the sentences that answer a question. Yields to the event loop between passages.
 *
 * 1. If an anchor of the question is in no source, then the result consists of gaps only. An anchor is an exact string such as a version.
 *    Gaps are the unanswered parts and missing words of the question. In a small corpus, the result also consists of gaps only if the
 *    sources do not answer (see `answerable.ts`).
 * 2. The best passages are chosen, and further passages of the best sources.
 * 3. Each sentence of the chosen passages is scored against each part of the question (see `signals.ts`).
 * 4. In a large corpus, only gaps are returned if none of the best sentences has enough evidence.
 *
 * @param read Passages of all sources that were read, ranked by relevance to the question, best first.
 * @param corpus Statistics of a large corpus. Undefined for a small corpus, or if its terms were not counted.
 * @param isReranked Whether the order of the passages also depends on embeddings. Passages are then
 * scored by their rank instead of by their own BM25 score.
 */
export function* findEvidence(
  question: Question,
  read: readonly CountedPassage[],
  weights: Weights,
  corpus?: LargeCorpus,
  isReranked = false,
): Generator<void, Evidence> {
  const asked = yield* askedParts(question, read, weights)
  const { whole, clauses } = asked
  const open = clauses.filter((clause) => !isCarried(clause, weights))
  const lost = yield* lostOf(anchorsOf(question.text), read)
  const gaps = [...new Set([...lost.map(({ text }) => text), ...gapsOf(question, read, open)])]
  if (lost.length > 0) return { candidates: [], parts: [], gaps }
  const bearing = [
    ...(isCarried(whole, weights) ? [whole] : []),
    ...clauses.filter((clause) => clause.terms.length >= SHORT_TERMS && !open.includes(clause)),
  ]
  if (!corpus && !(yield* isAnyAnswered(bearing, weights))) return { candidates: [], parts: [], gaps }
  const parts = yield* scoredParts(question, asked, read, weights, isReranked)
  if (corpus && !(yield* isAnyEvident(question, parts, read, weights, corpus)))
    return { candidates: [], parts: [], gaps }
  return { candidates: merged(parts), parts, gaps }
}

interface AskedParts {
  readonly whole: Part
  readonly clauses: readonly Part[]
}

export function* askedParts(
  question: Question,
  read: readonly CountedPassage[],
  weights: Weights,
): Generator<void, AskedParts> {
  const whole = yield* partOf({ text: question.text, terms: [...question.terms.keys()] }, question, read, weights)
  const clauses: Part[] = []
  for (const clause of question.clauses) clauses.push(yield* partOf(clause, question, read, weights))
  return { whole, clauses }
}

/** Chooses the best passages, and scores their sentences against each part of the question. */
export function* scoredParts(
  question: Question,
  { whole, clauses }: AskedParts,
  read: readonly CountedPassage[],
  weights: Weights,
  isReranked = false,
): Generator<void, PartEvidence[]> {
  const some = new Set((clauses.length > 0 ? clauses : [whole]).flatMap(({ passages }) => passages))
  const ranked = read.filter((passage) => some.has(passage))
  const passages = chosenPassages(whole.terms, ranked, weights)
  const parts: PartEvidence[] = []
  for (const { text, terms } of partsOf(question)) {
    const own = new Set(terms)
    const kind = kindTermOf(text)
    const partWeights = new Map(
      [...vocabularyOf(question).keys()].map((term) => {
        const weight = weights.get(term) ?? 0
        return [term, (own.has(term) ? weight : OTHER_PARTS * weight) * (term === kind ? KIND : 1)]
      }),
    )
    const wanted = wantedOf(text, question)
    const isValueAsked = wanted.types.includes('number') || wanted.types.includes('date')
    parts.push({ text, terms: own, isValueAsked, candidates: yield* scored(wanted, passages, partWeights, isReranked) })
  }
  return parts
}

/**
 * Whether the corpus lacks a word of a part of the question. Only the sentences that ask something are examined, or all sentences if no sentence asks
 * something. Words with synonyms, and the noun after `which` or `what`, do not count.
 */
export function asksForAbsent({ text, terms }: PartEvidence, absent: ReadonlySet<string>): boolean {
  const sentences = text.split(SENTENCE_END)
  const asking = sentences.filter((sentence) => ASKS.test(sentence))
  const words = termSet((asking.length > 0 ? asking : sentences).join('\n'))
  const kind = kindTermOf(text)
  return [...words].some((term) => terms.has(term) && absent.has(term) && term !== kind && synonymsOf(term).size === 0)
}

/** Returns the clauses that contain a question, if there are several. Otherwise the whole question is the only part. */
function partsOf(question: Question): { text: string; terms: readonly string[] }[] {
  const asking = question.clauses.filter(({ text }) => ASKS.test(text))
  if (asking.length > 1) return asking.map(({ text, terms }) => ({ text, terms }))
  return [{ text: question.text, terms: [...question.terms.keys()] }]
}

const KIND_WORD = /\b(?:which|what)\s+(?!is\b|are\b|was\b|were\b|does\b|do\b|did\b)(\p{L}+)/iu

function kindTermOf(question: string): string | undefined {
  const [, word] = KIND_WORD.exec(question) ?? []
  return word === undefined ? undefined : termOf(word)
}

const SENTENCE_END = /(?<=[?!.])\s+/
const VERB = 'is|are|was|were|does|do|did|can|could|should|must|may|will|has|have'
/**
 * Matches a clause that contains a question. Other clauses describe a situation, such as "Argon2 has three flavours".
 */
const ASKS = new RegExp(
  String.raw`\b(?:who|whom|whose|what|which|why|how)\b|(?:\b(?:when|where)\s+|^\W*(?:(?:and|or|but|then|so)\s+)?)(?:${VERB})\b`,
  'i',
)

function wantedOf(text: string, question: Question): AnswerCriteria {
  const { isEnglish } = question.language
  return {
    question: text,
    terms: [...vocabularyOf(question).keys()],
    types: answerTypesOf(text, isEnglish),
    form: answerFormOf(text),
    asked: queryTermsIn(question),
    anchors: anchorsOf(text),
    isEnglish,
    isTypeRequired: requiredOf(answerTypesOf(text, isEnglish)).length > 0,
  }
}

function merged(parts: readonly PartEvidence[]): Candidate[] {
  const [only] = parts
  if (only && parts.length === 1) return [...only.candidates]
  const best = new Map<string, Candidate>()
  for (const candidate of parts.flatMap(({ candidates }) => candidates)) {
    const key = `${candidate.source.sha256} ${candidate.start} ${candidate.end}`
    if ((best.get(key)?.score ?? Number.NEGATIVE_INFINITY) < candidate.score) best.set(key, candidate)
  }
  return [...best.values()].sort(byScore)
}

function* lostOf(anchors: readonly Anchor[], passages: readonly CountedPassage[]): Generator<void, Anchor[]> {
  let lost = [...anchors]
  for (const source of new Set(passages.map((passage) => passage.source))) {
    if (lost.length === 0) return []
    lost = lost.filter(({ pattern }) => !pattern.test(`${source.title}\n${source.url}\n${source.text}`))
    yield
  }
  return lost
}

function* isAnyAnswered(parts: readonly Part[], weights: Weights): Generator<void, boolean> {
  for (const part of parts) if (yield* isAnswered(part, weights)) return true
  return false
}

function* isAnyEvident(
  question: Question,
  parts: readonly PartEvidence[],
  read: readonly CountedPassage[],
  weights: Weights,
  { passages, absent }: LargeCorpus,
): Generator<void, boolean> {
  const { isEnglish } = question.language
  for (const part of parts)
    if (!(isEnglish && asksForAbsent(part, absent)) && (yield* isEvident(question, part, read, weights, passages)))
      return true
  return false
}

function chosenPassages(
  terms: readonly string[],
  ranked: readonly CountedPassage[],
  weights: Weights,
): CountedPassage[] {
  const bestMass = coverageIn(terms, ranked, weights)
  const massBySource = new Map<Snapshot, number>()
  for (const { source, terms: own } of ranked) {
    const mass = massOf(terms, weights, (term) => own.has(term))
    massBySource.set(source, Math.max(mass, massBySource.get(source) ?? 0))
  }
  const fit = ranked.filter(({ source }) => (massBySource.get(source) ?? 0) >= SOURCE_SHARE_MIN * bestMass)
  const best = [...new Set(fit.map(({ source }) => source))].slice(0, BEST_SOURCES)
  const more = best.flatMap((source) => fit.filter((passage) => passage.source === source).slice(0, SOURCE_PASSAGES))
  return [...new Set([...fit.slice(0, PASSAGES_MAX), ...more])]
}

function* scored(
  wanted: AnswerCriteria,
  passages: readonly CountedPassage[],
  weights: Weights,
  isReranked: boolean,
): Generator<void, Candidate[]> {
  const candidates: Candidate[] = []
  const places = placesOf(wanted, weights, passages, isReranked)
  for (const [at, place] of places.entries()) {
    const passage = passages[at]
    if (!passage) continue
    const terms = passageTermsOf(passage, wanted.asked)
    for (const quotable of quotablesIn(passage.source.text, passage)) {
      const signals = signalsOf(wanted, weights, { quotable, passage, terms, place })
      if (signals.whole >= SENTENCE_MASS_MIN) candidates.push(candidateOf(quotable, passage, signals, wanted))
    }
    yield
  }
  return withoutRepeats(candidates).sort(byScore)
}

function candidateOf(quotable: Quotable, passage: CountedPassage, signals: Signals, wanted: AnswerCriteria): Candidate {
  const { at, start, end, text, isCode } = quotable
  const terms = termSet(passage.sentences[at]?.text ?? '')
  const context = contextOf(passage, quotable, terms, wanted)
  return {
    source: passage.source,
    start,
    end,
    text,
    passage,
    at,
    isCode,
    context,
    terms,
    words: wordsOf(text),
    signals,
    score: scoreOf(signals),
  }
}

const CONTEXT_CHARS_MAX = 200

function contextOf(
  { heading, sentences }: CountedPassage,
  { at, start }: Quotable,
  own: ReadonlySet<string>,
  wanted: AnswerCriteria,
): string | undefined {
  const sentence = sentences[at]
  const before = (sentence?.contexts ?? []).filter((span) => span.end <= start && isForReaders(span.text))
  const shown = before.filter(({ text }) => {
    const held = wanted.asked.termsIn(text)
    return sentence?.isRow || wanted.terms.some((term) => held.has(term) && !own.has(term))
  })
  // The subject of a line such as `Default: 0` is in the heading above it, so the heading is shown with the quote.
  const subject = sentence && STATED_VALUE.test(sentence.text) && isForReaders(heading) ? [heading] : []
  const context = [...subject, ...shown.map(({ text }) => text)]
    .map((text) => text.replace(/\s*[.:：¶]$/u, ''))
    .filter((text) => text !== '')
    .join(' › ')
  return context === '' || context.length > CONTEXT_CHARS_MAX ? undefined : context
}

function wordsOf(text: string): string {
  return text
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, ' ')
    .trim()
}

function withoutRepeats(drafts: readonly Candidate[]): Candidate[] {
  const seen = new Set<string>()
  return drafts.filter(({ words, context = '' }) => {
    const key = `${wordsOf(context)} ${words}`
    if (seen.has(key)) return false
    seen.add(key)
    return true
  })
}

function byScore(a: Candidate, b: Candidate): number {
  if (a.score !== b.score) return b.score - a.score
  if (a.source.url !== b.source.url) return a.source.url < b.source.url ? -1 : 1
  return a.start - b.start
}

/**
 * Returns the clauses that no passage answers, and the words of the question that no passage contains.
 *
 * The result is empty if missing words cannot be determined, because the question's script does not separate words. The result is also empty if a
 * question in another language than English shares no word with the passages. The passages are then in another language.
 */
function gapsOf(question: Question, passages: readonly CountedPassage[], open: readonly Part[]): string[] {
  if (isUndivided(question.text)) return []
  const isHeld = (term: string) => passages.some(({ terms, similar }) => terms.has(term) || similar.has(term))
  const held = new Set([...vocabularyOf(question)].filter(([term]) => isHeld(term)).map(([, word]) => word))
  if (held.size === 0 && !question.language.isEnglish) return []
  const missing = new Set(question.terms.values()).difference(held)
  return [...open.map(({ text }) => text), ...missing]
}
