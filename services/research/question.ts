import type { ResearchRequest } from '#schemas/research/research.ts'
import type { TermWeights } from '#shared/search/search.ts'
import { AskedTerms, askedTermsOf, type Language, languageOf } from '#shared/search/text/asked.ts'
import { termOf, termSet } from '#shared/search/text/terms.ts'

/** Clauses of a question that are followed by themselves. */
const CLAUSES_MAX = 6
/** Terms of a question that count. */
const TERMS_MAX = 40
/** Terms below which a question leans on the turn before it. */
const LEANING_TERMS = 3
/** Words, and clauses, after which others have their turn. */
const TURN_WORDS = 50
const TURN_CLAUSES = 10
/** Passages of the smallest corpus: among a few passages no term is rare. */
const PASSAGES_LEAST = 20
/** Rare terms of which pairs are made. */
const RARE_MAX = 3

const CLAUSE_END = /[?!;:,()\n？！；：，（）。؟،]|\.\s|\b(?:and|or|but|versus|vs|as well as)\b/i

/** What a question asks for, in terms. */
export interface Question {
  /** In NFC, as documents are read. */
  readonly text: string
  readonly language: Language
  /** Each term once, with the first word that it was. */
  readonly terms: ReadonlyMap<string, string>
  /** Parts of a question that asks for several things; empty where it asks for one. */
  readonly clauses: readonly Clause[]
  /** The text to search by where the question itself says too little. */
  readonly leaning: string | undefined
}

/** A part of a question that can be answered by itself. */
export interface Clause {
  readonly text: string
  readonly terms: readonly string[]
  /** Each term with the word that it belongs to. */
  readonly words: ReadonlyMap<string, string>
}

/** Takes a question apart. Yields so that it can be done in turns: one that was pasted may have thousands of words and clauses. */
export function* takeApart({
  question: asked,
  context,
}: Pick<ResearchRequest, 'question' | 'context'>): Generator<void, Question> {
  const question = asked.normalize('NFC')
  const language = languageOf(question)
  const terms = new Map<string, string>()
  let words = 0
  for (const { term, word } of askedTermsOf(question, language)) {
    if (!terms.has(term)) terms.set(term, word)
    if (terms.size >= TERMS_MAX) break
    if (++words % TURN_WORDS === 0) yield
  }
  const clauses = yield* clausesOf(question, language)
  const before = context.findLast(({ role }) => role === 'user')?.text
  const leans = new Set(terms.values()).size < LEANING_TERMS && before !== undefined
  return {
    text: question,
    language,
    terms,
    clauses: clauses.length > 1 ? clauses : [],
    leaning: leans ? `${before} ${question}` : undefined,
  }
}

function* clausesOf(question: string, language: Language): Generator<void, Clause[]> {
  const clauses: Clause[] = []
  for (const [at, text] of question.split(CLAUSE_END).entries()) {
    clauses.push(...clauseOf(text, language))
    if (clauses.length >= CLAUSES_MAX) break
    if (at % TURN_CLAUSES === 0) yield
  }
  return clauses
}

/** One word alone asks for nothing. */
function clauseOf(text: string, language: Language): Clause[] {
  const words = new Map<string, string>()
  for (const { term, word } of askedTermsOf(text, language)) if (!words.has(term)) words.set(term, word)
  return new Set(words.values()).size > 1 ? [{ text: text.trim(), terms: [...words.keys()], words }] : []
}

/** The same question with other parts, such as a model finds in it. */
export function withParts(question: Question, parts: readonly string[]): Question {
  return { ...question, clauses: parts.flatMap((part) => clauseOf(part, question.language)) }
}

/** The terms of a question and of its parts, each with a word that it was. */
export function vocabularyOf({ terms, clauses }: Question): Map<string, string> {
  const words = new Map(terms)
  for (const clause of clauses)
    for (const [term, word] of clause.words) if (!words.has(term) && words.size < 2 * TERMS_MAX) words.set(term, word)
  return words
}

/** Decides which terms of a question, and of its parts, a text satisfies. */
export function askedTermsIn(question: Question): AskedTerms {
  return new AskedTerms(vocabularyOf(question).keys())
}

/** The form in which a backend is asked for a term: its word, unless the term is a prefix or only a part of the word. */
export function searchedAs(term: string, word: string): string {
  return termOf(word) === term ? word : term
}

