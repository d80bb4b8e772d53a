import { type Claim, claimsOf, type Draft } from '#services/research/draft.ts'
import type { Evidence } from '#services/research/evidence/evidence.ts'
import { verbatim } from '#services/research/extractive.ts'
import type { Weights } from '#services/research/question.ts'
import { citeClosestQuote } from '#services/research/verify/closest-quote.ts'
import type { Asker } from './ask.ts'
import { checkClaims } from './check.ts'
import { type Composed, compose } from './compose.ts'
import { type Judge, modelJudge } from './judge.ts'
import { takeNotes } from './notes.ts'

export interface Assignment {
  readonly question: string
  /** Parts of the question that are researched separately; may be empty. */
  readonly parts: readonly string[]
  readonly evidence: Evidence
  readonly weights: Weights
}

/**
 * Writes a draft with a model, in three steps:
 * 1. Notes: the model derives claims from quotes, each with the ids of its quotes.
 * 2. Compose: the model writes a report whose sentences name claims.
 * 3. Check: every sentence is checked against its quotes and, if it fails, rewritten once.
 *
 * A sentence that fails twice is replaced by its first quote, or removed if that quote is already in the report.
 *
 * @returns The draft; undefined if the model fails or no sentence is supported. The report then consists of quotes.
 */
export async function writeByModel(
  asker: Asker,
  { question, parts, evidence, weights }: Assignment,
  judge: Judge = modelJudge(asker),
): Promise<Draft | undefined> {
  const asked = parts.length > 0 ? parts : [question]
  const notes = await takeNotes(asker, question, asked, evidence.candidates, weights)
  if (notes === undefined || notes.length === 0) return undefined
  const composed = await compose(asker, question, notes)
  const written = claimsOf({ ...composed, writer: 'model', gaps: [], quoted: 0, dropped: 0 })
  const citing = written.map((claim) => citeClosestQuote(claim, evidence.candidates))
  const checked = await checkClaims(asker, judge, citing)
  if (checked.every((claim) => claim === undefined)) return undefined
  return withChecked(composed, new Map(written.map((claim, at) => [claim, checked[at]])), evidence.gaps)
}

function withChecked(
  composed: Composed,
  checked: ReadonlyMap<Claim, Claim | undefined>,
  gaps: readonly string[],
): Draft {
  const said = new Set<string>()
  let quoted = 0
  let dropped = 0
  const keep = (claim: Claim): Claim[] => {
    const good = checked.get(claim)
    const kept = good ?? fallback(claim)
    const isNew = kept !== undefined && !said.has(kept.text)
    if (isNew) said.add(kept.text)
    if (!good && isNew) quoted++
    if (!good && !isNew) dropped++
    return isNew ? [kept] : []
  }
  const summary = composed.summary.flatMap(keep)
  const sections = composed.sections.map(({ title, claims }) => ({ title, claims: claims.flatMap(keep) }))
  const filled = sections.filter(({ claims }) => claims.length > 0)
  return { writer: 'model', summary, sections: filled, gaps, quoted, dropped }
}

/** A claim that repeats the first quote verbatim. */
function fallback({ quotes }: Claim): Claim | undefined {
  const [quote] = quotes
  return quote && verbatim(quote)
}
