import { z } from 'zod'
import type { Claim, Draft } from '#services/research/draft.ts'
import { hasLink, numbersIn } from '#services/research/verify/verify.ts'
import type { Asker } from './ask.ts'
import type { PartNotes } from './notes.ts'

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

/** A composed report before its sentences are checked. */
export type Composed = Pick<Draft, 'summary' | 'sections'>

/** Has a model compose a report from claims. If the model fails, then the claims themselves form the report, part by part. */
export async function compose(asker: Asker, question: string, notes: readonly PartNotes[]): Promise<Composed> {
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

/** A sentence with the quotes of the claims it names; empty if it names an unknown claim. */
function founded({ text, claims: names }: z.infer<typeof Sentence>, ids: ReadonlyMap<string, Claim>): Claim[] {
  const claims = [...new Set(names)].map((name) => ids.get(name))
  if (claims.some((claim) => claim === undefined)) return []
  const quotes = new Map(claims.flatMap((claim) => claim?.quotes ?? []).map((quote) => [keyOf(quote), quote]))
  return [{ text: text.trim(), quotes: [...quotes.values()].slice(0, QUOTES_MAX) }]
}

function keyOf({ source, start }: Claim['quotes'][number]): string {
  return `${source.sha256} ${start}`
}

/** Replaces a title that has a link or a new number by "More": titles have no citations, so they must state no facts. */
function titleOf(title: string, question: string): string {
  const asked = numbersIn(question).map(({ value }) => value)
  const isNew = numbersIn(title).some(({ value }) => !asked.includes(value))
  return hasLink(title) || isNew ? 'More' : title.trim()
}
