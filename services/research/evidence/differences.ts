/*
 * Finds sources that contradict each other. Two quotes of different sources are reported as a difference if both concern one part of the question and
 * give different values in one unit. Example: "the limit is 10 MB" and "the limit is 20 MB". The reader decides which is right.
 */
import type { Candidate } from './evidence.ts'

export interface Difference {
  readonly answer: Candidate
  readonly other: Candidate
  readonly values: readonly [readonly string[], readonly string[]]
}

const DIFFERENCES_MAX = 3
/**
 * A quote is compared with the answer only if both concern the same subject. Scores are the log odds that a text answers the question (`scoreOf` in
 * signals.ts). The score of the quote must be at most `SCORE_LOSS_MAX` lower than that of the answer. The quote must contain at least `SHARED_MIN` of the
 * terms that the answer and the question share. The quote must also contain at least `OWN_MIN` of all terms of the question.
 */
const SCORE_LOSS_MAX = 1.5
const SHARED_MIN = 0.75
const OWN_MIN = 0.3
/** Maximum values of a compared quote. A quote with more values is probably a table or a list of versions. */
const VALUES_MAX = 3

const VALUE = /(?<![\p{L}\p{N}_.-])(\p{Sc}?\s?\p{N}+(?:[.,]\p{N}+)*)[\s-]?(%|\p{L}+)?/gu
const UNITS: Readonly<Record<string, string>> = Object.fromEntries(
  `ms millisecond milliseconds;s sec second seconds;min minute minutes;h hour hours;day days;week weeks;month months;year years;% percent;
   kb kilobyte kilobytes kib;mb megabyte megabytes mib;gb gigabyte gigabytes gib;tb terabyte terabytes;byte bytes;bit bits;character characters chars;
   line lines;page pages;metre metres meter meters m;km kilometre kilometres kilometer kilometers;kg kilogram kilograms;dollar dollars usd;euro euros eur;
   column columns;row rows;file files;core cores;thread threads;worker workers;process processes;people;member members;copies copy;times time`
    .split(';')
    .flatMap((line) => {
      const [name = '', ...others] = line.trim().split(/\s+/)
      return [name, ...others].map((each) => [each, name])
    }),
)

/** Finds quotes whose values differ from those of the answer's first quote. Returns at most one per source and three in total. */
export function differencesIn(
  question: string,
  terms: ReadonlySet<string>,
  answer: readonly Candidate[],
  candidates: readonly Candidate[],
): Difference[] {
  const [first] = answer
  if (!first) return []
  const own = valuesIn(first.text, question)
  if (own.size === 0 || own.size > VALUES_MAX) return []
  const about = first.terms.intersection(terms)
  const differences: Difference[] = []
  for (const other of candidates) {
    if (differences.length >= DIFFERENCES_MAX || first.score - other.score > SCORE_LOSS_MAX) break
    if (other.source === first.source || differences.some((each) => each.other.source === other.source)) continue
    if (
      other.terms.intersection(terms).size < OWN_MIN * terms.size ||
      other.terms.intersection(about).size < SHARED_MIN * about.size
    )
      continue
    const values = valuesIn(other.text, question)
    if (values.size === 0 || values.size > VALUES_MAX) continue
    const differing = [...own].filter(([unit]) => values.has(unit))
    if (differing.length === 0 || differing.some(([unit, value]) => values.get(unit) === value)) continue
    differences.push({
      answer: first,
      other,
      values: [differing.map(shown), differing.map(([unit]) => shown([unit, values.get(unit) ?? '']))],
    })
  }
  return differences
}

/** Returns the numbers of a text by unit, except numbers in the question. A year without a unit has an empty unit. */
function valuesIn(text: string, question: string): Map<string, string> {
  const values = new Map<string, string>()
  for (const [, number = '', word = ''] of text.matchAll(VALUE)) {
    const bare = number.replace(/,(?=\p{N}{3}(?:\P{N}|$))/gu, '').trim()
    const unit = /^(?:1[5-9]|20)\p{N}\p{N}$/u.test(bare) ? 'year' : UNITS[word.toLowerCase()]
    if (unit !== undefined && !question.includes(number))
      values.set(unit === 'year' && !UNITS[word.toLowerCase()] ? '' : unit, bare)
  }
  return values
}

function shown([unit, value]: readonly [string, string]): string {
  return unit === '' ? value : `${value} ${unit}`
}
