import { z } from 'zod'
import type { Claim } from '#services/research/evidence/draft.ts'
import type { Ask, Asker } from './ask.ts'

/** Decision of the judge on a claim. `unchecked`: the judge gave no clear verdict, or none in time. */
export type Judgement = 'supported' | 'not_supported' | 'unchecked'

export type Judge = (claims: readonly Claim[], round: string) => Promise<Judgement[]>

const PAIRS_MAX = 10

const Verdicts = z.strictObject({
  verdicts: z
    .array(z.strictObject({ id: z.string().max(20), verdict: z.enum(['supported', 'not_supported', 'unsure']) }))
    .max(PAIRS_MAX),
})

const SYSTEM = `Judge for each claim whether its quotes state it. supported: a careful reader of the quotes alone would agree with every part of the
claim. not_supported: a part of it is missing in the quotes, or they say otherwise, in number, name, condition, negation, cause or
degree. unsure: you cannot tell. Give one verdict for each id.`

/** Returns a judge that calls a model. Claims without a clear verdict are sent to the model a second time. */
export function modelJudge(asker: Asker): Judge {
  return async (claims, round) => {
    const first = await judgeAll(asker, claims, `judge.${round}`)
    const open = claims.filter((_, at) => first[at] === 'unchecked')
    if (open.length === 0) return first
    const second = await judgeAll(asker, open, `judge.${round}.again`)
    return first.map((judgement, at) => {
      const claim = claims[at]
      return judgement === 'unchecked' && claim ? (second[open.indexOf(claim)] ?? judgement) : judgement
    })
  }
}

async function judgeAll(asker: Asker, claims: readonly Claim[], key: string): Promise<Judgement[]> {
  const asks: Ask<z.infer<typeof Verdicts>>[] = []
  for (let at = 0; at < claims.length; at += PAIRS_MAX) {
    const pairs = claims.slice(at, at + PAIRS_MAX).map(({ text, quotes }, n) => {
      return { id: `p${n + 1}`, claim: text, quotes: quotes.map((quote) => quote.text) }
    })
    asks.push({ key: `${key}.${asks.length + 1}`, system: SYSTEM, data: { pairs }, schema: Verdicts, tokensMax: 800 })
  }
  const answers = await asker.askAll(asks)
  return claims.map((_, at) => {
    const verdicts = answers[Math.floor(at / PAIRS_MAX)]?.verdicts.filter(({ id }) => id === `p${(at % PAIRS_MAX) + 1}`)
    // If the model returns two verdicts on one claim, then neither counts.
    const [verdict] = verdicts?.length === 1 ? verdicts : []
    return verdict === undefined || verdict.verdict === 'unsure' ? 'unchecked' : verdict.verdict
  })
}