/** Words with a capital or a digit within a sentence, and the number that belongs to one: `Debian 13`, `Wayland`, `2.39`. */
const NAME = /(?<=[\p{Ll}\p{N},;:)’']\s)(?:\p{Lu}[\p{L}\p{N}+#-]+\s+\d[\d.]*\d|\p{Lu}[\p{L}\p{N}+#-]+|\d+(?:\.\d+)+)/gu

/** What a question calls by name: another word cannot stand for it. */
export function namesOf(question: string): string[] {
  return [...question.matchAll(NAME)].map(([name]) => name)
}

/** A word of a question for which no other word can stand, in any language: an identifier, a version, a year, a number of a name. */
export interface Anchor {
  /** As it stands in the question. */
  readonly text: string
  readonly pattern: RegExp
}

const IDENTIFIER = /(?<![\w-])(?:--[a-z][\w-]+|\w+(?:_\w+)+|[a-z]+\d*[A-Z]\w*|\p{Lu}[\p{L}\d]*\/\d[\d.]*)/gu
const VERSION = /(?<![\w.,])\d+(?:\.\d+)+(?![\w])/g
const YEAR = /(?<![\w.,-])(?:1[5-9]|20)\d\d(?![\w.,]\d|\w)/g
const NUMBERED = /(\p{Lu}[\p{L}+#]+)\s+(\d{1,3})(?![\w.,]\d|\w)/gu
const VERSIONED = /([\p{L}][\p{L}\p{N}+#-]+)\s+\d+(?:\.\d+)+(?![\w])/gu
const ANCHORS_MAX = 8

/** The anchors of a question, in the order of their kinds. */
export function anchorsOf(question: string): Anchor[] {
  const whole = [IDENTIFIER, VERSION, YEAR].flatMap((pattern) =>
    [...question.matchAll(pattern)].map(([found]) => found),
  )
  const anchors = whole.map((text) => ({ text, pattern: exactly(text) }))
  for (const [text, name = '', number = ''] of question.matchAll(NUMBERED))
    anchors.push({ text, pattern: numbered(name, number) })
  for (const [text, name = ''] of question.matchAll(VERSIONED))
    if (termOf(name)) anchors.push({ text, pattern: exactly(name) })
  return anchors.slice(0, ANCHORS_MAX)
}

/** A number next to its name (`SQLite 5`, `Debian v7`), or as the first cell of a row (`3.0.0 | 2020-07-07`). */
function numbered(name: string, number: string): RegExp {
  const own = name.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&')
  return new RegExp(
    `(?:${own}[^\\p{L}\\p{N}]{1,3}(?:version |release |v\\.? ?)?|^\\W?v?)${number}(?:\\.[\\dx]+)*(?![\\p{L}\\p{N}])`,
    'imu',
  )
}

/** The same characters, not within a longer word or number; a version stands for its own minor versions. */
function exactly(text: string): RegExp {
  const escaped = text.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&')
  return new RegExp(`(?<![\\p{L}\\p{N}_.]|\\p{N},)v?${escaped}(?![\\p{L}\\p{N}_]|,\\p{N})`, 'iu')
}

/** How much each term of a question says: a rare one more than a common one. */
export type Weights = ReadonlyMap<string, number>

/** Weights of terms by how many passages hold them (the idf of BM25). */
export function weightsOf(terms: readonly string[], { passages, holding }: TermWeights): Weights {
  const all = Math.max(PASSAGES_LEAST, passages)
  return new Map(terms.map((term, at) => [term, idf(all, holding[at] ?? 0)]))
}

/** The idf of BM25 in the form that is never negative. */
export function idf(passages: number, holding: number): number {
  return Math.log(1 + (passages - holding + 0.5) / (holding + 0.5))
}

/** Texts to search by where no model has thought of any: the question, its clauses, pairs of its rarest terms. */
export function queriesOf(question: Question, weights: Weights, isHeld: (term: string) => boolean): string[] {
  const rare = [...question.terms]
    .filter(([term]) => isHeld(term))
    .toSorted(([a], [b]) => (weights.get(b) ?? 0) - (weights.get(a) ?? 0) || (a < b ? -1 : 1))
    .slice(0, RARE_MAX)
    .map(([, word]) => word)
  const pairs = [...new Set(rare)].flatMap((a, at, all) => all.slice(at + 1).map((b) => `${a} ${b}`))
  const leaning = question.leaning === undefined ? [] : [question.leaning]
  return distinct([question.text, ...leaning, ...question.clauses.map(({ text }) => text), ...pairs])
}

/** Texts that search for something else than those before them. */
export function distinct(queries: readonly string[], known: readonly string[] = []): string[] {
  const seen = new Set(known.map(keyOf))
  return queries.filter((query) => {
    const key = keyOf(query)
    if (key === '' || seen.has(key)) return false
    seen.add(key)
    return true
  })
}

function keyOf(query: string): string {
  return [...termSet(query)].toSorted().join(' ')
}
