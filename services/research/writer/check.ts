import { z } from 'zod'
import type { Claim } from '#services/research/evidence/draft.ts'
import { type Verdict, verifyClaim } from '#services/research/verify/verify.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Ask, Asker } from './ask.ts'
import type { Judge } from './judge.ts'

const REWRITES_MAX = 10
const TEXT_CHARS_MAX = 500

const Rewrites = z.strictObject({
  rewrites: z
    .array(z.strictObject({ id: z.string().max(20), text: z.string().min(1).max(TEXT_CHARS_MAX) }))
    .max(REWRITES_MAX),
})

const SYSTEM = `Each claim failed a check against its quotes, for the reason given. Write each again as one sentence that its quotes state, as close to
their words as it can be: the same numbers, names, conditions and negations. Leave out an id whose quotes cannot support any such
claim.`

interface Checked {
  readonly claim: Claim
  readonly reason: string | undefined
}

/**
 * Checks claims against their quotes. The model rewrites each failed claim once, and the claim is then checked again.
 *
 * @returns One entry per claim, in order: the claim, possibly rewritten, or undefined if its quotes do not support it
 */
export async function checkClaims(
  asker: Asker,
  judge: Judge,
  claims: readonly Claim[],
): Promise<(Claim | undefined)[]> {
  const first = await checkAll(judge, claims, 'first')
  const failed = first.filter(({ reason }) => reason !== undefined)
  const rewritten = await rewrite(asker, failed)
  const second = await checkAll(judge, [...rewritten.values()], 'second')
  const mended = new Map([...rewritten.keys()].map((claim, at) => [claim, second[at]]))
  return first.map(({ claim, reason }) => {
    if (reason === undefined) return claim
    const again = mended.get(claim)
    return again && again.reason === undefined ? again.claim : undefined
  })
}

/** Checks claims without a model first. The judge then decides only on undecided claims, so it cannot override a refusal. */
async function checkAll(judge: Judge, claims: readonly Claim[], round: string): Promise<Checked[]> {
  const verdicts = await runYielding(verdictsOn(claims))
  const open = claims.filter((_, at) => verdicts[at]?.verdict === 'undecided')
  const judged = open.length === 0 ? [] : await judge(open, round)
  return claims.map((claim, at) => {
    const verdict = verdicts[at]
    if (verdict?.verdict === 'supported') return { claim, reason: undefined }
    const isJudged = verdict?.verdict === 'undecided' && judged[open.indexOf(claim)] === 'supported'
    return { claim, reason: isJudged ? undefined : (verdict?.reason ?? 'It was not checked.') }
  })
}

function* verdictsOn(claims: readonly Claim[]): Generator<void, Verdict[]> {
  const verdicts: Verdict[] = []
  for (const { text, quotes } of claims) {
    const texts = quotes.map((quote) => quote.text)
    verdicts.push(verifyClaim(text, texts))
    yield
  }
  return verdicts
}

async function rewrite(asker: Asker, failed: readonly Checked[]): Promise<Map<Claim, Claim>> {
  const asks: Ask<z.infer<typeof Rewrites>>[] = []
  for (let at = 0; at < failed.length; at += REWRITES_MAX) {
    const claims = failed.slice(at, at + REWRITES_MAX).map(({ claim, reason }, n) => {
      return { id: `r${n + 1}`, claim: claim.text, reason, quotes: claim.quotes.map((quote) => quote.text) }
    })
    asks.push({
      key: `repair.${asks.length + 1}`,
      system: SYSTEM,
      data: { claims },
      schema: Rewrites,
      tokensMax: 2_500,
    })
  }
  const answers = await asker.askAll(asks)
  const rewritten = new Map<Claim, Claim>()
  for (const [at, { claim }] of failed.entries()) {
    const rewrites = answers[Math.floor(at / REWRITES_MAX)]?.rewrites
    const text = rewrites?.find(({ id }) => id === `r${(at % REWRITES_MAX) + 1}`)?.text.trim()
    if (text) rewritten.set(claim, { text, quotes: claim.quotes })
  }
  return rewritten
}
