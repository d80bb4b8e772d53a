import { z } from 'zod'
import type { ResearchRequest } from '#schemas/kinds/research.ts'
import { hasLink } from '#services/research/verify/verify.ts'
import type { Asker } from './ask.ts'

const PARTS_MAX = 5
const QUERIES_MAX = 3
const TEXT_CHARS_MAX = 300
/** Maximum share of the remaining time for the plan. The rest is for searching, reading and writing. */
const TIME_SHARE = 0.3

const Text = z.string().min(1).max(TEXT_CHARS_MAX)
const Plan = z.strictObject({
  parts: z
    .array(z.strictObject({ question: Text, queries: z.array(Text).min(1).max(QUERIES_MAX) }))
    .min(1)
    .max(PARTS_MAX),
})
export type Plan = z.infer<typeof Plan>

const SYSTEM = `Plan how to research the question. Give 1 to ${PARTS_MAX} parts that together answer it, each a short question in its own words,
with 1 to ${QUERIES_MAX} search queries of a few words. Earlier turns of the conversation say what the question refers to. Queries are plain
words: no addresses, no operators.`

export async function planResearch(asker: Asker, { question, context }: ResearchRequest): Promise<Plan | undefined> {
  const data = { question, earlier_turns: context }
  const plan = await asker.ask({
    key: 'plan',
    system: SYSTEM,
    data,
    schema: Plan,
    tokensMax: 1_500,
    timeShare: TIME_SHARE,
  })
  // A planned part must not contain an address, because the model can only have copied the address from the
  // conversation. A query with the address would find only the page that the conversation already mentions.
  const parts = plan?.parts.filter((part) => ![part.question, ...part.queries].some(hasLink))
  return parts === undefined || parts.length === 0 ? undefined : { parts }
}
