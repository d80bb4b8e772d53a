import type { Section } from '../section.ts'
import { HANGING_CALLERS, HEALTHY, HEALTHY_CALLERS, measureBulkheads, SLOTS } from './measure.ts'
import { renderBulkheads } from './report.ts'

/** Models beside one that hangs. */
export const BULKHEADS: Section = {
  name: 'bulkheads',
  title: '## Bulkheads between models',
  introduction: `One worker of ${SLOTS} slots and three models without any \`concurrency\`. ${HEALTHY.length} are well: ${HEALTHY_CALLERS} callers each take streams from them, one after the
other. The upstream of the third takes every call and answers none, and ${HANGING_CALLERS} callers wait for it. The times are those to the first token
of the healthy models, alone and beside the one that hangs, in the same round; figures are medians over the rounds.`,
  measure: async ({ kafka, dir, rounds, hangSeconds, print, signal }) =>
    renderBulkheads(await measureBulkheads({ rounds, hangSeconds, print, signal }, kafka, dir)),
}
