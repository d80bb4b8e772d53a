import type { ErrorBody } from '#schemas/error.ts'
import type { Metered } from '#shared/usage/meter.ts'

export interface CompletedEnd {
  readonly result: unknown
  /** Usage of the job, in the form that the caller receives. */
  readonly usage?: unknown
  /** Usage of the job, in the form of the usage ledger. */
  readonly metered?: Metered
}

export interface FailedEnd {
  readonly error: ErrorBody
  readonly metered?: Metered
}

/**
 * Effect of a cancel on a job that may write a partial result. `again`: the first cancel permits it, the second ends the job; `once`: a second cancel
 * has no effect; `final`: no partial result.
 */
export type CancelHow = 'again' | 'once' | 'final'
