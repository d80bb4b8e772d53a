import { type ModerateEvent, ModerateRequest } from '#schemas/kinds/moderations.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'

export const moderate: Kind<ModerateRequest, ModerateEvent> = {
  name: 'moderate',
  pool: 'inference',
  request: ModerateRequest,
  // The worker fills each event with as many results as fit into a record, so a merged event would be too large.
  merge: () => undefined,
  isOutput: () => true,
  answer: () => moderationsAnswer,
}

const moderationsAnswer: Answer<ModerateEvent> = {
  whole: (events, { call_id, model }) => ({
    id: `modr-${call_id}`,
    model,
    results: events.flatMap(({ results }) => results),
  }),
}
