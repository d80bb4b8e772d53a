import type { ResearchRequest } from '#schemas/kinds/research.ts'
import type { TermCounts } from '#shared/search/search.ts'
import { type Language, languageOf, QueryTerms, queryTermsOf } from '#shared/search/text/query-terms.ts'
import { termOf, termSet } from '#shared/search/text/terms.ts'

const CLAUSES_MAX = 6
const TERMS_MAX = 40
/**
 * Minimum terms of a question. With fewer terms, a question is treated as a follow-up of the previous user turn, as in
 * "and in 2024?".
 */
const OWN_TERMS_MIN = 3
const WORDS_PER_YIELD = 50
const CLAUSES_PER_YIELD = 10
/**
 * Minimum corpus size that is assumed when weights are computed. Otherwise a term that occurs in most
 * passages of a small corpus would have nearly no weight.
 */
const PASSAGES_MIN = 20
const RARE_MAX = 3

const CLAUSE_END = /[?!;:,()\n？！；：，（）。؟،]|\.\s|\b(?:and|or|but|versus|vs|as well as)\b/i

export interface Question {
  readonly text: string
  readonly language: Language
  /** Maps each term to the word of the question from which the term was derived, or to the first of several such words. */
  readonly terms: ReadonlyMap<string, string>
  readonly clauses: readonly Clause[]
  /** The previous user turn followed by the question, as a further query. Undefined if the question has enough words of its own. */
  readonly contextQuery: string | undefined
}

export interface Clause {
  readonly text: string
  readonly terms: readonly string[]
  readonly words: ReadonlyMap<string, string>
}

/** Divides a question into terms and clauses. Yields to the event loop, because a pasted question may have thousands of words. */
export function* parseQuestion({
  question: asked,
  context,
}: Pick<ResearchRequest, 'question' | 'context'>): Generator<void, Question> {
  const question = asked.normalize('NFC')
  const language = languageOf(question)
  const terms = new Map<string, string>()
  let words = 0
  for (const { term, word } of queryTermsOf(question, language)) {
    if (!terms.has(term)) terms.set(term, word)
    if (terms.size >= TERMS_MAX) break
    if (++words % WORDS_PER_YIELD === 0) yield
  }
  const clauses = yield* clausesOf(question, language)
  const before = context.findLast(({ role }) => role === 'user')?.text
  const leans = new Set(terms.values()).size < OWN_TERMS_MIN && before !== undefined
  return {
    text: question,
    language,
    terms,
    clauses: clauses.length > 1 ? clauses : [],
    contextQuery: leans ? `${before} ${question}` : undefined,
  }
}

function* clausesOf(question: string, language: Language): Generator<void, Clause[]> {
  const clauses: Clause[] = []
  for (const [at, text] of question.split(CLAUSE_END).entries()) {
    clauses.push(...clauseOf(text, language))
    if (clauses.length >= CLAUSES_MAX) break
    if (at % CLAUSES_PER_YIELD === 0) yield
  }
  return clauses
}

/**
 * Makes a clause. A text with fewer than two different words gives no clause, because a single word is not a question.
 */
function clauseOf(text: string, language: Language): Clause[] {
  const words = new Map<string, string>()
  for (const { term, word } of queryTermsOf(text, language)) if (!words.has(term)) words.set(term, word)
  return new Set(words.values()).size > 1 ? [{ text: text.trim(), terms: [...words.keys()], words }] : []
}

export function withParts(question: Question, parts: readonly string[]): Question {
  return { ...question, clauses: parts.flatMap((part) => clauseOf(part, question.language)) }
}

export function vocabularyOf({ terms, clauses }: Question): Map<string, string> {
  const words = new Map(terms)
  for (const clause of clauses)
    for (const [term, word] of clause.words) if (!words.has(term) && words.size < 2 * TERMS_MAX) words.set(term, word)
  return words
}

export function queryTermsIn(question: Question): QueryTerms {
  return new QueryTerms(vocabularyOf(question).keys())
}

/** Returns the word to search for. If the term is only a part of the word, as in a compound, then the term itself is searched. */
export function searchFormOf(term: string, word: string): string {
  return termOf(word) === term ? word : term
}

