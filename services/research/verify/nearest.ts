import type { Claim } from '#services/research/draft.ts'
import type { Candidate } from '#services/research/evidence/evidence.ts'
import { termSet } from '#shared/search/text/terms.ts'
import { plain } from './verify.ts'

/**
 * A claim with the quotes that it is nearest to: its own, unless another sentence of the sources says the same word by word, or has more
 * of its terms than all of them together. A model that names the wrong quote for what a source does say is put right, and a claim that
 * is checked against a quote of something else cannot pass for a paraphrase of it.
 *
 * @param candidates All sentences that the model was shown.
 */
export function citingNearest(claim: Claim, candidates: readonly Candidate[]): Claim {
  const words = plain(claim.text)
  if (claim.quotes.some(({ text }) => plain(text) === words)) return claim
  const nearest = candidates.find(({ text }) => plain(text) === words) ?? nearerThanOwn(claim, candidates)
  if (!nearest) return claim
  const { source, start, end, text } = nearest
  return { text: claim.text, quotes: [{ source, start, end, text }] }
}

function nearerThanOwn(claim: Claim, candidates: readonly Candidate[]): Candidate | undefined {
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
