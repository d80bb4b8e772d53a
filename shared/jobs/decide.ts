/*
 * The decision after an attempt: complete, retry, fail or cancel. `decide` is a pure function, and the owner of the job applies its result.
 *
 * 1. Any failure after output was sent ends an attached job, because a retry would send the output twice. A durable job is retried nevertheless,
 *    because its event `job.retrying` announces that the output restarts.
 * 2. Failed: the job is retried if the table in `schemas/error.ts` permits a retry, tries are left, and the retry budget is not exhausted. The delay
 *    grows with each try, and is at least the Retry-After of the error. If the delay exceeds its maximum or the remaining time, then the job fails.
 * 3. Lost: the job is retried at once, until `crashesMax` workers have died while they ran it.
 * 4. Handed back: the worker returned the job to its owner without running it, so no try is counted. The first two retries are immediate, because
 *    another worker may have the model, and a draining worker soon stops polling. Later retries are delayed by 100 ms to 2 s. When an attached job is
 *    handed back for the `handBacksMax`th time, it fails with `model_loading`.
 * 5. Deadline passed: the job fails with `timeout`. Cancelled: the job ends as cancelled.
 */

import { ERRORS, type ErrorBody, isUpstreamFailure } from '#schemas/error.ts'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'

const HAND_BACK_MS_MAX = 2_000

export type Outcome =
  | { type: 'completed' }
  | { type: 'failed'; error: ErrorBody }
  | { type: 'lost' }
  /** The worker returned the job to its owner without running it, because the worker drains or lacks the model. */
  | { type: 'handed_back' }
  | { type: 'cancelled'; error?: ErrorBody | undefined }
  | { type: 'timed_out' }

export interface History {
  /** Number of attempts that ended in a retryable failure, including this one. Limits retries. */
  readonly tries: number
  /**
   * Number of workers that died while they ran the job, including the worker of this attempt. If the number reaches
   * `crashesMax`, then the job fails, because it may be a poison job: a job that kills each worker that runs it.
   */
  readonly crashes: number
  readonly handBacks: number
  readonly hasOutput: boolean
  readonly remainingMs: number
}

export interface RetryPolicy {
  readonly triesMax: number
  readonly crashesMax: number
  readonly backoff: Backoff
  /**
   * The job fails after workers have handed it back this many times without running it. The first two retries are immediate, and later retries have a
   * growing delay.
   */
  readonly handBacksMax: number
  readonly delayMsMax: number
}

export type Decision =
  | { do: 'complete' }
  | { do: 'retry'; delayMs: number }
  | { do: 'fail'; error: ErrorBody }
  | { do: 'cancel'; error?: ErrorBody | undefined }

/**
 * @param canSpend True if the retry budget of the process is not exhausted
 * @param random Random number in [0, 1), for the jitter of the delay
 */
export function decide(
  outcome: Outcome,
  history: History,
  policy: RetryPolicy,
  canSpend: boolean,
  random: number,
): Decision {
  switch (outcome.type) {
    case 'completed':
      return { do: 'complete' }
    case 'cancelled':
      return { do: 'cancel', error: outcome.error }
    case 'timed_out':
      return { do: 'fail', error: failure('timeout', 'The request took longer than its deadline allows.') }
    case 'handed_back':
      return history.hasOutput ? failLost() : decideHandedBack(history, policy)
    case 'lost':
      return history.hasOutput || history.crashes >= policy.crashesMax ? failLost() : { do: 'retry', delayMs: 0 }
    case 'failed':
      return decideFailed(outcome.error, history, policy, canSpend, random)
  }
}

function decideHandedBack({ handBacks }: History, { handBacksMax }: RetryPolicy): Decision {
  if (handBacks >= handBacksMax) {
    return { do: 'fail', error: failure('model_loading', 'No worker could run this model yet. Try again later.') }
  }
  return { do: 'retry', delayMs: handBacks < 3 ? 0 : Math.min(100 * 2 ** (handBacks - 3), HAND_BACK_MS_MAX) }
}

function decideFailed(
  error: ErrorBody,
  history: History,
  policy: RetryPolicy,
  canSpend: boolean,
  random: number,
): Decision {
  const row: { readonly retry: boolean; readonly triesMax?: number } = ERRORS[error.code]
  const triesMax = Math.min(row.triesMax ?? policy.triesMax, policy.triesMax)
  const mayRetry = row.retry && !history.hasOutput && history.tries < triesMax && canSpend
  if (!mayRetry) return { do: 'fail', error }
  const delayMs = Math.max(error.retry_after_ms ?? 0, backoffMs(history.tries, policy.backoff, random))
  if (delayMs > policy.delayMsMax || delayMs >= history.remainingMs) return { do: 'fail', error }
  return { do: 'retry', delayMs }
}

/**
 * Adds the number of attempts and the remedy to the message of an upstream error after which no attempt follows. Used for attached calls only,
 * because the record of a durable job lists its attempts. The remedy names the same time as the header `Retry-After`.
 */
export function withAttempts(error: ErrorBody, tries: number): ErrorBody {
  const { code, message, retry_after_ms: waitMs } = error
  if (!isUpstreamFailure(code)) return error
  const made = tries === 1 ? '1 attempt was made.' : `${tries} attempts were made.`
  const remedy =
    waitMs === undefined
      ? 'Use another model, or try again later.'
      : `Retry after ${Math.max(1, Math.ceil(waitMs / 1_000))} s, or use another model.`
  return { ...error, message: `${message} ${made} ${remedy}` }
}

/**
 * Whether a failure counts as a try. A refusal, for example by a concurrency limit, does not count, because the job did
 * not run.
 */
export function isTry({ code }: ErrorBody): boolean {
  const row: { readonly retry: boolean; readonly isTry?: boolean } = ERRORS[code]
  return row.isTry ?? true
}

export const LOST: ErrorBody = failure('worker_lost', 'The worker that ran this request was lost.')

function failLost(): Decision {
  return { do: 'fail', error: LOST }
}

function failure(code: ErrorBody['code'], message: string): ErrorBody {
  return { code, message, param: null }
}

/**
 * Retry budget: limits retries to a fraction of the traffic, so that a failing upstream does not receive three times its normal load. Source: Google
 * SRE book, "Handling Overload".
 *
 * Each first attempt adds a fraction of a retry to the budget, and each retry takes one. The budget starts full, so that a quiet service can retry at
 * all. Example: with a fraction of 0.1 and a maximum of 100, a service with 1,000 calls per minute makes at most 100 retries per minute, after an
 * initial 100.
 */
export class RetryBudget {
  readonly #earnPerCall: number
  readonly #max: number
  #tokens: number

  /**
   * @param share Number of retries that each first attempt adds to the budget, such as 0.1
   * @param max Maximum number of saved retries
   */
  constructor(share: number, max: number) {
    this.#earnPerCall = share
    this.#max = max
    this.#tokens = max
  }

  earn(): void {
    this.#tokens = Math.min(this.#max, this.#tokens + this.#earnPerCall)
  }

  get canSpend(): boolean {
    return this.#tokens >= 1
  }

  spend(): void {
    this.#tokens -= 1
  }
}
