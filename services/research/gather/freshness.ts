import type { Hit } from '#shared/search/search.ts'

/** Words that ask for the current state. */
const FRESH =
  /\b(?:latest|newest|most recent|recent|recently|current|currently|nowadays|today|up[- ]to[- ]date|this (?:year|month|week)|as of)\b/i
const YEAR = /\b(?:19|20)\d\d\b/g

/** Selects and sorts the hits that have the age a question asks for, best first. */
export type Freshness = <T extends { readonly hit: Hit }>(found: readonly T[]) => T[]

/**
 * Returns a selection by age, if the question asks for one. Words such as "latest" sort the newest first; a year selects hits of that year.
 * Most questions ask for neither and return undefined. Only dates of web pages count, because the date of a local file may be that of its
 * copy.
 */
export function freshnessOf(question: string): Freshness | undefined {
  if (FRESH.test(question)) return newestFirst
  const years = new Set(question.match(YEAR))
  if (years.size === 0) return undefined
  return (found) => found.filter(({ hit }) => years.has(dateOf(hit).slice(0, 4)))
}

function newestFirst<T extends { readonly hit: Hit }>(found: readonly T[]): T[] {
  const dated = found.filter(({ hit }) => dateOf(hit) !== '')
  return dated.toSorted((a, b) => (dateOf(a.hit) === dateOf(b.hit) ? 0 : dateOf(a.hit) < dateOf(b.hit) ? 1 : -1))
}

/** Returns the date of a web page, or an empty string. */
function dateOf({ url, date }: Hit): string {
  return /^https?:/.test(url) ? (date ?? '') : ''
}
