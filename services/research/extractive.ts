import type { Snapshot } from '#shared/search/search.ts'
import type { Claim, Draft } from './draft.ts'
import type { Candidate, Evidence } from './evidence/evidence.ts'

/** What relevance counts for against saying something new (maximal marginal relevance). */
const LAMBDA = 0.8
const PER_SOURCE_MAX = 7
/** Sentences that are compared with those already chosen, best first. */
const POOL_MAX = 300
/** A sentence that scores less than this share of the best one is beside the point. */
const SHARE_MIN = 0.25
const SUMMARY_MAX = 3

/** The writer without a model: the sentences that answer best, verbatim. @param claimsMax Sentences of the report. */
export function writeExtractive({ candidates, wanted, gaps }: Evidence, claimsMax: number): Draft {
  const chosen = chooseQuotes(candidates, wanted, claimsMax)
  const summary = chosen.slice(0, SUMMARY_MAX).map(verbatim)
  const rest = chosen.slice(SUMMARY_MAX)
  const sections = sourcesOf(rest).map((source) => ({
    title: source.title,
    claims: rest
      .filter((quote) => quote.source === source)
      .toSorted((a, b) => a.start - b.start)
      .map(verbatim),
  }))
  return { writer: 'extractive', summary, sections, gaps, quoted: 0, dropped: 0 }
}

/** A claim that is its own quote. */
export function verbatim({ source, start, end, text }: Candidate | Claim['quotes'][number]): Claim {
  return { text, quotes: [{ source, start, end, text }] }
}

/** Quotes that answer and differ from each other: first the best one of each source that must have a say. */
function chooseQuotes(candidates: readonly Candidate[], wanted: readonly Snapshot[], max: number): Candidate[] {
  const chosen: Candidate[] = []
  const best = candidates[0]?.score ?? 0
  const firsts = wanted.flatMap((source) => candidates.find((quote) => quote.source === source) ?? [])
  for (const quote of [...(candidates[0] ? [candidates[0]] : []), ...firsts])
    if (chosen.length < max && !chosen.includes(quote)) chosen.push(quote)
  const fit = candidates.filter((quote) => quote.score >= SHARE_MIN * best && !chosen.includes(quote))
  // How much each is like the one of the chosen that it is most like.
  const pool = new Map(fit.slice(0, POOL_MAX).map((quote) => [quote, likeness(quote, chosen)]))
  while (chosen.length < max) {
    const next = nextOf(pool, chosen)
    if (next === undefined) break
    pool.delete(next)
    chosen.push(next)
    for (const [quote, alike] of pool) pool.set(quote, Math.max(alike, overlap(next.terms, quote.terms)))
  }
  return chosen
}

function nextOf(pool: ReadonlyMap<Candidate, number>, chosen: readonly Candidate[]): Candidate | undefined {
  const perSource = new Map<Snapshot, number>()
  for (const { source } of chosen) perSource.set(source, (perSource.get(source) ?? 0) + 1)
  let next: Candidate | undefined
  let most = 0
  for (const [quote, alike] of pool) {
    const worth = LAMBDA * quote.score - (1 - LAMBDA) * alike
    if (worth <= most || (perSource.get(quote.source) ?? 0) >= PER_SOURCE_MAX) continue
    most = worth
    next = quote
  }
  return next
}

function likeness(quote: Candidate, others: readonly Candidate[]): number {
  return Math.max(0, ...others.map(({ terms }) => overlap(terms, quote.terms)))
}

/** Shared terms among all terms (Jaccard). */
function overlap(a: ReadonlySet<string>, b: ReadonlySet<string>): number {
  let shared = 0
  for (const term of a) if (b.has(term)) shared++
  return shared / Math.max(1, a.size + b.size - shared)
}

function sourcesOf(quotes: readonly Candidate[]): Snapshot[] {
  return [...new Set(quotes.map(({ source }) => source))]
}
