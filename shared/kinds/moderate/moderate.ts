import { type ModerateEvent, ModerateRequest } from '#schemas/kinds/moderations.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'

export const moderate: Kind<ModerateRequest, ModerateEvent> = {
  name: 'moderate',
  pool: 'inference',
  request: ModerateRequest,
  // Events are not merged. The worker already puts as many results into each event as fit into a queue record.
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
