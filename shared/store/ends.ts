import type { ErrorBody } from '#schemas/error.ts'
import type { Metered } from '#shared/usage/meter.ts'

/** How an owner ends a job well. */
export interface CompletedEnd {
  readonly result: unknown
  /** As its caller sees it. */
  readonly usage?: unknown
  /** For the ledger. */
  readonly metered?: Metered
}

/** How an owner ends a job that failed. */
export interface FailedEnd {
  readonly error: ErrorBody
  readonly metered?: Metered
}

/**
 * How a cancel treats a job that may write what there is. `again`: the first lets it, the next ends that; `once`: the next does
 * nothing; `final`: it may not.
 */
export type CancelHow = 'again' | 'once' | 'final'
