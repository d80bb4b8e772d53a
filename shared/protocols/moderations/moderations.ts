import type { ModerateEvent } from '#schemas/moderations.ts'
import type { Answer } from '#shared/kinds/answer.ts'

/** The answer of `POST /v1/moderations` (docs/guides/moderations.md). */
export const moderationsAnswer: Answer<ModerateEvent> = {
  whole: (events, { call_id, model }) => ({
    id: `modr-${call_id}`,
    model,
    results: events.flatMap(({ results }) => results),
  }),
}
