import { z } from 'zod'
import { type Claim, claimsOf, type Draft } from '#services/research/evidence/draft.ts'
import type { Evidence } from '#services/research/evidence/evidence.ts'
import { verbatim } from '#services/research/evidence/extractive.ts'
import type { Weights } from '#services/research/question/question.ts'
import { citeClosestQuote } from '#services/research/verify/closest-quote.ts'
import { hasLink, numbersIn } from '#services/research/verify/verify.ts'
import type { Asker } from './ask.ts'
import { checkClaims } from './check.ts'
import { type Judge, modelJudge } from './judge.ts'
import { type PartNotes, takeNotes } from './notes.ts'

const SECTIONS_MAX = 8
const SENTENCES_MAX = 12
const TITLE_CHARS_MAX = 80
const SENTENCE_CHARS_MAX = 500
const QUOTES_MAX = 4
const Sentence = z.strictObject({
  text: z.string().min(1).max(SENTENCE_CHARS_MAX),
  claims: z.array(z.string().max(20)).min(1).max(4),
})
const Composed = z.strictObject({
  summary: z.array(Sentence).min(1).max(4),
  sections: z
    .array(
      z.strictObject({
        title: z.string().min(1).max(TITLE_CHARS_MAX),
        sentences: z.array(Sentence).min(1).max(SENTENCES_MAX),
      }),
    )
    .max(SECTIONS_MAX),
})
const SYSTEM = `Write a report that answers the question from the claims. First a summary of 1 to 4 sentences, then at most ${SECTIONS_MAX} sections with a
short title each. Every sentence follows from the claims whose ids it names, and says nothing beyond them: keep numbers, names,
conditions and negations exactly. Plain text: no markup, no addresses, no citation numbers, those are put in afterwards. Say nothing
twice.`

export interface Assignment {
  readonly question: string
  readonly parts: readonly string[]
  readonly evidence: Evidence
  readonly weights: Weights
}

/**
 * Writes a draft with a model, in three steps:
 * 1. Notes: the model derives claims from quotes, each with the ids of its quotes.
 * 2. Compose: the model writes a report whose sentences refer to claims.
 * 3. Check: every sentence is checked against its quotes and, if it fails, rewritten once.
 *
 * A sentence that fails twice is replaced with its first quote, or removed if that quote is already in the report.
 *
 * @returns The draft. Undefined if the model fails or no sentence is supported. The report then consists of quotes.
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

function fallback({ quotes }: Claim): Claim | undefined {
  const [quote] = quotes
  return quote && verbatim(quote)
}

type Composed = Pick<Draft, 'summary' | 'sections'>

/** Calls a model to compose a report from claims. If the model fails, then the claims themselves form the report, part by part. */
async function compose(asker: Asker, question: string, notes: readonly PartNotes[]): Promise<Composed> {
  const ids = new Map(notes.flatMap(({ claims }) => claims).map((claim, at) => [`c${at + 1}`, claim]))
  const claims = [...ids].map(([id, { text }]) => ({ id, text }))
  const data = { question, claims }
  const written = await asker.ask({ key: 'write', system: SYSTEM, data, schema: Composed, tokensMax: 6_000 })
  if (!written) return plainly(notes)
  const summary = written.summary.flatMap((sentence) => founded(sentence, ids))
  const sections = written.sections.flatMap(({ title, sentences }) => {
    const found = sentences.flatMap((sentence) => founded(sentence, ids))
    return found.length === 0 ? [] : [{ title: titleOf(title, question), claims: found }]
  })
  return summary.length + sections.length === 0 ? plainly(notes) : { summary, sections }
}

function plainly(notes: readonly PartNotes[]): Composed {
  const [first] = notes
  if (!first || notes.length > 1)
    return { summary: [], sections: notes.map(({ part, claims }) => ({ title: part, claims })) }
  return { summary: first.claims, sections: [] }
}

function founded({ text, claims: names }: z.infer<typeof Sentence>, ids: ReadonlyMap<string, Claim>): Claim[] {
  const claims = [...new Set(names)].map((name) => ids.get(name))
  if (claims.some((claim) => claim === undefined)) return []
  const quotes = new Map(claims.flatMap((claim) => claim?.quotes ?? []).map((quote) => [keyOf(quote), quote]))
  return [{ text: text.trim(), quotes: [...quotes.values()].slice(0, QUOTES_MAX) }]
}

function keyOf({ source, start }: Claim['quotes'][number]): string {
  return `${source.sha256} ${start}`
}

/**
 * Returns "More" instead of a title that contains a link, or a number that the question does not contain. Titles have no
 * citations, so they must not state facts.
 */
function titleOf(title: string, question: string): string {
  const asked = numbersIn(question).map(({ value }) => value)
  const isNew = numbersIn(title).some(({ value }) => !asked.includes(value))
  return hasLink(title) || isNew ? 'More' : title.trim()
}
