import type { Section } from '../section.ts'
import { ARRIVING, MODEL_COUNT, measureLending, STREAMS } from './lending.ts'
import { HANGING_CALLERS, HEALTHY, HEALTHY_CALLERS, measureBulkheads, SLOTS } from './measure.ts'
import { renderBulkheads, renderLending } from './report.ts'

/** Models beside one that hangs. */
export const BULKHEADS: Section = {
  name: 'bulkheads',
  title: '## Bulkheads between models',
  introduction: `Idle slots are lent: a service of ${MODEL_COUNT} models and the default slots (256) gets ${STREAMS} streams of one model while the others are idle,
next to a bare proxy in the same round. Then ${2 * STREAMS} callers of one model hold every slot, and ${ARRIVING} callers of a second one come together;
the figure is the time to the last first token of these, in both directions. A stream takes 1,310 ms.

A model that hangs: one worker of ${SLOTS} slots and three models without any \`concurrency\`. ${HEALTHY.length} are well: ${HEALTHY_CALLERS} callers each take streams from them, one after the
other. The upstream of the third takes every call and answers none, and ${HANGING_CALLERS} callers wait for it. The times are those to the first token
of the healthy models, alone and beside the one that hangs, in the same round; figures are medians over the rounds.`,
  async measure({ kafka, dir, rounds, hangSeconds, isQuick, seconds = isQuick ? 3 : 6, print, signal }) {
    const options = { rounds, hangSeconds, seconds, print, signal }
    const lending = await measureLending(options, kafka, dir)
    return [...renderLending(lending), ...renderBulkheads(await measureBulkheads(options, kafka, dir))]
  },
}
