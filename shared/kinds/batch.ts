import { type BatchEvent, type BatchPartEvent, BatchPartRequest, BatchRequest } from '#schemas/batches/batch.ts'
import type { Kind } from './kind.ts'

/** Children of one job at once: the requests of a part, and the parts of a batch, which hold themselves to far fewer. */
const CHILDREN_AT_ONCE = 500

/** Time of a batch to write what there is, at the end of the time that it may take or after a cancel: its deadline is so much later. */
export const BATCH_WRAP_UP_MS = 300_000

/** The calls of many lines (docs/design.md, Batches): it splits them into parts, and joins what came of these. */
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

/** Some lines of a batch: each is a call, and a job of its own. */
export const batchPart: Kind<BatchPartRequest, BatchPartEvent> = {
  name: 'batch_part',
  pool: 'batches',
  request: BatchPartRequest,
  childrenAtOnce: CHILDREN_AT_ONCE,
  // Its batch writes what there is of it.
  wrapUpMs: 0,
  merge: () => undefined,
  isOutput: () => true,
  answer: () => ({ whole: ([event]) => (event as BatchPartEvent).result }),
}
