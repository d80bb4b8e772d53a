import { type CountedPassage, massOf } from '#services/research/passages.ts'
import { askedTermsIn, type Question, vocabularyOf, type Weights } from '#services/research/question.ts'
import type { Snapshot } from '#shared/search/search.ts'
import type { AskedTerms } from '#shared/search/text/asked.ts'
import { isUndivided } from '#shared/search/text/scripts.ts'
import { termSet } from '#shared/search/text/terms.ts'
import { type AnswerType, answerTypesOf, holdsType } from './answer-type.ts'
import { carriedBy, isAnswered, isCarried, MASS_MIN, type Part, partOf, SHORT_TERMS } from './answerable.ts'
import { quotablesIn } from './quotes.ts'
import { textRank } from './text-rank.ts'

/** A sentence of a source: `source.text.slice(start, end)`, character for character. */
export interface Quote {
  readonly source: Snapshot
  readonly start: number
  readonly end: number
  readonly text: string
}

/** A quote that may answer, and how well. */
export interface Candidate extends Quote {
  readonly score: number
  readonly terms: ReadonlySet<string>
  readonly passage: CountedPassage
}

/** What of the sources bears on a question. */
export interface Evidence {
  /** Quotes that may answer, best first; empty where the sources do not answer. */
  readonly candidates: readonly Candidate[]
  /** Sources that must have a say: the best ones of each clause. */
  readonly wanted: readonly Snapshot[]
  /** What of the question no source speaks of, in its own words. */
  readonly gaps: readonly string[]
}

/** Passages whose sentences are looked at. */
const PASSAGES_MAX = 32
/** Sources that each clause brings, and passages of each of them that are looked at in any case. */
const CLAUSE_SOURCES_MAX = 3
const WANTED_PASSAGES_MAX = 3
/** A source whose best passage carries less than this share of what the best one does is beside the point. */
const SOURCE_SHARE_MIN = 0.55
/** Share of what the question says that a sentence with its heading must carry. */
const SENTENCE_MASS_MIN = 0.05
/** What a term is worth that stands only in the heading or in the title of the source. */
const HEADING_CREDIT = 0.35
/** What the parts of a sentence's score are worth. */
const WEIGHTS = { mass: 0.5, beside: 0.25, rank: 0.2, central: 0.1, passage: 0.25, lead: 0.08, typed: 0.15, code: 0.1 }
/** Of a sentence that cannot be understood without the one before. */
const PRONOUN_LOSS = 0.05

/** Finds what answers a question among passages that were ranked by it. Yields so that it can be done in turns. */
export function* findEvidence(
  question: Question,
  read: readonly CountedPassage[],
  weights: Weights,
): Generator<void, Evidence> {
  const whole = yield* partOf({ text: question.text, terms: [...question.terms.keys()] }, question, read, weights)
  const clauses: Part[] = []
  for (const clause of question.clauses) clauses.push(yield* partOf(clause, question, read, weights))
  const some = new Set((clauses.length > 0 ? clauses : [whole]).flatMap(({ passages }) => passages))
  const ranked = read.filter((passage) => some.has(passage))
  const open = clauses.filter((clause) => !isCarried(clause, weights))
  const gaps = gapsOf(question, read, open)
  const bearing = [
    ...(isCarried(whole, weights) ? [whole] : []),
    ...clauses.filter((clause) => clause.terms.length >= SHORT_TERMS && !open.includes(clause)),
  ]
  if (!(yield* isAnyAnswered(bearing, weights))) return { candidates: [], wanted: [], gaps }
  const wanted = clauses.flatMap((clause) => sourcesFor(clause, weights))
  const passages = chosenPassages(whole.terms, ranked, weights, wanted)
  const asked = {
    terms: whole.terms,
    types: answerTypesOf(question.text, question.language.isEnglish),
    asked: askedTermsIn(question),
  }
  return { candidates: yield* scored(asked, passages, weights), wanted, gaps }
}

function* isAnyAnswered(parts: readonly Part[], weights: Weights): Generator<void, boolean> {
  for (const part of parts) if (yield* isAnswered(part, weights)) return true
  return false
}

/** The sources that carry a clause best. What a title says counts half: it is about all of the source. */
function sourcesFor({ terms, passages }: Part, weights: Weights): Snapshot[] {
  const masses = new Map<Snapshot, number>()
  for (const passage of passages) {
    const own = massOf(terms, weights, (term) => passage.terms.has(term))
    const titled = massOf(terms, weights, (term) => passage.counts.has(term))
    const mass = (own + titled) / 2
    if (mass >= MASS_MIN) masses.set(passage.source, Math.max(mass, masses.get(passage.source) ?? 0))
  }
  const best = [...masses].toSorted(([, a], [, b]) => b - a)
  return best.slice(0, CLAUSE_SOURCES_MAX).map(([source]) => source)
}

