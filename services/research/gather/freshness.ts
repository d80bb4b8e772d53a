import type { Hit } from '#shared/search/search.ts'

/** Words that ask for what holds today. */
const FRESH =
  /\b(?:latest|newest|most recent|recent|recently|current|currently|nowadays|today|up[- ]to[- ]date|this (?:year|month|week)|as of)\b/i
const YEAR = /\b(?:19|20)\d\d\b/g

/** Gives what is as new as a question asks for, best first. */
export type Freshness = <T extends { readonly hit: Hit }>(found: readonly T[]) => T[]

/**
 * What a question asks for of the age of its sources: the newest first, or those of the years that it names; undefined where it asks for
 * neither, as most do. Only pages of the web count: the date of a file is that of its last change, or of its copy.
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

/** Empty where there is none that counts. */
function dateOf({ url, date }: Hit): string {
  return /^https?:/.test(url) ? (date ?? '') : ''
}
