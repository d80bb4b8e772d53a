import { folded } from './fold.ts'
import { spansOf } from './scripts.ts'
import { LATIN_STOP_WORDS, SCRIPT_STOP_WORDS } from './stop-words.ts'
import { synonymsOf } from './synonyms.ts'
import { type Term, termOf, termsOf, wordsOf } from './terms.ts'

/*
 * The search terms of a question. Documents are split into terms without regard to their language. A question is split by its
 * language, because every needless word lowers the score of the right passage.
 *
 * English: the terms of `terms.ts`.
 *
 * Other languages with spaces: the words without stop words, as prefixes. `Kilometern` becomes `kilome*`, which matches `Kilometer`.
 * Prefixes replace a stemmer for each language with about the same quality (McNamee and Mayfield 2004).
 *
 * Scripts without spaces: the words of `Intl.Segmenter` without stop words, each as its spans, and single Han characters. So `長度`
 * matches `全長` in part.
 */

/** Marks a term as a prefix of terms. No term of a document contains it. */
const PREFIX_MARK = '*'
/** UTF-16 units of a prefix: of words up to 5, up to 8, and longer ones. */
const PREFIX_SHORT = 4
const PREFIX_MIDDLE = 5
const PREFIX_LONG = 6
/** Words by which the language of a question is recognized. */
const WORDS_MAX = 60
/** A question whose letters are of another script than Latin to this share is not English. */
const OTHER_SCRIPT_SHARE = 0.3

const KOREAN_ENDING =
  /(?<=[\p{Script=Hangul}]{2})(?:에서는|에서|으로|이란|에게|까지|부터|입니까|인가요|이다|의|은|는|이|가|을|를|에|로|와|과|도|만)$/u
const HAN = /^\p{Script=Han}$/u
const HIRAGANA_SHORT = /^\p{Script=Hiragana}{1,2}$/u

const latin = new Map(Object.entries(LATIN_STOP_WORDS).map(([language, words]) => [language, setOf(words)]))
const english = latin.get('en') ?? new Set()
const ofScripts = setOf(Object.values(SCRIPT_STOP_WORDS).join(' '))
const segmenter = new Intl.Segmenter('und', { granularity: 'word' })

/** How the words of a question become terms. */
export interface Language {
  readonly isEnglish: boolean
  readonly stopWords: ReadonlySet<string>
}

const ENGLISH: Language = { isEnglish: true, stopWords: english }

