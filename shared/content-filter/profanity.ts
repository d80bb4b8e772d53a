import {
  englishDataset,
  englishRecommendedTransformers,
  type Node,
  RegExpMatcher,
  resolveConfusablesTransformer,
  resolveLeetSpeakTransformer,
  SyntaxKind,
  toAsciiLowerCaseTransformer,
} from 'obscenity'
import { isHighSurrogate } from '#shared/lib/buffers.ts'
import type { ContentFilter } from './content-filter.ts'

/** Maximum length of a checked text, in UTF-16 units. Checking a text of this length takes about 3 ms of CPU time. */
const TEXT_MAX = 16 * 1024
/**
 * Letters that may occur twice in a row. Before its search, the package obscenity reduces a run of equal letters to one letter. A run of one of these
 * letters is reduced to two, because words such as "fellatio" contain them.
 */
const PAIRS = new Set([...'beolsg'].map((letter) => letter.charCodeAt(0)))
const CODE_UNITS = 65_536
let scan: ((text: string) => boolean) | undefined
const DISGUISES = [resolveConfusablesTransformer(), resolveLeetSpeakTransformer(), toAsciiLowerCaseTransformer()]

/**
 * Opens a filter for English profanity, also in common disguises, with the word list of the npm package `obscenity`. The meaning of the text is
 * ignored. Other categories need a classifier, or an upstream that has one.
 */
export function openProfanityFilter(): ContentFilter {
  // Building the prefilter takes 15 ms, so it is built at the first call and then reused.
  scan ??= openScan(TEXT_MAX)
  const mayMatch = scan
  let matcher: RegExpMatcher | undefined
  return {
    classify(text) {
      if (!mayMatch(text.slice(0, TEXT_MAX))) return { detected: [] }
      matcher ??= new RegExpMatcher({ ...englishDataset.build(), ...englishRecommendedTransformers })
      return { detected: matcher.hasMatch(text.slice(0, TEXT_MAX)) ? ['profanity'] : [] }
    },
  }
}

/**
 * Creates a prefilter, which returns false for most texts without profanity, so that the slow matcher need not search them. The prefilter returns true
 * for every text in which obscenity's English matcher finds a word.
 *
 * The matcher walks the text twice and then searches it once for each of 119 patterns, which takes 46 µs for 256 characters and 280 µs for 2,000. The
 * prefilter walks the text once, with a table, and searches once for all patterns, which takes 3 µs and 22 µs.
 *
 * @param textMax Maximum text length, in UTF-16 units
 */
function openScan(textMax: number): (text: string) => boolean {
  const plain = Uint16Array.from({ length: CODE_UNITS }, (_, unit) => undisguise(unit))
  const patterns = englishDataset.build().blacklistedTerms.map(({ pattern }) => {
    const [start, end] = [pattern.requireWordBoundaryAtStart, pattern.requireWordBoundaryAtEnd]
    return `${start ? '\\b' : ''}${pattern.nodes.map(sourceOf).join('')}${end ? '\\b' : ''}`
  })
  const any = new RegExp(patterns.join('|'), 's')
  const units = new Uint16Array(textMax)
  const bytes = Buffer.from(units.buffer)
  return (text) => any.test(bytes.toString('utf16le', 0, 2 * writePlain(text, plain, units)))
}

/**
 * Writes a text to `units` after replacing disguised letters, such as `@` for `a`, and removing repeated letters.
 *
 * @returns Number of units written
 */
function writePlain(text: string, plain: Uint16Array, units: Uint16Array): number {
  let written = 0
  let last = -1
  let repeats = 0
  for (let at = 0; at < text.length; at++) {
    const read = text.charCodeAt(at)
    const unit = isHighSurrogate(read) ? undisguise(text.codePointAt(at++) ?? 0) : (plain[read] ?? 0)
    repeats = unit === last ? repeats + 1 : 0
    last = unit
    if (repeats === 0 || (repeats === 1 && PAIRS.has(unit))) units[written++] = unit
  }
  return written
}

function undisguise(point: number): number {
  let plain: number | undefined = point
  for (const { transform } of DISGUISES) plain = plain === undefined ? undefined : transform(plain)
  // Characters outside ASCII become 0, because all words of the list are ASCII.
  return plain === undefined || plain >= CODE_UNITS ? 0 : plain
}

function sourceOf(node: Node): string {
  if (node.kind === SyntaxKind.Optional) return `(?:${sourceOf(node.childNode)})?`
  if (node.kind !== SyntaxKind.Literal) return '.'
  return node.chars.map((char) => `\\u${char.toString(16).padStart(4, '0')}`).join('')
}
