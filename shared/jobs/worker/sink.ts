import type { ErrorBody } from '#schemas/error.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import type { Progress } from '#shared/kinds/kind.ts'

/** Maximum bytes of a complete answer, unless its kind sets another limit. A larger answer is an error. */
export const ANSWER_BYTES_MAX = 8 * 1024 * 1024

/**
 * Receiver of an attempt's output and end: the ingress, or the store. Exactly one end method is called, and its promise resolves
 * when the end is sent or committed.
 */
export interface AttemptSink {
  readonly canRestart: boolean
  /**
   * Adds an event. Returns a promise to wait for if the buffer is full. @throws ServiceError `answer_too_large`; `internal_error`
   * for an event too large for any record
   */
  event(event: unknown): Promise<void> | undefined
  readonly onProgress?: ((progress: Progress) => void) | undefined
  /** @throws ServiceError if the output is incomplete; nothing is published then */
  completed(): Promise<void>
  /** @param isInfrastructure See {@link ServiceError.isInfrastructure}: a job that can wait is then retried */
  failed(error: ErrorBody, isInfrastructure?: boolean): Promise<void>
  handedBack(): Promise<void>
  cancelled(): Promise<void>
  /**
   * Steps and child jobs for the handler; undefined for jobs without a store.
   *
   * @param onPark Called when the attempt must end with {@link parked}: the handler does not continue
   */
  compose?(signal: AbortSignal, onPark: () => void): Composition
  parked?(): Promise<void>
  /**
   * Call when the job was cancelled and may write a partial result. Absent if no partial result is possible. A second call does
   * nothing.
   */
  wrapUp?(): void
  readonly isWrappingUp?: boolean
}

export interface ReportedEvents extends AttemptSink {
  /** Reports the start, with the boot id of this worker. Resolves when the broker has the event. */
  started(): Promise<void>
}