/** The best passages, and the best ones of sources that are wanted, without those beside the point. */
function chosenPassages(
  terms: readonly string[],
  ranked: readonly CountedPassage[],
  weights: Weights,
  wanted: readonly Snapshot[],
): CountedPassage[] {
  const bestMass = carriedBy(terms, ranked, weights)
  const massBySource = new Map<Snapshot, number>()
  for (const { source, terms: own } of ranked) {
    const mass = massOf(terms, weights, (term) => own.has(term))
    massBySource.set(source, Math.max(mass, massBySource.get(source) ?? 0))
  }
  const isFit = ({ source }: CountedPassage) => {
    return wanted.includes(source) || (massBySource.get(source) ?? 0) >= SOURCE_SHARE_MIN * bestMass
  }
  const first = ranked.filter(isFit).slice(0, PASSAGES_MAX)
  const more = wanted.flatMap((source) =>
    ranked.filter((passage) => passage.source === source).slice(0, WANTED_PASSAGES_MAX),
  )
  return [...new Set([...first, ...more])]
}

/** What a candidate is judged by. */
interface Wanted {
  readonly terms: readonly string[]
  readonly types: readonly AnswerType[]
  readonly asked: AskedTerms
}

function* scored(wanted: Wanted, passages: readonly CountedPassage[], weights: Weights): Generator<void, Candidate[]> {
  const drafts: Candidate[] = []
  for (const [rank, passage] of passages.entries()) {
    drafts.push(...candidatesOf(wanted, passage, rank, weights))
    yield
  }
  const distinct = withoutRepeats(drafts)
  const central = yield* textRank(distinct.map(({ terms: own }) => own))
  return distinct
    .map((each, at) => ({ ...each, score: each.score + WEIGHTS.central * (central[at] ?? 0) }))
    .sort(byScore)
}

/** The sentences of a passage that may answer: by themselves, or because one beside them speaks of what is asked for. */
function candidatesOf(
  { terms, types, asked }: Wanted,
  passage: CountedPassage,
  rank: number,
  weights: Weights,
): Candidate[] {
  const heading = asked.heldIn(`${passage.source.title} ${passage.heading}`)
  const passageMass = massOf(terms, weights, (term) => passage.terms.has(term))
  const all = passage.sentences.map(({ text }) => asked.heldIn(text))
  const masses = all.map((own) => {
    const above = massOf(terms, weights, (term) => heading.has(term) && !own.has(term))
    return massOf(terms, weights, (term) => own.has(term)) + HEADING_CREDIT * above
  })
  return quotablesIn(passage.source.text, passage).flatMap(({ at, start, end, text, leans, isCode }) => {
    const beside = Math.max(masses[at - 1] ?? 0, masses[at + 1] ?? 0)
    const mass = masses[at] ?? 0
    if (Math.max(mass, beside) < SENTENCE_MASS_MIN) return []
    const lead = at === 0 ? WEIGHTS.lead : 0
    const loss = (leans ? PRONOUN_LOSS : 0) + (isCode ? WEIGHTS.code : 0)
    const typed = types.some((type) => holdsType(text, type)) ? WEIGHTS.typed : 0
    const own = WEIGHTS.mass * mass + WEIGHTS.beside * beside + typed
    const score = own + WEIGHTS.rank / (1 + rank) + WEIGHTS.passage * passageMass + lead - loss
    return [
      { source: passage.source, start, end, text, passage, terms: termSet(passage.sentences[at]?.text ?? ''), score },
    ]
  })
}

/** What several sources say in the same words counts once. */
function withoutRepeats(drafts: readonly Candidate[]): Candidate[] {
  const seen = new Set<string>()
  return drafts.filter(({ text }) => {
    const key = text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, ' ')
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
 * Clauses that no passage carries, and words of the question that no passage uses. None if the question cannot be divided into words, or
 * if not one word of a question in another language than English is used: then the sources may be in a language of their own.
 */
function gapsOf(question: Question, passages: readonly CountedPassage[], open: readonly Part[]): string[] {
  if (isUndivided(question.text)) return []
  const isHeld = (term: string) => passages.some((passage) => passage.terms.has(term))
  const held = new Set([...vocabularyOf(question)].filter(([term]) => isHeld(term)).map(([, word]) => word))
  if (held.size === 0 && !question.language.isEnglish) return []
  const missing = new Set(question.terms.values()).difference(held)
  return [...open.map(({ text }) => text), ...missing]
}
