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
 * Effect of a cancel on a job that may write a partial result. With `again`, the first cancel requests the partial result, and a second
 * one ends the job. With `once`, a second cancel has no effect. With `final`, the job ends without a partial result.
 */
export type CancelHow = 'again' | 'once' | 'final'
