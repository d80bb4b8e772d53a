import { type ResearchEvent, ResearchRequest } from '#schemas/research/research.ts'
import { researchAnswer } from '#shared/protocols/research/stream.ts'
import type { Kind } from './kind.ts'

/** Maximum text of a merged event, in UTF-16 units. Limited, so that records and frames stay small. */
const MERGED_TEXT_MAX = 16 * 1024

/** Deep research: a question, answered by a report with citations. */
export const research: Kind<ResearchRequest, ResearchEvent> = {
  name: 'research',
  pool: 'research',
  request: ResearchRequest,
  merge: mergeResearchEvents,
  // A second run repeats progress events with the same sequence numbers, and a stream drops repeated numbers.
  isOutput: ({ type }) => type !== 'progress',
  answer: () => researchAnswer,
}

/** Merges short pieces of the report; undefined: keep them separate. */
export function mergeResearchEvents(a: ResearchEvent, b: ResearchEvent): ResearchEvent | undefined {
  if (a.type !== 'text' || b.type !== 'text' || a.text.length + b.text.length > MERGED_TEXT_MAX) return undefined
  return { type: 'text', text: a.text + b.text }
}
