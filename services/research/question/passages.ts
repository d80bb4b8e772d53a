import type { Snapshot } from '#shared/search/search.ts'
import { type Passage, passagesOf } from '#shared/search/text/passages.ts'
import { QueryTerms } from '#shared/search/text/query-terms.ts'
import { subjectOf, termsOf } from '#shared/search/text/terms.ts'
import { type Question, type Weights, weightsOf } from './question.ts'

/**
 * Weight of one occurrence of a term in the title or in a heading. An occurrence in a sentence has weight 1, because only title and
 * headings name the subject.
 */
const TITLE_WEIGHT = 4
const HEADING_WEIGHT = 2
/** Weight of one occurrence of a synonym, which is weaker evidence than the term itself. */
const SYNONYM_WEIGHT = 0.5
/** Parameters of BM25. K1 saturates the frequency of a term, and B normalizes by the length of the passage. */
const K1 = 1.2
const B = 0.75
/** Assumed mean number of terms per passage, with which BM25 normalizes the length of a passage. */
const LENGTH_MEAN = 90
const LIST_MAX = 100
export const RRF_K = 60

export interface CountedPassage extends Passage {
  readonly source: Snapshot
  /** Terms of the passage's sentences, heading and context. Terms of the title are not included. */
  readonly terms: ReadonlySet<string>
  readonly similar: ReadonlySet<string>
  /** For each term, the sum of the weights of its occurrences, including those in the title. */
  readonly counts: ReadonlyMap<string, number>
  readonly length: number
}

const NO_QUERY_TERMS = new QueryTerms([])

export function* countPassages(source: Snapshot, asked = NO_QUERY_TERMS): Generator<void, CountedPassage[]> {
  const passages: CountedPassage[] = []
  const title = [...termsOf(subjectOf(source))].flatMap(({ term }) => [term, ...asked.matching(term)])
  for (const passage of passagesOf(source)) {
    const counts = new Map<string, number>()
    const add = (term: string, weight: number) => counts.set(term, (counts.get(term) ?? 0) + weight)
    const terms = new Set<string>()
    const similarTerms = new Set<string>()
    let length = 0
    for (const { term } of termsOf(source.text.slice(passage.start, passage.end))) {
      for (const held of [term, ...asked.matching(term)]) {
        add(held, 1)
        terms.add(held)
      }
      for (const similar of asked.similar(term)) {
        add(similar, SYNONYM_WEIGHT)
        similarTerms.add(similar)
      }
      length++
    }
    for (const { term } of termsOf(`${passage.heading}\n${passage.context}`)) {
      for (const held of [term, ...asked.matching(term)]) {
        add(held, HEADING_WEIGHT)
        terms.add(held)
      }
    }
    for (const term of title) add(term, TITLE_WEIGHT)
    passages.push({ ...passage, source, terms, similar: similarTerms, counts, length })
    yield
  }
  return passages
}

export function weightsIn(terms: readonly string[], passages: readonly CountedPassage[]): Weights {
  const holding = terms.map((term) => passages.filter((passage) => passage.terms.has(term)).length)
  return weightsOf(terms, { passages: passages.length, holding })
}

/**
 * Ranks passages, best first. Several BM25 rankings are merged by reciprocal rank fusion: each ranking adds 1 / (60 + rank) to the score of
 * a passage. There is one ranking by all terms of the question, one by each clause, and one by each pair of the three rarest terms. A
 * passage that answers only one clause can therefore still rank high.
 */
export function* rankPassages(
  question: Question,
  passages: readonly CountedPassage[],
  weights: Weights,
): Generator<void, CountedPassage[]> {
  const scores = new Map<CountedPassage, number>()
  for (const terms of listsOf(question, weights)) {
    const scored: [CountedPassage, number][] = []
    for (const [at, passage] of passages.entries()) {
      const score = bm25(terms, passage, weights)
      if (score > 0) scored.push([passage, score])
      if (at % 100 === 0) yield
    }
    scored.sort(byScore)
    for (const [rank, [passage]] of scored.slice(0, LIST_MAX).entries())
      scores.set(passage, (scores.get(passage) ?? 0) + 1 / (RRF_K + rank + 1))
    yield
  }
  return [...scores].sort(byScore).map(([passage]) => passage)
}

export function massOf(terms: Iterable<string>, weights: Weights, holds: (term: string) => boolean): number {
  let all = 0
  let held = 0
  for (const term of terms) {
    const weight = weights.get(term) ?? 0
    all += weight
    if (holds(term)) held += weight
  }
  return all === 0 ? 0 : held / all
}

function listsOf(question: Question, weights: Weights): string[][] {
  const terms = [...question.terms.keys()]
  const rare = terms.toSorted((a, b) => (weights.get(b) ?? 0) - (weights.get(a) ?? 0) || (a < b ? -1 : 1)).slice(0, 3)
  const pairs = rare.flatMap((a, at) => rare.slice(at + 1).map((b) => [a, b]))
  return [terms, ...question.clauses.map((clause) => [...clause.terms]), ...pairs]
}

export function bm25(terms: readonly string[], { counts, length }: CountedPassage, weights: Weights): number {
  let score = 0
  for (const term of terms) {
    const count = counts.get(term)
    if (count === undefined) continue
    score += ((weights.get(term) ?? 1) * count * (K1 + 1)) / (count + K1 * (1 - B + (B * length) / LENGTH_MEAN))
  }
  return score
}

/** Compares by score. Ties are broken by URL and offset, so that the order is deterministic. */
function byScore([a, scoreA]: [CountedPassage, number], [b, scoreB]: [CountedPassage, number]): number {
  if (scoreA !== scoreB) return scoreB - scoreA
  if (a.source.url !== b.source.url) return a.source.url < b.source.url ? -1 : 1
  return a.start - b.start
}
