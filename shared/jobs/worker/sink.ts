import type { ErrorBody } from '#schemas/error.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import type { Progress } from '#shared/kinds/kind.ts'

/** Bytes of a whole answer at which it is refused, unless its kind says otherwise. */
export const ANSWER_BYTES_MAX = 8 * 1024 * 1024

/**
 * Where an attempt says what it made and how it ended: to its ingress, or into the store. Each end resolves when it is
 * told for good, and only one of them is called.
 */
export interface AttemptSink {
  /** Whether the job can run again although output of this attempt was told. */
  readonly canRestart: boolean
  /** Gives a promise of room for more when there is none. @throws ServiceError `answer_too_large`; `internal_error` for a piece that nothing can carry */
  event(event: unknown): Promise<void> | undefined
  readonly onProgress?: ((progress: Progress) => void) | undefined
  /** @throws ServiceError When the output is not that of a finished job; nothing is told then */
  completed(): Promise<void>
  /** @param isInfrastructure See {@link ServiceError.isInfrastructure}: where the job can wait, the attempt is made again */
  failed(error: ErrorBody, isInfrastructure?: boolean): Promise<void>
  handedBack(): Promise<void>
  cancelled(): Promise<void>
  /**
   * What its handler composes with; undefined where the job has nothing that remembers.
   *
   * @param onPark The attempt is to end here with {@link parked}: its handler goes no further.
   */
  compose?(signal: AbortSignal, onPark: () => void): Composition
  parked?(): Promise<void>
  /** The job was cancelled, and is to write what there is; absent where nothing can. A second call does nothing. */
  wrapUp?(): void
  /** Whether it was told so. */
  readonly isWrappingUp?: boolean
}

/** Where an attempt of an attached job says what it made: its ingress. */
export interface ReportedEvents extends AttemptSink {
  /** Says that it has begun, and with whom. Resolves when the broker has it. */
  started(): Promise<void>
}
