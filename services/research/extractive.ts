import type { Snapshot } from '#shared/search/search.ts'
import type { Claim, Draft } from './draft.ts'
import { type Difference, differencesIn } from './evidence/differences.ts'
import type { Candidate, Evidence, PartEvidence } from './evidence/evidence.ts'
import { likelihoodOf } from './evidence/signals.ts'

/*
 * The writer without a model: sentences of the sources, verbatim. The answer is one to three sentences, the best of each part of the
 * question; then the other sentences by part. It stops when the question is probably answered, so that a simple question has a short
 * report.
 */

const ANSWER_MAX = 3
const ANSWER_MIN = 3
/** Likelihood that at least one of the quotes of a part answers it, at which no more are added. */
const ANSWERED = 0.97
/** Quotes of a part in any case, if there are so many that fit. */
const PART_MIN = 4
const PER_SOURCE_MAX = 4
/** Loss of score by likeness to a quote that is chosen already (maximal marginal relevance). */
const ALIKE = 1
/** Quotes that are compared with the chosen ones, best first. */
const POOL_MAX = 200
/** Minimum likelihood of a quote, as a share of that of the best one. */
const SHARE_MIN = 0.1
/** Maximum loss of score at which a quote is replaced by one that contains it. */
const GROWTH_LOSS_MAX = 1
/** Shared terms at which two sentences say the same. */
const SAME = 0.75

/** @param claimsMax Maximum number of sentences of the report. */
export function writeExtractive({ parts, gaps }: Evidence, claimsMax: number): Draft {
  const chosen: Candidate[] = []
  const each = Math.max(1, Math.floor(claimsMax / Math.max(1, parts.length)))
  const byPart = parts.map((part) => ({ part, quotes: chooseQuotes(part, chosen, each) }))
  const answer = answerOf(byPart.map(({ quotes }) => quotes))
  const differing = parts.length === 1 ? differencesOf(parts[0], answer, chosen) : []
  const others = differing.map(({ other }) => other)
  const sections = byPart.flatMap(({ part, quotes }) => {
    const claims = quotes.filter((quote) => !answer.includes(quote) && !others.includes(quote)).map(verbatim)
    return claims.length === 0 ? [] : [{ title: parts.length > 1 ? part.text : MORE, claims }]
  })
  const differences = differing.map(({ other, values: [own, theirs] }) => ({
    ...verbatim(other),
    context: `${theirs.join(', ')} here, ${own.join(', ')} in the answer`,
  }))
  const summary = answer.filter((quote) => !others.includes(quote)).map(verbatim)
  return { writer: 'extractive', summary, sections, differences, gaps, quoted: 0, dropped: 0 }
}

/** Quotes that differ from the first one of the answer, and repeat none of the report. */
function differencesOf(
  part: PartEvidence | undefined,
  answer: readonly Candidate[],
  chosen: readonly Candidate[],
): Difference[] {
  if (!part?.isValueAsked) return []
  const isNew = (quote: Candidate) => chosen.includes(quote) || !chosen.some((other) => isRepeat(quote, other))
  return differencesIn(part.text, part.terms, answer, part.candidates).filter(({ other }) => isNew(other))
}

const MORE = 'More from the sources'

/** A claim that is its own quote. */
export function verbatim(quote: Candidate | Claim['quotes'][number]): Claim {
  const { source, start, end, text } = quote
  const context = 'context' in quote ? quote.context : undefined
  return { text, quotes: [{ source, start, end, text }], ...(context !== undefined && { context }) }
}

/** The best quotes of each part in turn. A line of code answers only if nothing else does. */
function answerOf(all: readonly (readonly Candidate[])[]): Candidate[] {
  const prose = all.map((quotes) => quotes.filter(({ isCode }) => !isCode))
  return inTurn(prose.some((quotes) => quotes.length > 0) ? prose : all)
}

function inTurn(parts: readonly (readonly Candidate[])[]): Candidate[] {
  const answer: Candidate[] = []
  for (let at = 0; answer.length < ANSWER_MIN && parts.some((quotes) => at < quotes.length); at++)
    for (const quotes of parts) {
      const quote = quotes[at]
      if (quote && answer.length < ANSWER_MAX) answer.push(quote)
    }
  return answer
}

/** Quotes that answer a part and differ from each other, best first; added to those that are chosen already. */
function chooseQuotes({ candidates }: PartEvidence, chosen: Candidate[], max: number): Candidate[] {
  const own: Candidate[] = []
  const most = candidates[0] ? likelihoodOf(candidates[0].score) : 0
  const pool = candidates.slice(0, POOL_MAX).filter(({ score }) => likelihoodOf(score) >= SHARE_MIN * most)
  let open = 1
  while (own.length < max && (own.length < PART_MIN || open > 1 - ANSWERED)) {
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
    if ((perSource.get(quote.source) ?? 0) >= PER_SOURCE_MAX || chosen.some((other) => isRepeat(quote, other))) continue
    const alike = Math.max(0, ...chosen.map(({ terms }) => overlap(terms, quote.terms)))
    const worth = quote.score - ALIKE * alike
    if (worth > most) [most, next] = [worth, quote]
  }
  return next
}

/** The quote together with the next sentence, if that one refers to it and scores nearly as well. */
function grown(quote: Candidate, pool: readonly Candidate[], chosen: readonly Candidate[]): Candidate {
  const longer = pool.find(({ source, start, end, score }) => {
    return source === quote.source && start === quote.start && end > quote.end && score >= quote.score - GROWTH_LOSS_MAX
  })
  return longer && !chosen.some((other) => isRepeat(longer, other)) ? longer : quote
}

/** Whether one of two quotes contains the other, or both say nearly the same. */
function isRepeat(a: Candidate, b: Candidate): boolean {
  if (a.source === b.source && a.start < b.end && b.start < a.end) return true
  return a.text.includes(b.text) || b.text.includes(a.text) || overlap(a.terms, b.terms) >= SAME
}

/** Shared terms among all terms (Jaccard). */
function overlap(a: ReadonlySet<string>, b: ReadonlySet<string>): number {
  let shared = 0
  for (const term of a) if (b.has(term)) shared++
  return shared / Math.max(1, a.size + b.size - shared)
}
