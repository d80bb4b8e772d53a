import type { ResearchStop } from '#schemas/research/research.ts'
import type { Gathering } from './gather/gather.ts'

const EARLY: Partial<Record<ResearchStop, string>> = {
  deadline: 'its time was over',
  budget: 'its budget was used up',
  cancelled: 'it was cancelled',
}

/**
 * What a reader must know of how a run went, each a sentence: what was not searched or read, how it was ranked, and why it ended
 * early.
 */
export function remarksOf(gathering: Gathering, stop: ResearchStop, ranking: string | undefined): string[] {
  const { canSearch, failedSearches, indexing, searches, unread } = gathering
  const remarks: string[] = []
  if (!canSearch) remarks.push('The domains of the request leave nothing to search.')
  if (failedSearches > 0) remarks.push(`${failedSearches} of ${searches} searches failed, so sources may be missing.`)
  if (indexing) remarks.push(`Only ${indexing.indexed} of ${indexing.documents} documents were indexed by then.`)
  if (unread > 0) remarks.push(`${unread} ${unread === 1 ? 'source' : 'sources'} could not be read.`)
  if (ranking !== undefined) remarks.push(ranking)
  if (EARLY[stop]) remarks.push(`The research ended early, because ${EARLY[stop]}.`)
  return remarks
}
