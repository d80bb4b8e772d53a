import { z } from 'zod'
import type { Claim } from '#services/research/evidence/draft.ts'
import type { Candidate } from '#services/research/evidence/evidence.ts'
import { massOf } from '#services/research/question/passages.ts'
import type { Weights } from '#services/research/question/question.ts'
import { termSet } from '#shared/search/text/terms.ts'
import type { Ask, Asker } from './ask.ts'

const QUOTES_MAX = 20
const CLAIMS_MAX = 8
const CLAIM_CHARS_MAX = 500
const PER_CLAIM_MAX = 3
/** Quotes for a part of the question are ranked by 0.6 × relevance to the part + 0.4 × score for the whole question. */
const PART_SHARE = 0.6

const Notes = z.strictObject({
  claims: z
    .array(
      z.strictObject({
        text: z.string().min(1).max(CLAIM_CHARS_MAX),
        quotes: z.array(z.string().max(20)).min(1).max(PER_CLAIM_MAX),
      }),
    )
    .max(CLAIMS_MAX),
})

const SYSTEM = `Note what the quotes say that answers the question. Give at most ${CLAIMS_MAX} claims, each one sentence that follows from its quotes
alone, with the ids of 1 to ${PER_CLAIM_MAX} quotes that state it. Keep numbers, names, conditions and negations exactly as the quotes have them.
Leave out what the quotes do not say. No quotes that answer: no claims.`

export interface PartNotes {
  readonly part: string
  readonly claims: readonly Claim[]
}

/**
 * Calls a model once per part to derive claims from quotes. Each claim contains the ids of its quotes.
 *
 * @returns Parts that have claims. Undefined if every call failed
 */
export async function takeNotes(
  asker: Asker,
  question: string,
  parts: readonly string[],
  candidates: readonly Candidate[],
  weights: Weights,
): Promise<PartNotes[] | undefined> {
  const asks = parts.map((part, at): Ask<z.infer<typeof Notes>> & { ids: Map<string, Candidate> } => {
    const ids = new Map(quotesFor(part, candidates, weights).map((quote, n) => [`q${n + 1}`, quote]))
    const quotes = [...ids].map(([id, { text, source }]) => ({ id, source: source.title, text }))
    const data = { question, part, quotes }
    return { key: `note.${at + 1}`, system: SYSTEM, data, schema: Notes, tokensMax: 2_500, ids }
  })
  const answers = await asker.askAll(asks)
  if (answers.every((answer) => answer === undefined)) return undefined
  return answers.flatMap((answer, at) => {
    const claims = (answer?.claims ?? []).flatMap((claim) => cited(claim, asks[at]?.ids ?? new Map()))
    return claims.length === 0 ? [] : [{ part: parts[at] ?? question, claims }]
  })
}

function quotesFor(part: string, candidates: readonly Candidate[], weights: Weights): Candidate[] {
  const terms = termSet(part)
  const most = candidates[0]?.score || 1
  const scored = candidates.map((quote) => {
    const own = massOf(terms, weights, (term) => quote.terms.has(term) || quote.passage.terms.has(term))
    return { quote, score: PART_SHARE * own + (1 - PART_SHARE) * (quote.score / most) }
  })
  return scored
    .toSorted((a, b) => b.score - a.score)
    .slice(0, QUOTES_MAX)
    .map(({ quote }) => quote)
}

function cited(
  { text, quotes: names }: { text: string; quotes: string[] },
  ids: ReadonlyMap<string, Candidate>,
): Claim[] {
  const found = [...new Set(names)].map((name) => ids.get(name))
  const quotes = found.flatMap((quote) => {
    return quote ? [{ source: quote.source, start: quote.start, end: quote.end, text: quote.text }] : []
  })
  return quotes.length === 0 || quotes.length < found.length ? [] : [{ text: text.trim(), quotes }]
}
