import { ERRORS, type ErrorBody } from '#schemas/error.ts'
import { type Backoff, backoffMs } from '#shared/backoff.ts'

/** Longest wait after a job was handed back. */
const HAND_BACK_MS_MAX = 2_000

/** How an attempt ended, as its arbiter sees it. */
export type Outcome =
  | { type: 'completed' }
  | { type: 'failed'; error: ErrorBody }
  /** The worker died or cannot be heard any more. */
  | { type: 'lost' }
  /** The worker drains, or does not know the model, and gave the job back. */
  | { type: 'handed_back' }
  | { type: 'cancelled'; error?: ErrorBody | undefined }
  | { type: 'timed_out' }

/** What a job has been through, and what is left of its time. */
export interface History {
  /** Attempts that ended in a retryable failure, this one included when it is one. Budgets retries. */
  readonly tries: number
  /** Workers that died while they ran the job, this one included. Finds poison. */
  readonly crashes: number
  /** Workers that gave the job back, this one included. */
  readonly handBacks: number
  /** The caller has seen output that another attempt would repeat. */
  readonly hasOutput: boolean
  /** Milliseconds until the deadline. */
  readonly remainingMs: number
}

/** When to try again, and when to stop. */
export interface RetryPolicy {
  readonly triesMax: number
  readonly crashesMax: number
  readonly backoff: Backoff
  /** Workers that may give a job back; from the third on each is waited for longer. */
  readonly handBacksMax: number
  /** A wait longer than this is the caller's to make: the failure goes to it with its Retry-After. */
  readonly delayMsMax: number
}

/** What the arbiter does about it. */
export type Decision =
  | { do: 'complete' }
  | { do: 'retry'; delayMs: number }
  | { do: 'fail'; error: ErrorBody }
  | { do: 'cancel'; error?: ErrorBody | undefined }

/**
 * Decides what follows an outcome. The same facts give the same decision, and nothing is done here: the arbiter
 * performs it.
 *
 * @param canSpend The process-wide retry budget has room.
 * @param random In [0, 1), for the jitter.
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

/** Those that drain are soon gone, and while models are rolled out another worker may know this one. */
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

/** Whether a failure used up one of the job's tries. A job that only had to wait for others of its key has tried nothing. */
export function isTry({ code }: ErrorBody): boolean {
  const row: { readonly retry: boolean; readonly isTry?: boolean } = ERRORS[code]
  return row.isTry ?? true
}

function failLost(): Decision {
  return { do: 'fail', error: failure('worker_lost', 'The worker that ran this request was lost.') }
}

function failure(code: ErrorBody['code'], message: string): ErrorBody {
  return { code, message, param: null }
}

/**
 * Limits retries to a share of the traffic, so that a failing upstream is not asked three times as often as a healthy one
 * (Google SRE book, "Handling Overload": retry budgets).
 *
 * Every first attempt earns a part of a retry; every retry spends a whole one. A few are there from the start, so that
 * a quiet service can retry at all.
 */
export class RetryBudget {
  readonly #earnPerCall: number
  readonly #max: number
  #tokens: number

  /** @param share Retries per first attempt in the long run, such as 0.1. @param max Most retries saved up. */
  constructor(share: number, max: number) {
    this.#earnPerCall = share
    this.#max = max
    this.#tokens = max
  }

  /** A first attempt was made. */
  earn(): void {
    this.#tokens = Math.min(this.#max, this.#tokens + this.#earnPerCall)
  }

  /** Whether a retry may be made now. */
  get canSpend(): boolean {
    return this.#tokens >= 1
  }

  /** A retry is made. */
  spend(): void {
    this.#tokens -= 1
  }
}
