import type { Claim } from '#services/research/evidence/draft.ts'
import type { Candidate } from '#services/research/evidence/evidence.ts'
import { termSet } from '#shared/search/text/terms.ts'
import { plain } from './verify.ts'

/**
 * Replaces the quotes of a claim with a closer candidate, if one exists. A candidate is closer if it contains the text of the claim, or shares more
 * terms with the claim than all quotes together.
 *
 * Models sometimes cite the wrong quote for a correct statement. The following check compares the claim with the new quote, so an unrelated quote
 * cannot support the claim.
 *
 * @param candidates All sentences that were in the model's prompts.
 */
export function citeClosestQuote(claim: Claim, candidates: readonly Candidate[]): Claim {
  const words = plain(claim.text)
  if (claim.quotes.some(({ text }) => plain(text) === words)) return claim
  const nearest = candidates.find(({ text }) => plain(text) === words) ?? closerThanOwn(claim, candidates)
  if (!nearest) return claim
  const { source, start, end, text } = nearest
  return { text: claim.text, quotes: [{ source, start, end, text }] }
}

function closerThanOwn(claim: Claim, candidates: readonly Candidate[]): Candidate | undefined {
  const terms = termSet(claim.text)
  const own = new Set(claim.quotes.flatMap(({ text }) => [...termSet(text)]))
  let most = terms.intersection(own).size
  let nearest: Candidate | undefined
  for (const candidate of candidates) {
    const shared = terms.intersection(candidate.terms).size
    if (shared > most) [most, nearest] = [shared, candidate]
  }
  return nearest
}