/** The language of a question, by its script and its stop words. Without a sign of another language a question is English. */
export function languageOf(question: string): Language {
  const letters = question.match(/\p{L}/gu) ?? []
  const other = letters.filter((letter) => !/\p{Script=Latin}/u.test(letter)).length
  if (other > OTHER_SCRIPT_SHARE * letters.length) return { isEnglish: false, stopWords: ofScripts }
  const words: string[] = []
  for (const { text } of wordsOf(question)) {
    words.push(...folded(text).split(/['’]/))
    if (words.length >= WORDS_MAX) break
  }
  const found = [...latin].map(([name, stops]) => ({
    name,
    stops,
    hits: words.filter((word) => stops.has(word)).length,
  }))
  const most = Math.max(...found.map(({ hits }) => hits))
  const best = found.filter(({ hits }) => hits === most)
  if (most > 0 && best.some(({ name }) => name === 'en')) return ENGLISH
  if (most === 0 && !/[^\p{ASCII}’‘“”–—…]/u.test(question)) return ENGLISH
  const stopWords = most === 0 ? [] : best.flatMap(({ stops }) => [...stops])
  return { isEnglish: false, stopWords: new Set(stopWords) }
}

/** Phrases of stop words and common verbs that ask for something, with the word that texts use for it. */
const PHRASES: readonly (readonly [RegExp, string])[] = [
  [/\b(?:at most|no more than|upper (?:bound|limit)|up to how)\b/i, 'maximum'],
  [/\b(?:at least|no less than|lower (?:bound|limit))\b/i, 'minimum'],
  [/\bhow (?:big|large)\b/i, 'size'],
  [/\b(?:come|came|comes) out\b/i, 'released'],
  [/\b(?:turn|turned|turning|switch|switched|switching) (?:it |me |them )?on\b/i, 'enable'],
  [/\b(?:turn|turned|turning|switch|switched|switching) (?:it |me |them )?off\b|\bget rid of\b/i, 'disable'],
  [/\bset(?:ting)? up\b/i, 'configure'],
  [/\bout of the box\b|\bfreshly installed\b|\bunless (?:I|you|one) changes? (?:it|that|this)\b/i, 'default'],
]

/** The terms that a text of a question asks for, in order, with repetitions. */
export function* queryTermsOf(text: string, language: Language): Generator<Term> {
  if (language.isEnglish) {
    let plain = text
    for (const [phrase, word] of PHRASES) plain = plain.replace(phrase, word)
    return yield* termsOf(plain)
  }
  for (const { text: word, spanLength } of wordsOf(text)) {
    if (spanLength > 0) yield* queryTermsOfRun(word, spanLength)
    else {
      const asked = queryTermsOfWord(word, language)
      if (asked !== undefined) yield { word, term: asked }
    }
  }
}

function* queryTermsOfRun(run: string, spanLength: number): Generator<Term> {
  for (const { segment } of segmenter.segment(run)) {
    const word = folded(segment).replace(KOREAN_ENDING, '')
    if (ofScripts.has(word) || ofScripts.has(folded(segment)) || HIRAGANA_SHORT.test(word)) continue
    for (const term of spansOf(word, spanLength)) yield { word: segment, term }
    if (word.length > 1) for (const character of word) if (HAN.test(character)) yield { word: segment, term: character }
  }
}

function queryTermsOfWord(word: string, { stopWords }: Language): string | undefined {
  const plain = folded(word)
  if (stopWords.has(plain) || stopWords.has(plain.replace(/^[^'’]*['’]/, ''))) return undefined
  const term = termOf(word)
  if (term === undefined || /\p{N}/u.test(term)) return term
  const isLatin = /^\p{Script=Latin}/u.test(term)
  if (term.length < PREFIX_SHORT) return isLatin || term.length < 3 ? term : term + PREFIX_MARK
  if (term.length > 8) return term.slice(0, PREFIX_LONG) + PREFIX_MARK
  if (term.length > 5) return term.slice(0, PREFIX_MIDDLE) + PREFIX_MARK
  // A vowel at the end of a short word is an ending as often as not.
  const isEnding = term.length === PREFIX_SHORT && /[aeiouyаеиоуыэюяαεηιουω]$/u.test(term)
  return term.slice(0, isEnding ? PREFIX_SHORT - 1 : PREFIX_SHORT) + PREFIX_MARK
}

/** The word of a term that is a prefix; undefined for any other term. */
export function prefixOf(term: string): string | undefined {
  return term.endsWith(PREFIX_MARK) ? term.slice(0, -PREFIX_MARK.length) : undefined
}

const NONE: readonly string[] = []

/** Decides which terms of a question a text satisfies. */
export class QueryTerms {
  readonly #exact = new Set<string>()
  readonly #prefixes = new Set<string>()
  readonly #characters = new Set<string>()
  /** Terms of the question by the terms that texts may use for them. */
  readonly #similar = new Map<string, string[]>()

  constructor(terms: Iterable<string>) {
    for (const term of terms) {
      const prefix = prefixOf(term)
      if (prefix !== undefined) this.#prefixes.add(prefix)
      else if (term.length === 1 && /[^\p{ASCII}]/u.test(term)) this.#characters.add(term)
      else this.#exact.add(term)
      for (const other of synonymsOf(term))
        if (other !== term) this.#similar.set(other, [...(this.#similar.get(other) ?? []), term])
    }
  }

  /** Terms of the question that a term of a text satisfies, besides the same term. */
  *matching(term: string): Generator<string> {
    if (this.#prefixes.size > 0) {
      for (let length = PREFIX_SHORT - 1; length <= PREFIX_LONG; length++) {
        const prefix = term.slice(0, length)
        if (prefix.length === length && this.#prefixes.has(prefix)) yield prefix + PREFIX_MARK
      }
    }
    if (this.#characters.size > 0 && term.length > 1 && term.length <= 3)
      for (const character of term) if (this.#characters.has(character)) yield character
    if (this.#exact.size > 0 && term.length === 3 && /[^\p{ASCII}]/u.test(term))
      for (const part of [term.slice(0, 2), term.slice(1)]) if (this.#exact.has(part)) yield part
  }

  /** Terms of the question for which a text may use this term. */
  similar(term: string): readonly string[] {
    return this.#similar.get(term) ?? NONE
  }

  /** The terms of a text, and those of the question that it satisfies. */
  termsIn(text: string): Set<string> {
    const held = new Set<string>()
    for (const { term } of termsOf(text)) {
      if (held.has(term)) continue
      held.add(term)
      for (const asked of this.matching(term)) held.add(asked)
    }
    return held
  }
}

function setOf(words: string): Set<string> {
  return new Set(words.split(/\s+/).map(folded))
}
