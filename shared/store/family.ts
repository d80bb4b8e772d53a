import type { PoolName } from '#schemas/job.ts'

/** Records of composed jobs: their steps and children (docs/internals/design.md, Composed jobs). */

export interface NewStep {
  readonly key: string
  readonly kind: string
  /** JSON text of a {@link StepInput}; absent if the input is not recorded. */
  readonly input?: string | undefined
  readonly output: StepOutput
  /** Size of the blob with the output, in bytes; absent if the output is not in a blob. */
  readonly blobBytes?: number | undefined
  readonly cost: Readonly<Record<string, number>>
}

export type StepOutput = { readonly value: unknown } | { readonly blob: string }

/** Input of a step, complete or truncated: canonical JSON with its original length in characters. */
export type StepInput = { readonly value: unknown } | { readonly cut: string; readonly length: number }

export interface DoneStep extends Omit<NewStep, 'input' | 'output' | 'blobBytes'> {
  readonly attempt: number
  readonly at_ms: number
  readonly blob: string | null
}

export interface RecordedStep extends DoneStep {
  readonly input: StepInput | null
  readonly output: StepOutput
}

/** A child job to submit. Tenant, priority and trace are those of the parent. */
export interface NewChild {
  readonly id: string
  readonly pool: PoolName
  readonly kind: string
  readonly endpoint: string
  readonly model: string
  /** Input for the worker: the body, or the key of the blob that contains it. */
  readonly request: unknown
  readonly metadata?: Readonly<Record<string, string>> | undefined
  /** Time from now until the deadline, in ms. Default and maximum: the remaining time of the parent. */
  readonly deadlineInMs?: number | undefined
  /** Estimated maximum cost, in billionths of a US dollar. */
  readonly reservedNanos?: number | undefined
  readonly blobBytes?: number | undefined
}
