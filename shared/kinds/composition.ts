import type { ErrorBody } from '#schemas/error.ts'
import type { EncodeContext, PoolName } from '#schemas/job.ts'

export const STEP_BYTES_MAX = 1024 * 1024

export interface StepResult<T> {
  readonly value: T
  /**
   * External usage of this step by unit, such as `{ searches: 1 }`. The sum {@link Composition.spent} includes steps that an earlier attempt
   * recorded.
   */
  readonly cost?: Cost
}

/**
 * The external work of a step.
 *
 * @param traceparent Trace context for requests of the step. Undefined if the step has no span
 */
export type StepRun<T> = (signal: AbortSignal, traceparent?: string) => Promise<StepResult<T>>

/** Amounts by unit, such as searches, pages, tokens or US dollars. The sum of two costs adds the amounts of equal units. */
export type Cost = Readonly<Record<string, number>>

export interface ChildJob {
  /** Name of the child, unique within its parent. If the parent submits a child with the same key again, then the first child is returned. */
  readonly key: string
  /** Path of the API call that the child job runs, such as `/v1/chat/completions`. The child's result has the response format of this path. */
  readonly endpoint: string
  readonly kind: string
  readonly pool: PoolName
  readonly model: string
  readonly body: unknown
  /** The request as a caller sent it, such as a line of a batch. Undefined if the parent made the request. */
  readonly sent?: unknown
  readonly encode?: Partial<EncodeContext> | undefined
  readonly metadata?: Readonly<Record<string, string>>
  /** Time from now until the child's deadline, in ms. At most the remaining time of the parent. */
  readonly deadlineInMs?: number
  /** Maximum cost, in billionths of a US dollar. The budgets reserve this amount until the real cost is recorded. Default: 0. */
  readonly reservedNanos?: number | undefined
}

export type ChildEnd =
  | { readonly id: string; readonly state: 'completed'; readonly result: unknown; readonly usage: unknown }
  | { readonly id: string; readonly state: 'failed' | 'cancelled' | 'expired'; readonly error: ErrorBody }

/**
 * Operations of a composed job's handler that have effects outside of the handler: recorded steps and child jobs.
 *
 * The handler runs from its beginning in every attempt. Every external effect must go through {@link step} or {@link submit}. A second run then
 * receives the recorded results of the first run, at no external cost.
 */
export interface Composition {
  /**
   * Returns the result of a step. If an earlier attempt committed the step, then its recorded result is returned. Otherwise `run` is called, and its
   * result is committed before it is returned. A step is identified by a hash of `kind` and `input` (canonical JSON).
   *
   * @throws Any error of `run`. In this case no result is recorded
   */
  step<T>(kind: string, input: unknown, run: StepRun<T>): Promise<T>
  /** Returns the recorded result of a step, without its cost. Undefined if no attempt has recorded the step. */
  find<T>(kind: string, input: unknown): Promise<T | undefined>
  /**
   * Publishes events of the job's kind, exactly once. The events are committed together with a step that marks them as published. If a later attempt
   * publishes the same key, then subscribers do not receive the events again. A stream therefore continues across attempts.
   *
   * A handler that calls this method must publish all of its output with it, and yield no events.
   *
   * @param key Unique within the job. Every attempt must publish the same events under the same key
   */
  publish(key: string, events: readonly unknown[]): Promise<void>
  /**
   * Publishes events that another attempt could not reproduce, such as text of a model. In contrast to {@link publish}, the events are also stored.
   * A later attempt first reads them with {@link published} and calls this method with the same key and events, which subscribers receive only once.
   */
  publishStored(key: string, events: readonly unknown[]): Promise<void>
  /**
   * Returns the events that {@link publishStored} published under a key in any attempt. Undefined if there are none.
   */
  published(key: string): Promise<readonly unknown[] | undefined>
  /**
   * Submits a child to its pool and returns the child's id. A second call with the same key returns the same child.
   *
   * @throws ServiceError `invalid_request` if the job has too many child jobs, or too many levels of them
   */
  submit(child: ChildJob): Promise<string>
  /**
   * Returns the terminal states and results of children, in the order of `ids`.
   *
   * If a child has not ended, then the parent is parked. The state of the parent is stored, its slot is freed, and this promise never resolves. The
   * handler runs again from its beginning when all children have ended, at {@link wrapUpAtMs}, or after a cancel. After {@link wrapUpAtMs} or a
   * cancel, the result is `undefined` for each unfinished child.
   */
  waitFor(ids: readonly string[]): Promise<(ChildEnd | undefined)[]>
  /**
   * Waits as {@link waitFor} does, but does not load the results. A handler with many children can then read their results one at a time with
   * {@link endOf}.
   */
  wait(ids: readonly string[]): Promise<void>
  /**
   * Returns the terminal state and result of a child. Undefined if the child has not ended or does not exist.
   *
   * @param parent Id of the child job that submitted `id`, if `id` is a grandchild of this job. Undefined if `id` is a child of this job
   */
  endOf(id: string, parent?: string): Promise<ChildEnd | undefined>
  /** Costs of all steps and usage of all children so far, by unit. */
  readonly spent: Cost
  /**
   * Time before the deadline, in Unix milliseconds, at which the handler must start to write its result. After a cancel the value is 0, so the
   * handler must start at once.
   */
  readonly wrapUpAtMs: number
  /**
   * Aborts when the job was cancelled but may still write a partial result, within seconds. If the job has another attempt after the cancel, then the
   * signal is aborted from the beginning of that attempt. The handler must then stop external work. A handler without a partial result throws a
   * ServiceError `job_cancelled`.
   */
  readonly cancelled: AbortSignal
}
