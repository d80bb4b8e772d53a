export interface Piece {
  readonly text: string
  /** Length in UTF-16 units of the n-grams into which this run of letters is divided. 0 for a word, which is not divided. */
  readonly spanLength: number
}

/**
 * Scripts whose runs are divided into n-grams of two characters. Korean has spaces, but attaches particles to words, so that n-grams find more
 * matches.
 */
const EAST = String.raw`\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Bopomofo}\u30fc`
/** Scripts without spaces whose words are found by the library ICU. */
const SOUTH = String.raw`\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}`
/** Scripts without spaces whose words the library ICU cannot find. */
const UNDIVIDED = String.raw`\p{Script=Javanese}\p{Script=Balinese}\p{Script=Sundanese}\p{Script=Tai_Tham}\p{Script=Tai_Le}\p{Script=New_Tai_Lue}\p{Script=Tai_Viet}\p{Script=Cham}\p{Script=Tibetan}`

const RUN = new RegExp(`[${EAST}]+|[${SOUTH}${UNDIVIDED}]+|[^${EAST}${SOUTH}${UNDIVIDED}]+`, 'gu')
const ANY = new RegExp(`[${EAST}${SOUTH}${UNDIVIDED}]`, 'u')
const EASTERN = new RegExp(`^[${EAST}]`, 'u')
const UNDIVIDED_LETTER = new RegExp(`[${UNDIVIDED}]`, 'u')
const EAST_SPAN = 2
const SOUTH_SPAN = 3

export function piecesOf(found: string): Piece[] {
  if (!ANY.test(found)) return [{ text: found, spanLength: 0 }]
  return (found.match(RUN) ?? []).map((text) => {
    const spanLength = ANY.test(text) ? (EASTERN.test(text) ? EAST_SPAN : SOUTH_SPAN) : 0
    return { text, spanLength }
  })
}

/** Yields the overlapping n-grams of a run of letters. A run that is at most as long as one n-gram is yielded whole. */
export function* spansOf(run: string, length: number): Generator<string> {
  if (run.length <= length) return yield run
  const characters = /[\ud800-\udfff]/.test(run) ? [...run] : run
  for (let at = 0; at + length <= characters.length; at++) {
    const span = characters.slice(at, at + length)
    yield typeof span === 'string' ? span : span.join('')
  }
}

/**
 * Whether a text has letters of a script whose words cannot be separated. If a source in such a script lacks a word of the question, then it may be
 * relevant nevertheless.
 */
export function isUndivided(text: string): boolean {
  return UNDIVIDED_LETTER.test(text)
}
