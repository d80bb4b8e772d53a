import type { ResearchRequest } from '#schemas/research/research.ts'
import type { TermCounts } from '#shared/search/search.ts'
import { type Language, languageOf, QueryTerms, queryTermsOf } from '#shared/search/text/query-terms.ts'
import { termOf, termSet } from '#shared/search/text/terms.ts'

/** Maximum clauses of a question that are answered separately. */
const CLAUSES_MAX = 6
/** Maximum terms of a question; later terms are ignored. */
const TERMS_MAX = 40
/** A question with fewer words than this depends on the previous user turn, as in "and in 2024?". */
const OWN_TERMS_MIN = 3
/** Words and clauses between two event-loop yields. */
const WORDS_PER_YIELD = 50
const CLAUSES_PER_YIELD = 10
/** Minimum corpus size assumed for term weights: among a few passages, every term would look rare. */
const PASSAGES_MIN = 20
/** Number of rarest terms that are combined into pairs as search queries. */
const RARE_MAX = 3

const CLAUSE_END = /[?!;:,()\n？！；：，（）。؟،]|\.\s|\b(?:and|or|but|versus|vs|as well as)\b/i

export interface Question {
  /** The question in Unicode NFC, the form in which documents are read. */
  readonly text: string
  readonly language: Language
  /** Term → the first word of the question that has this term. */
  readonly terms: ReadonlyMap<string, string>
  readonly clauses: readonly Clause[]
  /** The previous user turn followed by the question, as one more query. Undefined if the question has enough words of its own. */
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

/** Returns no clause for a text with fewer than two words: one word alone is no question. */
function clauseOf(text: string, language: Language): Clause[] {
  const words = new Map<string, string>()
  for (const { term, word } of queryTermsOf(text, language)) if (!words.has(term)) words.set(term, word)
  return new Set(words.values()).size > 1 ? [{ text: text.trim(), terms: [...words.keys()], words }] : []
}

/** Returns a copy of the question whose clauses are the given parts, such as those of a model's plan. */
export function withParts(question: Question, parts: readonly string[]): Question {
  return { ...question, clauses: parts.flatMap((part) => clauseOf(part, question.language)) }
}

/** Terms of a question and of its clauses, at most 80: term → its first word. */
export function vocabularyOf({ terms, clauses }: Question): Map<string, string> {
  const words = new Map(terms)
  for (const clause of clauses)
    for (const [term, word] of clause.words) if (!words.has(term) && words.size < 2 * TERMS_MAX) words.set(term, word)
  return words
}

/** A matcher that reports which terms of a question and its clauses occur in a text. */
export function queryTermsIn(question: Question): QueryTerms {
  return new QueryTerms(vocabularyOf(question).keys())
}

/** The search text for a term: the word, or the term itself if the term is only a part of the word. */
export function searchFormOf(term: string, word: string): string {
  return termOf(word) === term ? word : term
}

/** Names within a sentence: capitalized words, optionally with a number, and versions. Examples: `Debian 13`, `Wayland`, `2.39`. */
const NAME = /(?<=[\p{Ll}\p{N},;:)’']\s)(?:\p{Lu}[\p{L}\p{N}+#-]+\s+\d[\d.]*\d|\p{Lu}[\p{L}\p{N}+#-]+|\d+(?:\.\d+)+)/gu

/** A system on which something runs. Most documents do not repeat it. */
const ENVIRONMENT =
  /\b(?:on|under|in|for) (?:an? |my |the )?(?:Debian|Ubuntu|(?:GNU\/)?Linux|Unix)(?: (?:system|machine|computer|server|box))?(?=\s*[?.,!]|$)/gu

/** Proper names and versions in a question. No synonym can replace them. */
export function namesOf(question: string): string[] {
  return [...question.replace(ENVIRONMENT, ' ').matchAll(NAME)].map(([name]) => name)
}

/**
 * An exact string of a question that an answer must contain or have around it: an identifier, a version, a year or a numbered name.
 * Anchors have no synonyms and are equal in every language.
 */
export interface Anchor {
  readonly text: string
  readonly pattern: RegExp
}

const IDENTIFIER = /(?<![\w-])(?:--[a-z][\w-]+|\w+(?:_\w+)+|[a-z]+\d*[A-Z]\w*|\p{Lu}[\p{L}\d]*\/\d[\d.]*)/gu
/** A hyphenated name before the noun for it: the `repo-create` command. */
const HYPHENATED =
  /(?<![\w-])[a-z]\w*(?:-\w+)+(?=[’'"`]? (?:command|option|directive|setting|flag|subcommand|program|module|function|method|parameter|property|attribute|header)s?\b)/giu
const VERSION = /(?<![\w.,])\d+(?:\.\d+)+(?![\w])/g
const YEAR = /(?<![\w.,-])(?:1[5-9]|20)\d\d(?![\w.,]\d|\w)/g
const NUMBERED = /(\p{Lu}[\p{L}+#]+)\s+(\d{1,3})(?![\w.,]\d|\w)/gu
const VERSIONED = /([\p{L}][\p{L}\p{N}+#-]+)\s+\d+(?:\.\d+)+(?![\w])/gu
const ANCHORS_MAX = 8

/** Returns at most 8 anchors: identifiers, versions, years, numbered names (`Debian 13`), then products with a version. */
export function anchorsOf(question: string): Anchor[] {
  const whole = [IDENTIFIER, HYPHENATED, VERSION, YEAR].flatMap((pattern) =>
    [...question.matchAll(pattern)].map(([found]) => found),
  )
  const anchors = whole.map((text) => ({ text, pattern: exactly(text) }))
  for (const [text, name = '', number = ''] of question.matchAll(NUMBERED))
    anchors.push({ text, pattern: numbered(name, number) })
  for (const [text, name = ''] of question.matchAll(VERSIONED))
    if (termOf(name)) anchors.push({ text, pattern: exactly(name) })
  return anchors.slice(0, ANCHORS_MAX)
}

/** Matches a number next to its name (`SQLite 5`, `Debian v7`) or as the first cell of a row (`3.0.0 | 2020-07-07`). */
function numbered(name: string, number: string): RegExp {
  const own = name.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&')
  return new RegExp(
    `(?:${own}[^\\p{L}\\p{N}]{1,3}(?:version |release |v\\.? ?)?|^\\W?v?(?=[\\d.x]+\\s*[\\t|]))${number}(?:\\.[\\dx]+)*(?![\\p{L}\\p{N}])`,
    'imu',
  )
}

/** Matches a text, but not inside a longer word or number. A version also matches its minor versions: `2.4` matches in `2.4.1`. */
function exactly(text: string): RegExp {
  const escaped = text.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&')
  return new RegExp(`(?<![\\p{L}\\p{N}_.]|\\p{N},)v?${escaped}(?![\\p{L}\\p{N}_]|,\\p{N})`, 'iu')
}

/** Term → its inverse document frequency (idf). A rare term has a larger weight than a common one. */
export type Weights = ReadonlyMap<string, number>

/** Computes idf weights from the number of passages that contain each term. */
export function weightsOf(terms: readonly string[], { passages, holding }: TermCounts): Weights {
  const all = Math.max(PASSAGES_MIN, passages)
  return new Map(terms.map((term, at) => [term, idf(all, holding[at] ?? 0)]))
}

/** The idf of BM25: ln(1 + (N - n + 0.5) / (n + 0.5)) for n of N passages, which is never negative. */
export function idf(passages: number, holding: number): number {
  return Math.log(1 + (passages - holding + 0.5) / (holding + 0.5))
}

/**
 * Queries derived without a model: the question, its clauses, and pairs of its rarest words.
 *
 * @param isHeld Whether the corpus contains a term; other terms are not paired.
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

/** Removes queries with the same terms as an earlier or a known query, and queries without terms. */
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
