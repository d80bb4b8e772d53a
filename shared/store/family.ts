import type { PoolName } from '#schemas/job.ts'

/** What the store keeps of composed jobs: their steps, and what makes a child (docs/design.md, Families). */

/** A step to remember. */
export interface NewStep {
  /** Hash of what was asked for. */
  readonly key: string
  readonly kind: string
  /** JSON text of a {@link StepInput}; absent: it is not kept. */
  readonly input?: string | undefined
  /** Its value, or the blob in which it lies. */
  readonly output: StepOutput
  /** Of the blob that has the output, if any. */
  readonly blobBytes?: number | undefined
  readonly cost: Readonly<Record<string, number>>
}

/** The value of a step, or the key of the blob that has it. */
export type StepOutput = { readonly value: unknown } | { readonly blob: string }

/** What a step was asked for: as it was, or how it began, in canonical JSON of so many characters. */
export type StepInput = { readonly value: unknown } | { readonly cut: string; readonly length: number }

/** A step that was done: what it was, when, in which attempt, and what it cost. */
export interface DoneStep extends Omit<NewStep, 'input' | 'output' | 'blobBytes'> {
  readonly attempt: number
  readonly at_ms: number
  /** The blob in which its value lies, if in any. */
  readonly blob: string | null
}

/** A step with all that is known of it. */
export interface RecordedStep extends DoneStep {
  /** null where it was not kept. */
  readonly input: StepInput | null
  readonly output: StepOutput
}

/** A job to submit for another one, whose tenant, lane and trace it shares. */
export interface NewChild {
  /** A {@link childJobId} of its parent. */
  readonly id: string
  readonly pool: PoolName
  readonly kind: string
  readonly endpoint: string
  readonly model: string
  /** What a worker needs to run it: the body or where it lies. */
  readonly request: unknown
  readonly metadata?: Readonly<Record<string, string>> | undefined
  /** From now; never more than its parent has left, which is the default. */
  readonly deadlineInMs?: number | undefined
  /** As that of a job: what it may cost, in billionths of a US dollar. */
  readonly reservedNanos?: number | undefined
  /** Of the blob that has its request, if any. */
  readonly blobBytes?: number | undefined
}