/** Matches names within a sentence: capitalized words, optionally followed by a number, and versions. Examples: `Debian 13`, `Wayland`, `2.39`. */
const NAME = /(?<=[\p{Ll}\p{N},;:)’']\s)(?:\p{Lu}[\p{L}\p{N}+#-]+\s+\d[\d.]*\d|\p{Lu}[\p{L}\p{N}+#-]+|\d+(?:\.\d+)+)/gu

/** Matches a platform such as "on Debian" or "which Linux capability". Most documents about a program do not mention the platform, so an answer need not contain it. */
const ENVIRONMENT =
  /\b(?:on|under|in|for) (?:an? |my |the )?(?:Debian|Ubuntu|(?:GNU\/)?Linux|Unix)(?: (?:system|machine|computer|server|box))?(?=\s*[?.,!]|$)|\b(?:[Ww]hich|[Ww]hat|an?) (?:Linux|Unix) (?=\p{Ll})/gu

export function namesOf(question: string): string[] {
  return [...question.replace(ENVIRONMENT, ' ').matchAll(NAME)].map(([name]) => name)
}

/**
 * An exact string of a question: an identifier, a version, a year or a numbered name. An answer, or the text around it, must contain the
 * string. Anchors have no synonyms and are equal in every language.
 */
export interface Anchor {
  readonly text: string
  readonly pattern: RegExp
}

const IDENTIFIER = /(?<![\w-])(?:--[a-z][\w-]+|\w+(?:_\w+)+|[a-z]+\d*[A-Z]\w*|\p{Lu}[\p{L}\d]*\/\d[\d.]*)/gu
/** Matches a hyphenated name followed by a noun for its type, such as `repo-create` in 'the `repo-create` command'. */
const HYPHENATED =
  /(?<![\w-])[a-z]\w*(?:-\w+)+(?=[’'"`]? (?:command|option|directive|setting|flag|subcommand|program|module|function|method|parameter|property|attribute|header)s?\b)/giu
const VERSION = /(?<![\w.,])\d+(?:\.\d+)+(?![\w])/g
const YEAR = /(?<![\w.,-])(?:1[5-9]|20)\d\d(?![\w.,]\d|\w)/g
const NUMBERED = /(\p{Lu}[\p{L}+#]+)\s+(\d{1,3})(?![\w.,]\d|\w)/gu
const VERSIONED = /([\p{L}][\p{L}\p{N}+#-]+)\s+\d+(?:\.\d+)+(?![\w])/gu
/** Matches a number that identifies one member of a series, such as `exit code 9` or `port 25`. A number before a unit is an amount. */
const MEMBER =
  /\b(codes?|status|errors?|signals?|ports?|levels?|runlevels?|layers?|phases?|steps?|stages?|types?|classes|class|RFC|chapters?|sections?) (\d{1,5})(?![\w.,]\d|\w)/gi
const ANCHORS_MAX = 8

/** Returns at most 8 anchors: identifiers, versions, years, members of series, numbered names (`Debian 13`), then products with a version. */
export function anchorsOf(question: string): Anchor[] {
  const whole = [IDENTIFIER, HYPHENATED, VERSION, YEAR].flatMap((pattern) =>
    [...question.matchAll(pattern)].map(([found]) => found),
  )
  const anchors = whole.map((text) => ({ text, pattern: exactly(text) }))
  for (const [text, noun = '', number = ''] of question.matchAll(MEMBER))
    anchors.push({ text, pattern: member(noun, number) })
  for (const [text, name = '', number = ''] of question.matchAll(NUMBERED))
    anchors.push({ text, pattern: numbered(name, number) })
  for (const [text, name = ''] of question.matchAll(VERSIONED))
    if (termOf(name)) anchors.push({ text, pattern: exactly(name) })
  return anchors.slice(0, ANCHORS_MAX)
}

/** Matches a number next to its name (`SQLite 5`, `Debian v7`) or in the first cell of a table row (`3.0.0 | 2020-07-07`). */
function numbered(name: string, number: string): RegExp {
  const own = name.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&')
  return new RegExp(
    `(?:${own}[^\\p{L}\\p{N}]{1,3}(?:version |release |v\\.? ?)?|^\\W?v?(?=[\\d.x]+\\s*[\\t|]))${number}(?:\\.[\\dx]+)*(?![\\p{L}\\p{N}])`,
    'imu',
  )
}

/** Matches a number after its noun (`exit codes 0, 1 and 9`) or at the start of a line (`9 | KILL`). */
function member(noun: string, number: string): RegExp {
  const between = String.raw`(?:[^\p{L}\p{N}\n]|\d+|\b(?:is|of|and|or|to|number|no)\b){1,16}`
  return new RegExp(
    `(?:\\b${noun.replace(/(?:es|s)$/i, '')}(?:es|s)?\\b${between}|^\\W{0,3})(?<!\\d)${number}(?![\\p{L}\\p{N}]|\\.\\d)`,
    'imu',
  )
}

/** Matches a text that is not part of a longer word or number. A version also matches its minor versions: `2.4` matches in `2.4.1`. */
function exactly(text: string): RegExp {
  const escaped = text.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&')
  return new RegExp(`(?<![\\p{L}\\p{N}_.]|\\p{N},)v?${escaped}(?![\\p{L}\\p{N}_]|,\\p{N})`, 'iu')
}

export type Weights = ReadonlyMap<string, number>

export function weightsOf(terms: readonly string[], { passages, holding }: TermCounts): Weights {
  const all = Math.max(PASSAGES_MIN, passages)
  return new Map(terms.map((term, at) => [term, idf(all, holding[at] ?? 0)]))
}

/** Returns the idf of BM25: ln(1 + (N - n + 0.5) / (n + 0.5)), if n of N passages contain the term. The result is never negative. */
export function idf(passages: number, holding: number): number {
  return Math.log(1 + (passages - holding + 0.5) / (holding + 0.5))
}

/**
 * Returns queries that are derived without a model: the question, its clauses, and pairs of its rarest words.
 *
 * @param isHeld Whether the corpus contains a term. Terms that the corpus lacks are not paired.
 */
export function queriesOf(question: Question, weights: Weights, isHeld: (term: string) => boolean): string[] {
  const rare = [...question.terms]
    .filter(([term]) => isHeld(term))
    .toSorted(([a], [b]) => (weights.get(b) ?? 0) - (weights.get(a) ?? 0) || (a < b ? -1 : 1))
    .slice(0, RARE_MAX)
    .map(([, word]) => word)
  const pairs = [...new Set(rare)].flatMap((a, at, all) => all.slice(at + 1).map((b) => `${a} ${b}`))
  const leaning = question.contextQuery === undefined ? [] : [question.contextQuery]
  return distinct([question.text, ...leaning, ...question.clauses.map(({ text }) => text), ...pairs])
}

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
