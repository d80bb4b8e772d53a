import { type ModerateEvent, ModerateRequest } from '#schemas/moderations.ts'
import { moderationsAnswer } from '#shared/protocols/moderations/moderations.ts'
import type { Kind } from './kind.ts'

export const moderate: Kind<ModerateRequest, ModerateEvent> = {
  name: 'moderate',
  pool: 'inference',
  request: ModerateRequest,
  // Never merged, because the worker already puts as many results into an event as fit into a record.
  merge: () => undefined,
  isOutput: () => true,
  answer: () => moderationsAnswer,
}
