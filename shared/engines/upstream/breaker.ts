import { type CircuitBreakerPolicy, CircuitState, ConsecutiveBreaker, circuitBreaker, handleWhen } from 'cockatiel'
import type { ErrorCode } from '#schemas/error.ts'
import { ServiceError } from '#shared/error.ts'

/**
 * Spares an upstream that keeps failing: after `failures` calls in a row that failed, calls are refused for `resetMs`;
 * then one trial call decides whether the circuit closes again.
 *
 * One breaker serves one model of one upstream, so that a broken model never shuts out its healthy neighbours. A call
 * counts as failed only by what it did until its first byte, and only when the upstream is to blame.
 */
export class Breaker {
  readonly #model: string
  readonly #resetMs: number
  readonly #policy: CircuitBreakerPolicy
  #opensAgainMs = 0

  constructor(model: string, options: { failures: number; resetMs: number }) {
    this.#model = model
    this.#resetMs = options.resetMs
    this.#policy = circuitBreaker(
      handleWhen((error) => this.#isFailure(error)),
      { breaker: new ConsecutiveBreaker(options.failures), halfOpenAfter: options.resetMs },
    )
    this.#policy.onBreak(() => {
      this.#opensAgainMs = Date.now() + this.#resetMs
    })
  }

  /** Whether calls are refused now, all or all but one trial. */
  get isOpen(): boolean {
    const { state } = this.#policy
    return state === CircuitState.HalfOpen || (state === CircuitState.Open && Date.now() < this.#opensAgainMs)
  }

  /**
   * Runs a call, unless the circuit is open.
   *
   * @throws ServiceError `overloaded` with the time until the next trial; else whatever the call throws.
   */
  run<T>(call: () => Promise<T>): Promise<T> {
    // While the trial call runs, cockatiel would let the others wait for its outcome without any bound.
    if (this.#policy.state === CircuitState.HalfOpen) throw this.#open(this.#resetMs)
    if (this.#policy.state === CircuitState.Open && Date.now() < this.#opensAgainMs) {
      throw this.#open(this.#opensAgainMs - Date.now())
    }
    return this.#policy.execute(call)
  }

  #open(retryAfterMs: number): ServiceError {
    return new ServiceError('overloaded', `The upstream of model '${this.#model}' keeps failing; calls are paused.`, {
      retryAfterMs: Math.min(retryAfterMs, 60_000),
    })
  }

  /** In the trial call only an answer closes the circuit: one that was cancelled, or met its deadline, proved nothing. */
  #isFailure(error: unknown): boolean {
    const code = error instanceof ServiceError ? error.code : undefined
    if (this.#policy.state === CircuitState.HalfOpen) return code === undefined || !ANSWERS.has(code)
    return code !== undefined && FAILURES.has(code)
  }
}

const FAILURES = new Set<ErrorCode>(['upstream_error', 'upstream_timeout', 'overloaded'])
const ANSWERS = new Set<ErrorCode>([
  'invalid_request',
  'context_length_exceeded',
  'request_too_large',
  'upstream_refused',
])
