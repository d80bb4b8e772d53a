import { type BatchEvent, type BatchPartEvent, BatchPartRequest, BatchRequest } from '#schemas/batches/batch.ts'
import type { Kind } from './kind.ts'

/** Maximum unfinished child jobs per parent. The children of a batch job are parts of its input, and the children of a part are single requests. */
const CHILDREN_AT_ONCE = 500

/**
 * Time in ms for writing the partial result of a batch, after its completion window has ended or a client has cancelled it. The job's deadline is the
 * end of the window plus this time.
 */
export const BATCH_WRAP_UP_MS = 300_000

/**
 * A batch of API calls (docs/internals/design.md, Composed jobs). The handler splits the input into parts and concatenates the results of the parts.
 */
export const batch: Kind<BatchRequest, BatchEvent> = {
  name: 'batch',
  pool: 'batches',
  request: BatchRequest,
  childrenAtOnce: CHILDREN_AT_ONCE,
  wrapUpMs: BATCH_WRAP_UP_MS,
  merge: () => undefined,
  isOutput: () => true,
  answer: () => ({ whole: ([event]) => (event as BatchEvent).result }),
}

export const batchPart: Kind<BatchPartRequest, BatchPartEvent> = {
  name: 'batch_part',
  pool: 'batches',
  request: BatchPartRequest,
  childrenAtOnce: CHILDREN_AT_ONCE,
  // A part reserves no time before its deadline for a partial result. Only the batch itself writes a partial result, from the results of its parts.
  wrapUpMs: 0,
  merge: () => undefined,
  isOutput: () => true,
  answer: () => ({ whole: ([event]) => (event as BatchPartEvent).result }),
}
