import type { ErrorBody } from '#schemas/error.ts'
import type { EncodeContext, PoolName } from '#schemas/job.ts'

/** What a composed job is made of: steps that are remembered, and children that other pools run (docs/design.md, Families). */

/** JSON of what one step gives, in bytes. */
export const STEP_BYTES_MAX = 1024 * 1024

/** What one step of a composed job gave, and what it cost. */
export interface StepResult<T> {
  /** JSON. */
  readonly value: T
  /** What was used outside, by unit, such as `{ searches: 1 }`. Counted again when the step is replayed. */
  readonly cost?: Cost
}

/** Amounts by unit, such as searches, pages, tokens, usd. Only sums are ever made of them. */
export type Cost = Readonly<Record<string, number>>

/** A job that a composed job has done by another pool. */
export interface ChildJob {
  /** Unique within its parent: the same key is the same child, whoever submits it and how often. */
  readonly key: string
  /** Path of the call it stands for, such as `/v1/chat/completions`: its result reads like that call's answer. */
  readonly endpoint: string
  readonly kind: string
  readonly pool: PoolName
  readonly model: string
  /** The request in the internal form of its kind. */
  readonly body: unknown
  /** What its answer needs to be written beside what all answers need. */
  readonly encode?: Partial<EncodeContext> | undefined
  readonly metadata?: Readonly<Record<string, string>>
  /** Milliseconds from now; never more than its parent has left. */
  readonly deadlineInMs?: number
  /** What it may cost, in billionths of a US dollar: held against budgets until its cost is entered; default: nothing. */
  readonly reservedNanos?: number | undefined
}

/** How a child ended. */
export type ChildEnd =
  | { readonly id: string; readonly state: 'completed'; readonly result: unknown; readonly usage: unknown }
  | { readonly id: string; readonly state: 'failed' | 'cancelled' | 'expired'; readonly error: ErrorBody }

/**
 * What the handler of a composed job does beside computing: it remembers steps, and has other jobs do work.
 *
 * The handler runs from its beginning in every attempt. Whatever it does outside goes through {@link step} or
 * {@link submit}, so that a second run gives what the first one got, and costs nothing outside.
 */
export interface Composition {
  /**
   * Gives the result of a step: from the store when an attempt before has committed it, else by `run`, committed before this
   * resolves. The step is known by a hash of `kind` and `input` (canonical JSON).
   *
   * @throws What `run` throws; nothing is kept then.
   */
  step<T>(kind: string, input: unknown, run: (signal: AbortSignal) => Promise<StepResult<T>>): Promise<T>
  /**
   * Says events of the job's kind, once: they are committed together with a step that remembers that they were said, so that an
   * attempt that says them again tells nobody, and only knows what it has said. Streams of such a job go on from attempt to attempt.
   * A handler that tells events says all its output so, and yields none.
   *
   * @param key Unique within the job. The events of a key are the same in every attempt.
   */
  publish(key: string, events: readonly unknown[]): Promise<void>
  /**
   * As {@link publish}, of events that another attempt could not make again, such as what a model says: they are kept, and
   * {@link published} gives them. An attempt that finds some tells these, under the same key, before it goes on.
   */
  publishStored(key: string, events: readonly unknown[]): Promise<void>
  /** The events that {@link publishStored} has said under a key, in whichever attempt; undefined where it has not. */
  published(key: string): Promise<readonly unknown[] | undefined>
  /** Hands a child to its pool and gives its id; a second time it is the same child. @throws ServiceError `invalid_request` beyond the bounds of a family */
  submit(child: ChildJob): Promise<string>
  /**
   * Gives how children ended, in the order of `ids`. While one has not, the parent leaves its slot and is parked in the store: this
   * never resolves then, and the handler runs again when they have, at {@link wrapUpAtMs}, or once it is {@link cancelled}: from then
   * on a child that still runs is given as `undefined`.
   */
  waitFor(ids: readonly string[]): Promise<(ChildEnd | undefined)[]>
  /** As {@link waitFor}, without reading what came of them: for many children, whose results are read one by one. */
  wait(ids: readonly string[]): Promise<void>
  /** How a child ended, or a child of the child `parent`; undefined while it has not, and where there is none. */
  endOf(id: string, parent?: string): Promise<ChildEnd | undefined>
  /** Costs of all steps and usage of all children so far, by unit. */
  readonly spent: Cost
  /** Unix milliseconds at which to write what there is: before the job's deadline by a margin. 0: {@link cancelled}. */
  readonly wrapUpAtMs: number
  /**
   * Aborts when the job was cancelled and is to write what there is, within seconds; from then on in all its attempts. Whatever
   * goes on outside is to be cut. A handler that has nothing to write throws a ServiceError `job_cancelled`.
   */
  readonly cancelled: AbortSignal
}
