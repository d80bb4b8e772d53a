import { type BatchEvent, type BatchPartEvent, BatchPartRequest, BatchRequest } from '#schemas/batches/batch.ts'
import type { Kind } from './kind.ts'

/** Maximum concurrent children: the requests of a part, and the parts of a batch. Both usually stay far below. */
const CHILDREN_AT_ONCE = 500

/**
 * Time for a batch to write its partial result, after its completion window or a cancel. The job's deadline is later by this
 * time.
 */
export const BATCH_WRAP_UP_MS = 300_000

/** A batch of API calls (docs/internals/design.md, Composed jobs). The handler splits the input into parts and joins their results. */
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

/** A part of a batch: some lines, each of which is an API call and a job of its own. */
export const batchPart: Kind<BatchPartRequest, BatchPartEvent> = {
  name: 'batch_part',
  pool: 'batches',
  request: BatchPartRequest,
  childrenAtOnce: CHILDREN_AT_ONCE,
  // The batch, not its parts, writes the partial result.
  wrapUpMs: 0,
  merge: () => undefined,
  isOutput: () => true,
  answer: () => ({ whole: ([event]) => (event as BatchPartEvent).result }),
}
