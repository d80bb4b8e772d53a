import type { Claim } from '#services/research/draft.ts'
import type { Candidate } from '#services/research/evidence/evidence.ts'
import { termSet } from '#shared/search/text/terms.ts'
import { plain } from './verify.ts'

/**
 * Replaces the quotes of a claim by a nearer one, if there is one. A candidate is nearer if its text is equal to the claim. A candidate
 * is also nearer if it shares more terms with the claim than all quotes of the claim together.
 *
 * Models sometimes cite the wrong quote for a correct statement; this step corrects the citation. The following check then compares the
 * claim with the closest sentence, so an unrelated quote cannot support it.
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
