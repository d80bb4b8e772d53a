import { type ModerateEvent, ModerateRequest } from '#schemas/moderations.ts'
import { moderationsAnswer } from '#shared/protocols/moderations/moderations.ts'
import type { Kind } from './kind.ts'

/** Texts and images to what they hold. */
export const moderate: Kind<ModerateRequest, ModerateEvent> = {
  name: 'moderate',
  pool: 'inference',
  request: ModerateRequest,
  // One piece has as many results as a record of output carries.
  merge: () => undefined,
  isOutput: () => true,
  answer: () => moderationsAnswer,
}
