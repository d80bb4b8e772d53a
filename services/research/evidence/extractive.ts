import type { Snapshot } from '#shared/search/search.ts'
import { type Difference, differencesIn } from './differences.ts'
import type { Claim, Draft } from './draft.ts'
import type { Candidate, Evidence, PartEvidence } from './evidence.ts'
import { likelihoodOf } from './signals.ts'

/*
 * Writes the report without a model, from verbatim quotes of the sources. An answer of up to three quotes comes first. The answer consists of
 * the best quotes of each part of the question. Further quotes follow by part.
 *
 * For each part, at least four quotes are chosen, if there are so many. More quotes are added until the estimated probability that at least
 * one of them answers reaches 97 %. A simple question therefore has a short report. Example: after four quotes with the likelihoods 0.6, 0.6,
 * 0.5 and 0.5, the probability is 1 - 0.4 × 0.4 × 0.5 × 0.5 = 0.96. A fifth quote with 0.4 raises the probability to 0.976, so no sixth quote
 * is chosen.
 */

const ANSWER_MAX = 3
const ANSWER_MIN = 3
const ANSWER_PROBABILITY_MIN = 0.97
/** Minimum quotes per part, even if fewer quotes already reach `ANSWER_PROBABILITY_MIN`. */
const QUOTES_PER_PART_MIN = 4
const QUOTES_PER_SOURCE_MAX = 4
/**
 * Maximal marginal relevance: the score of a quote is reduced by this factor, times its similarity to the most similar quote that was
 * already chosen.
 */
const SIMILARITY_PENALTY = 1
const POOL_MAX = 200
/**
 * Minimum likelihood that a quote answers the question, as a fraction of the likelihood of the best quote. Quotes below this fraction are
 * dropped.
 */
const SHARE_MIN = 0.1
/** Maximum loss of score if a quote is replaced with a longer quote that begins with the same text. */
const GROWTH_LOSS_MAX = 1
/** Minimum Jaccard similarity of the terms of two quotes at which they count as repeats of each other. */
const REPEAT_SIMILARITY_MIN = 0.75

export function writeExtractive({ parts, gaps }: Evidence, claimsMax: number): Draft {
  const chosen: Candidate[] = []
  const each = Math.max(1, Math.floor(claimsMax / Math.max(1, parts.length)))
  const byPart = parts.map((part) => ({ part, quotes: chooseQuotes(part, chosen, each) }))
  const answer = answerOf(byPart.map(({ quotes }) => quotes))
  const differing = parts.length === 1 ? differencesOf(parts[0], answer, chosen) : []
  const others = differing.map(({ other }) => other)
  const sections = byPart.flatMap(({ part, quotes }) => {
    const claims = quotes.filter((quote) => !answer.includes(quote) && !others.includes(quote)).map(verbatim)
    return claims.length === 0 ? [] : [{ title: parts.length > 1 ? part.text : MORE_TITLE, claims }]
  })
  const differences = differing.map(({ other, values: [own, theirs] }) => ({
    ...verbatim(other),
    context: `${theirs.join(', ')} here, ${own.join(', ')} in the answer`,
  }))
  const summary = answer.filter((quote) => !others.includes(quote)).map(verbatim)
  return { writer: 'extractive', summary, sections, differences, gaps, quoted: 0, dropped: 0 }
}

function differencesOf(
  part: PartEvidence | undefined,
  answer: readonly Candidate[],
  chosen: readonly Candidate[],
): Difference[] {
  if (!part?.isValueAsked) return []
  const all = differencesIn(part.text, part.terms, answer, part.candidates)
  return all.filter(({ other }, at) => {
    const quotes = [...chosen, ...all.slice(0, at).map((earlier) => earlier.other)]
    return quotes.every((quote) => quote === other || !isRepeat(quote, other))
  })
}

const MORE_TITLE = 'More from the sources'

export function verbatim(quote: Candidate | Claim['quotes'][number]): Claim {
  const { source, start, end, text } = quote
  const context = 'context' in quote ? quote.context : undefined
  return { text, quotes: [{ source, start, end, text }], ...(context !== undefined && { context }) }
}

/** Chooses the answer: the best quote of each part, then the second best. Code is used only if no part has prose. */
function answerOf(all: readonly (readonly Candidate[])[]): Candidate[] {
  const prose = all.map((quotes) => quotes.filter(({ isCode }) => !isCode))
  return roundRobin(prose.some((quotes) => quotes.length > 0) ? prose : all)
}

function roundRobin(parts: readonly (readonly Candidate[])[]): Candidate[] {
  const answer: Candidate[] = []
  for (let at = 0; answer.length < ANSWER_MIN && parts.some((quotes) => at < quotes.length); at++)
    for (const quotes of parts) {
      const quote = quotes[at]
      if (quote && answer.length < ANSWER_MAX) answer.push(quote)
    }
  return answer
}

function chooseQuotes({ candidates }: PartEvidence, chosen: Candidate[], max: number): Candidate[] {
  const own: Candidate[] = []
  const most = candidates[0] ? likelihoodOf(candidates[0].score) : 0
  const pool = candidates.slice(0, POOL_MAX).filter(({ score }) => likelihoodOf(score) >= SHARE_MIN * most)
  let open = 1
  while (own.length < max && (own.length < QUOTES_PER_PART_MIN || open > 1 - ANSWER_PROBABILITY_MIN)) {
    const best = nextOf(pool, chosen)
    if (best === undefined) break
    const next = grown(best, pool, chosen)
    chosen.push(next)
    own.push(next)
    open *= 1 - likelihoodOf(next.score)
  }
  return own
}

function nextOf(pool: readonly Candidate[], chosen: readonly Candidate[]): Candidate | undefined {
  const perSource = new Map<Snapshot, number>()
  for (const { source } of chosen) perSource.set(source, (perSource.get(source) ?? 0) + 1)
  let next: Candidate | undefined
  let most = Number.NEGATIVE_INFINITY
  for (const quote of pool) {
    if ((perSource.get(quote.source) ?? 0) >= QUOTES_PER_SOURCE_MAX || chosen.some((other) => isRepeat(quote, other)))
      continue
    const alike = Math.max(0, ...chosen.map(({ terms }) => overlap(terms, quote.terms)))
    const worth = quote.score - SIMILARITY_PENALTY * alike
    if (worth > most) [most, next] = [worth, quote]
  }
  return next
}

/**
 * Replaces a quote with a longer quote that also contains the next sentence, if the longer quote scores nearly as well.
 */
function grown(quote: Candidate, pool: readonly Candidate[], chosen: readonly Candidate[]): Candidate {
  const longer = pool.find(({ source, start, end, score }) => {
    return source === quote.source && start === quote.start && end > quote.end && score >= quote.score - GROWTH_LOSS_MAX
  })
  return longer && !chosen.some((other) => isRepeat(longer, other)) ? longer : quote
}

function isRepeat(a: Candidate, b: Candidate): boolean {
  if (a.source === b.source && a.start < b.end && b.start < a.end) return true
  return a.words.includes(b.words) || b.words.includes(a.words) || overlap(a.terms, b.terms) >= REPEAT_SIMILARITY_MIN
}

function overlap(a: ReadonlySet<string>, b: ReadonlySet<string>): number {
  let shared = 0
  for (const term of a) if (b.has(term)) shared++
  return shared / Math.max(1, a.size + b.size - shared)
}
