import type { ResearchStop } from '#schemas/research/research.ts'
import type { Gathering } from './gather/gather.ts'

const EARLY_END_REASONS: Partial<Record<ResearchStop, string>> = {
  deadline: 'its time was over',
  budget: 'its budget was used up',
  cancelled: 'it was cancelled',
}

/**
 * Sentences about the limits of a run. The sentences cover sources that were not searched or read, a missing ranking by vectors, and the reason
 * for an early end.
 */
export function caveatsOf(gathering: Gathering, stop: ResearchStop, ranking: string | undefined): string[] {
  const { canSearch, failedSearches, indexing, searches, unread } = gathering
  const remarks: string[] = []
  if (!canSearch) remarks.push('The domains of the request leave nothing to search.')
  if (failedSearches > 0) remarks.push(`${failedSearches} of ${searches} searches failed, so sources may be missing.`)
  if (indexing) remarks.push(`Only ${indexing.indexed} of ${indexing.documents} documents were indexed by then.`)
  if (unread > 0) remarks.push(`${unread} ${unread === 1 ? 'source' : 'sources'} could not be read.`)
  if (ranking !== undefined) remarks.push(ranking)
  if (EARLY_END_REASONS[stop]) remarks.push(`The research ended early, because ${EARLY_END_REASONS[stop]}.`)
  return remarks
}
