import type { Snapshot } from '#shared/search/search.ts'
import { isQuotable } from '#shared/search/text/quotable.ts'
import { termSet } from '#shared/search/text/terms.ts'
import { type CountedPassage, massOf } from './passages.ts'
import { type Clause, namesOf, type Question, type Weights } from './question.ts'
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

/** One passage must carry this share of what the question says, and of one that says little more: else nobody answers. */
const MASS_MIN = 0.42
const SHORT_MASS_MIN = 0.7
const SHORT_TERMS = 3
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
const WEIGHTS = { mass: 0.5, beside: 0.25, rank: 0.2, central: 0.1, passage: 0.25, lead: 0.08 }
/** Of a sentence that cannot be understood without the one before. */
const PRONOUN_LOSS = 0.05
const PRONOUN =
  /^(?:it|its|they|their|them|this|these|that|those|he|she|his|her|such|then|there|both|so|but|and|or|else|here)\b/i

/** Finds what answers a question among passages that were ranked by it. Yields so that it can be done in turns. */
export function* findEvidence(
  question: Question,
  read: readonly CountedPassage[],
  weights: Weights,
): Generator<void, Evidence> {
  const texts = question.clauses.length > 0 ? question.clauses.map(({ text }) => text) : [question.text]
  const named = new Map<string, readonly CountedPassage[]>()
  for (const text of texts) named.set(text, yield* namedPassages(text, read, weights))
  const some = new Set([...named.values()].flat())
  const ranked = read.filter((passage) => some.has(passage))
  const terms = [...question.terms.keys()]
  const best = bestOf(terms, ranked, weights)
  const open = question.clauses.filter((clause) => !isCarried(clause.terms, ranked, weights))
  const isPart = question.clauses.some((clause) => clause.terms.length >= SHORT_TERMS && !open.includes(clause))
  if (best === undefined || (best.mass < leastMass(terms.length) && !isPart)) {
    return { candidates: [], wanted: [], gaps: gapsOf(question, read, open) }
  }
  const wanted = question.clauses.flatMap((clause) => sourcesFor(clause, named.get(clause.text) ?? [], weights))
  const passages = chosenPassages(terms, ranked, weights, wanted, best.mass)
  const candidates = yield* scored(terms, passages, weights)
  return { candidates, wanted, gaps: gapsOf(question, read, open) }
}

/** Passages that may answer a text: where it calls something by name, those of sources that use its rarest name too. */
function* namedPassages(
  text: string,
  passages: readonly CountedPassage[],
  weights: Weights,
): Generator<void, readonly CountedPassage[]> {
  const name = rarestName(text, weights)
  if (name === undefined) return passages
  const pattern = wholeWords(name)
  const holding = new Set<Snapshot>()
  for (const source of new Set(passages.map((passage) => passage.source))) {
    if (pattern.test(`${source.title}\n${source.text}`)) holding.add(source)
    yield
  }
  return passages.filter(({ source }) => holding.has(source))
}

function rarestName(text: string, weights: Weights): string | undefined {
  const weighed = namesOf(text).map((name) => {
    const weight = [...termSet(name)].reduce((sum, term) => sum + (weights.get(term) ?? 0), 0)
    return { name, weight }
  })
  return weighed.toSorted((a, b) => b.weight - a.weight)[0]?.name
}

function wholeWords(name: string): RegExp {
  const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/\s+/g, '\\s+')
  return new RegExp(`(?<![\\p{L}\\p{N}])${escaped}(?!\\p{L}{3}|\\.?\\p{N})`, 'iu')
}

function leastMass(terms: number): number {
  return terms <= SHORT_TERMS ? SHORT_MASS_MIN : MASS_MIN
}

function bestOf(
  terms: readonly string[],
  passages: readonly CountedPassage[],
  weights: Weights,
): { passage: CountedPassage; mass: number } | undefined {
  let best: { passage: CountedPassage; mass: number } | undefined
  for (const passage of passages) {
    const mass = massOf(terms, weights, (term) => passage.terms.has(term))
    if (best === undefined || mass > best.mass) best = { passage, mass }
  }
  return best
}

function isCarried(terms: readonly string[], passages: readonly CountedPassage[], weights: Weights): boolean {
  return (bestOf(terms, passages, weights)?.mass ?? 0) >= leastMass(terms.length)
}

/** The sources that carry a clause best. What a title says counts half: it is about all of the source. */
function sourcesFor({ terms }: Clause, passages: readonly CountedPassage[], weights: Weights): Snapshot[] {
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
  bestMass: number,
): CountedPassage[] {
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

function* scored(
  terms: readonly string[],
  passages: readonly CountedPassage[],
  weights: Weights,
): Generator<void, Candidate[]> {
  const drafts: Candidate[] = []
  for (const [rank, passage] of passages.entries()) {
    drafts.push(...candidatesOf(terms, passage, rank, weights))
    yield
  }
  const distinct = withoutRepeats(drafts)
  const central = yield* textRank(distinct.map(({ terms: own }) => own))
  return distinct
    .map((each, at) => ({ ...each, score: each.score + WEIGHTS.central * (central[at] ?? 0) }))
    .sort(byScore)
}

/** The sentences of a passage that may answer: by themselves, or because one beside them speaks of what is asked for. */
function candidatesOf(terms: readonly string[], passage: CountedPassage, rank: number, weights: Weights): Candidate[] {
  const heading = termSet(`${passage.source.title} ${passage.heading}`)
  const passageMass = massOf(terms, weights, (term) => passage.terms.has(term))
  const all = passage.sentences.map(({ text }) => termSet(text))
  const masses = all.map((own) => {
    const above = massOf(terms, weights, (term) => heading.has(term) && !own.has(term))
    return massOf(terms, weights, (term) => own.has(term)) + HEADING_CREDIT * above
  })
  return passage.sentences.flatMap((sentence, at) => {
    const beside = Math.max(masses[at - 1] ?? 0, masses[at + 1] ?? 0)
    const mass = masses[at] ?? 0
    if (!isQuotable(sentence.text) || Math.max(mass, beside) < SENTENCE_MASS_MIN) return []
    const lead = at === 0 ? WEIGHTS.lead : 0
    const loss = PRONOUN.test(sentence.text) ? PRONOUN_LOSS : 0
    const own = WEIGHTS.mass * mass + WEIGHTS.beside * beside
    const score = own + WEIGHTS.rank / (1 + rank) + WEIGHTS.passage * passageMass + lead - loss
    return [{ ...sentence, source: passage.source, passage, terms: all[at] ?? new Set(), score }]
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

/** Clauses that nobody carries, and words of the question that nobody uses. */
function gapsOf(question: Question, passages: readonly CountedPassage[], open: readonly Clause[]): string[] {
  const words = [...question.terms].filter(([term]) => !passages.some((passage) => passage.terms.has(term)))
  return [...open.map(({ text }) => text), ...words.map(([, word]) => word)]
}
