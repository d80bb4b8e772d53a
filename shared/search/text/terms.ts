import { stemmer } from 'stemmer'
import { folded } from './fold.ts'
import { type Piece, piecesOf, spansOf } from './scripts.ts'

/*
 * Splits a text into search terms. English words are stemmed, so that `retry` finds `retries`, and stop words are omitted. In a script
 * without spaces, the terms are n-grams of two or three characters. Words are not used there, because a word segmenter may split a question
 * and a document differently. Example: `長江は長い` has `長江`, `江は`, `は長`, `長い`.
 *
 * The index, passages and (through `query-terms.ts`) questions all use these terms.
 */

const WORD = /[\p{L}\p{N}][\p{L}\p{N}\p{M}_\u200c\u200d]*(?:['’.-][\p{L}\p{N}][\p{L}\p{N}\p{M}\u200c\u200d]*)*/gu
/** French and Italian articles and pronouns that are attached to the next word by an apostrophe. */
const ELISION = /^(?:l|d|qu|dell|nell|all|sull|dall|un)['’](?=\p{L}{2})/iu
const ARABIC_ARTICLE = /^(?:و|ب|ك|ف)?ال(?=\p{L}{3})/u
const CHARS_MAX = 64
/** Maximum words in the cache that maps words to terms. Most texts consist of a few thousand different words. */
const KNOWN_MAX = 20_000

const STOP = new Set(
  `a about above after again against all also although am among an and any are aren't as at be became because been before being
  below between both but by can can't cannot could couldn't did didn't do does doesn't doing don't done down during each either
  else ever every few for from further get gets give gives given go goes got had has hasn't have haven't having he her here hers
  him his how however i if in instead into is isn't it it's its itself just know let like made make makes many may me might more
  most much must my need needs neither no nor not of off often on once one only or other others our out over own per please
  rather say says shall she should since so some such take takes tell than that that's the their them then there these they this
  those though through to too under until up upon us use used uses using very via was wasn't way we were what what's when where
  whether which while who whom whose why will with within without won't would yes yet you your explain describe detail details
  happen happens mean means work works thing things`
    .split(/\s+/)
    .filter((word) => word !== ''),
)

export interface Term {
  readonly word: string
  readonly term: string
}

export function* termsOf(text: string): Generator<Term> {
  for (const { text: word, spanLength } of wordsOf(text)) {
    if (spanLength > 0) {
      for (const term of spansOf(folded(word), spanLength)) yield { word: term, term }
      continue
    }
    const term = termOf(word)
    if (term !== undefined) yield { word, term }
  }
}

/**
 * Yields the terms under which a text is indexed. For scripts without spaces, n-grams that are one character shorter are added, because a question
 * may be that short.
 */
export function* indexTermsOf(text: string): Generator<string> {
  for (const { text: word, spanLength } of wordsOf(text)) {
    if (spanLength > 0) {
      const plain = folded(word)
      yield* spansOf(plain, spanLength)
      if (plain.length >= spanLength) yield* spansOf(plain, spanLength - 1)
      continue
    }
    const term = termOf(word)
    if (term !== undefined) yield term
  }
}

export function* wordsOf(text: string): Generator<Piece> {
  for (const [found] of text.matchAll(WORD))
    for (const piece of piecesOf(found))
      if (piece.spanLength > 0) yield piece
      else for (const word of partsOf(piece.text)) yield { text: word, spanLength: 0 }
}

const known = new Map<string, string | undefined>()

export function termOf(word: string): string | undefined {
  if (known.has(word)) return known.get(word)
  const term = stemmed(word)
  if (known.size >= KNOWN_MAX) known.clear()
  known.set(word, term)
  return term
}

function stemmed(word: string): string | undefined {
  const lower = folded(word.replace(ELISION, '')).replaceAll('’', "'").replace(ARABIC_ARTICLE, '')
  if (STOP.has(lower)) return undefined
  const bare = lower.replace(/'s$|'/g, '').slice(0, CHARS_MAX)
  if (bare === '' || (bare.length === 1 && !/\p{N}|[^\x20-\x7e]/u.test(bare))) return undefined
  return /^[a-z]+$/.test(bare) ? stemmer(bare) : bare
}

/** Returns the title of a source and the words of its URL. A URL such as `celery/userguide/configuration.rst` often names the subject. */
export function subjectOf({ title, url }: { readonly title: string; readonly url: string }): string {
  const path = url.replace(/^[a-z]+:\/\//i, '').replace(/[?#].*$/, '')
  const words = path.replace(/\.(?:html?|md|markdown|rst|txt|pdf|docx)$/i, '').split(/[/%]|\.(?=\p{L})/u)
  return `${title} ${words.join(' ')}`.slice(0, SUBJECT_CHARS_MAX)
}

const SUBJECT_CHARS_MAX = 400

export function termSet(text: string): Set<string> {
  const terms = new Set<string>()
  for (const { term } of termsOf(text)) terms.add(term)
  return terms
}

/**
 * Splits a compound name into its parts, so that `JOB_LEASE_MS`, `bodyLimit` and `KeepAliveTimeout` are found by each of their words.
 * Numbers (`1.5`) stay whole, and so do capitalised names of two parts (`PostgreSQL`, `JavaScript`), which are one word for a reader.
 */
function partsOf(found: string): string[] {
  const joined =
    JOINED.test(found) && !/^[\p{N}.]+$/u.test(found) ? found.split(/[_.-]+/).filter((part) => part !== '') : [found]
  return joined.flatMap((part) => (CAMEL.test(part) ? part.split(HUMP) : [part]))
}

const JOINED = /[_.-]/
const CAMEL = /^(?:[a-z]{2,}(?:[A-Z][a-z0-9]+)+|(?:[A-Z][a-z0-9]+){3,})$/
const HUMP = /(?<=[a-z0-9])(?=[A-Z])/
