/*
 * The prototype of deep research, which writes reports without a model. The code is rebuilt from a description of the prototype. Each version of
 * Sluice must be better than the prototype on the same documents and questions. The prototype has its own reader and shares only the splitting into
 * terms with Sluice.
 */
import { termSet } from '#shared/search/text/terms.ts'
import type { Annotation, Report } from '../score.ts'
import { clausesOf, PassageIndex } from './passages.ts'
import { type Passage, passagesIn } from './reader.ts'

/**
 * Minimum weight of the question's terms that one passage must contain, as a share of the weight of all terms of the question.
 * `SHORT_MASS_MIN` applies to questions of up to `SHORT_TERMS` terms.
 */
const MASS_MIN = 0.42
const SHORT_MASS_MIN = 0.7
const SHORT_TERMS = 3
/** Weight of relevance in maximal marginal relevance. Novelty has the weight `1 - LAMBDA`. */
const LAMBDA = 0.72
const PER_DOCUMENT_MAX = 7
/** Maximum sentences of a report, the same number as the default of Sluice. */
const SENTENCES_MAX = 20
const CHARS = { min: 24, max: 480 }
const PRONOUN = /^(?:it|its|they|their|them|this|these|that|those|he|she|his|her)\b/i

export interface Baseline {
  answer(question: string): Report
  close(): void
}

interface Candidate {
  readonly text: string
  readonly terms: ReadonlySet<string>
  readonly passage: Passage
  score: number
}

export function openBaseline(contents: ReadonlyMap<string, string>): Baseline {
  const index = new PassageIndex([...contents].flatMap(([name, content]) => passagesIn(name, content)))
  return { answer: (question) => reportOf(answer(index, question)), close: () => index.close() }
}

function answer(index: PassageIndex, question: string): Candidate[] {
  const ranked = index.rank(question)
  if (Math.max(0, ...ranked.map((passage) => massOf(index, question, termsOf(passage)))) < leastMass(question))
    return []
  const candidates = scored(index, question, ranked)
  const best = clausesOf(question).flatMap((clause) => bestDocument(index, clause))
  return choose(candidates, new Set(best))
}

function leastMass(question: string): number {
  return termSet(question).size <= SHORT_TERMS ? SHORT_MASS_MIN : MASS_MIN
}

function termsOf({ heading, sentences }: Passage): Set<string> {
  return termSet(`${heading} ${sentences.join(' ')}`)
}

/**
 * Returns the weight of those terms of the text that are in `held`, as a share of the weight of all terms of the text. A rare term has a
 * larger weight.
 */
function massOf(index: PassageIndex, text: string, held: ReadonlySet<string>): number {
  const terms = [...termSet(text)]
  const weigh = (some: readonly string[]) => some.reduce((sum, term) => sum + index.weightOf(term), 0)
  return weigh(terms.filter((term) => held.has(term))) / Math.max(Number.EPSILON, weigh(terms))
}

function bestDocument(index: PassageIndex, clause: string): string[] {
  const ranked = index.rank(clause).filter((passage) => massOf(index, clause, termsOf(passage)) >= leastMass(clause))
  return ranked.slice(0, 1).map(({ document }) => document)
}

function scored(index: PassageIndex, question: string, ranked: readonly Passage[]): Candidate[] {
  const coverage = new Map<string, number>()
  for (const passage of ranked) {
    const mass = massOf(index, question, termsOf(passage))
    coverage.set(passage.document, Math.max(mass, coverage.get(passage.document) ?? 0))
  }
  const candidates = ranked.flatMap((passage, rank) =>
    passage.sentences.flatMap((text, at): Candidate[] => {
      if (text.length < CHARS.min || text.length > CHARS.max || /[:?]$/.test(text)) return []
      const terms = termSet(text)
      const own = 0.5 * massOf(index, question, terms) + 0.2 / (1 + rank)
      const around = 0.2 * (coverage.get(passage.document) ?? 0) + (at === 0 ? 0.05 : 0)
      return [{ text, terms, passage, score: own + around - (PRONOUN.test(text) ? 0.1 : 0) }]
    }),
  )
  for (const [at, rank] of textRank(candidates).entries()) {
    const candidate = candidates[at]
    if (candidate) candidate.score += 0.1 * rank
  }
  return candidates.sort((a, b) => b.score - a.score)
}

function textRank(candidates: readonly Candidate[]): number[] {
  const links = candidates.map((a) => candidates.map((b) => (a === b ? 0 : overlap(a.terms, b.terms))))
  const out = links.map((row) => row.reduce((sum, link) => sum + link, 0) || 1)
  let ranks = candidates.map(() => 1)
  for (let round = 0; round < 10; round++) {
    const before = ranks
    ranks = links.map(
      (row) => 0.15 + 0.85 * row.reduce((sum, link, at) => sum + (link * (before[at] ?? 0)) / (out[at] ?? 1), 0),
    )
  }
  const most = Math.max(Number.EPSILON, ...ranks)
  return ranks.map((rank) => rank / most)
}

/** Chooses the best sentence of the best document of each clause, then further sentences by maximal marginal relevance. */
function choose(candidates: readonly Candidate[], documents: ReadonlySet<string>): Candidate[] {
  const chosen: Candidate[] = []
  for (const name of documents)
    chosen.push(...candidates.filter(({ passage }) => passage.document === name).slice(0, 1))
  const pool = new Set(candidates.filter((candidate) => !chosen.includes(candidate)))
  while (chosen.length < SENTENCES_MAX && pool.size > 0) {
    let [next, most] = [undefined as Candidate | undefined, 0]
    for (const candidate of pool) {
      const alike = Math.max(0, ...chosen.map(({ terms }) => overlap(terms, candidate.terms)))
      const worth = LAMBDA * candidate.score - (1 - LAMBDA) * alike
      const own = chosen.filter(({ passage }) => passage.document === candidate.passage.document).length
      if (worth > most && own < PER_DOCUMENT_MAX) [next, most] = [candidate, worth]
    }
    if (!next) break
    pool.delete(next)
    chosen.push(next)
  }
  return chosen
}

function overlap(a: ReadonlySet<string>, b: ReadonlySet<string>): number {
  const shared = a.intersection(b).size
  return shared / Math.max(1, a.size + b.size - shared)
}

function reportOf(chosen: readonly Candidate[]): Report {
  const annotations: Annotation[] = []
  let content = ''
  for (const { text, passage } of chosen) {
    content += `- ${text} `
    const start_index = content.length
    content += '[1]'
    annotations.push({
      start_index,
      end_index: content.length,
      url: passage.document,
      title: passage.title,
      quote: text,
    })
    content += '\n'
  }
  return { content, annotations, abstained: chosen.length === 0 }
}
