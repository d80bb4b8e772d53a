import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { termSet, termsOf } from '#shared/search/text/terms.ts'
import type { Passage } from './reader.ts'

/** `LIST_MAX` passages of each ranking are merged by reciprocal rank fusion with the constant `RRF_K`. */
const LIST_MAX = 50
const RRF_K = 60
const PASSAGES_MAX = 16
/** In each of `ROUNDS` rounds, the best passages contribute their most frequent terms to the next query. */
const FEEDBACK_PASSAGES = 5
const FEEDBACK_TERMS = 6
const ROUNDS = 2
const CLAUSE = /[?!;:,()\n]|\.\s|\b(?:and|or|but)\b/i

/** Passages in SQLite's FTS5 with the Porter stemmer. Titles have the weight 4, headings the weight 2. */
export class PassageIndex {
  readonly #db = new DatabaseSync(':memory:')
  readonly #passages: readonly Passage[]
  readonly #search: StatementSync
  readonly #holding = new Map<string, number>()

  constructor(passages: readonly Passage[]) {
    this.#passages = passages
    this.#db.exec(
      `CREATE VIRTUAL TABLE passages USING fts5 (title, heading, body, tokenize = 'porter unicode61 remove_diacritics 2')`,
    )
    const insert = this.#db.prepare('INSERT INTO passages (rowid, title, heading, body) VALUES (?, ?, ?, ?)')
    for (const [at, { title, heading, sentences }] of passages.entries()) {
      insert.run(at, title, heading, sentences.join(' '))
      for (const term of termSet(`${title} ${heading} ${sentences.join(' ')}`))
        this.#holding.set(term, (this.#holding.get(term) ?? 0) + 1)
    }
    this.#search = this.#db.prepare(
      `SELECT rowid AS at FROM passages WHERE passages MATCH ? ORDER BY bm25(passages, 4.0, 2.0, 1.0), rowid LIMIT ${LIST_MAX}`,
    )
  }

  weightOf(term: string): number {
    const holding = this.#holding.get(term) ?? 0
    return Math.log(1 + (this.#passages.length - holding + 0.5) / (holding + 0.5))
  }

  /** Returns the best passages for a question, its clauses and pairs of its rarest terms. Terms of the best passages extend the query. */
  rank(question: string): Passage[] {
    const queries = [question, ...clausesOf(question), ...this.#pairsOf(question)]
    const scores = new Map<number, number>()
    const run = (query: string) => {
      for (const [rank, at] of this.#find(query).entries())
        scores.set(at, (scores.get(at) ?? 0) + 1 / (RRF_K + rank + 1))
    }
    for (const query of queries) run(query)
    const best = (max: number) => [...scores].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, max)
    for (let round = 0; round < ROUNDS; round++) run(`${question} ${this.#feedback(question, best(FEEDBACK_PASSAGES))}`)
    return best(PASSAGES_MAX).flatMap(([at]) => this.#passages[at] ?? [])
  }

  close(): void {
    this.#db.close()
  }

  #find(query: string): number[] {
    const words = new Set([...termsOf(query)].map(({ word }) => word))
    const match = [...words].map((word) => `"${word}"`).join(' OR ')
    return match === '' ? [] : this.#search.all(match).map(({ at }) => Number(at))
  }

  #pairsOf(question: string): string[] {
    const words = new Map([...termsOf(question)].map(({ word, term }) => [term, word]))
    const byWeight = [...words].toSorted(([a], [b]) => this.weightOf(b) - this.weightOf(a))
    const rare = byWeight.slice(0, 3).map(([, word]) => word)
    return rare.flatMap((a, at) => rare.slice(at + 1).map((b) => `${a} ${b}`))
  }

  #feedback(question: string, best: readonly [at: number, score: number][]): string {
    const own = termSet(question)
    const counts = new Map<string, number>()
    for (const [at] of best)
      for (const term of termSet(this.#passages[at]?.sentences.join(' ') ?? ''))
        if (!own.has(term)) counts.set(term, (counts.get(term) ?? 0) + 1)
    const often = [...counts].filter(([, count]) => count > 1).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))
    return often
      .slice(0, FEEDBACK_TERMS)
      .map(([term]) => term)
      .join(' ')
  }
}

export function clausesOf(question: string): string[] {
  const clauses = question.split(CLAUSE).filter((clause) => termSet(clause).size > 1)
  return clauses.length > 1 ? clauses : []
}
