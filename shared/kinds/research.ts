import { type ResearchEvent, ResearchRequest } from '#schemas/research/research.ts'
import { researchAnswer } from '#shared/protocols/research/stream.ts'
import type { Kind } from './kind.ts'

/** Longest text a merged event holds, in UTF-16 units; keeps records and frames small. */
const MERGED_TEXT_MAX = 16 * 1024

/** A question researched in sources, with a report that cites them. */
export const research: Kind<ResearchRequest, ResearchEvent> = {
  name: 'research',
  pool: 'research',
  request: ResearchRequest,
  merge: mergeResearchEvents,
  // Progress is said again with the same numbers, which a stream says once.
  isOutput: ({ type }) => type !== 'progress',
  answer: () => researchAnswer,
}

/** Joins pieces of the report while they are short; undefined when the two stay apart. */
export function mergeResearchEvents(a: ResearchEvent, b: ResearchEvent): ResearchEvent | undefined {
  if (a.type !== 'text' || b.type !== 'text' || a.text.length + b.text.length > MERGED_TEXT_MAX) return undefined
  return { type: 'text', text: a.text + b.text }
}
