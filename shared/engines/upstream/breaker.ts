import { type CircuitBreakerPolicy, CircuitState, ConsecutiveBreaker, circuitBreaker, handleWhen } from 'cockatiel'
import type { ErrorCode } from '#schemas/error.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * A circuit breaker: after `failures` consecutive failed calls, calls are rejected for `resetMs`. Then one trial call decides whether the
 * circuit closes again.
 *
 * Each model of each upstream server has its own breaker, so that a broken model does not affect healthy ones. A call counts as failed only
 * if the upstream is at fault, and only by its result up to the first byte.
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

  get isOpen(): boolean {
    const { state } = this.#policy
    return state === CircuitState.HalfOpen || (state === CircuitState.Open && Date.now() < this.#opensAgainMs)
  }

  /**
   * Runs a call, unless the circuit is open.
   *
   * @throws ServiceError `overloaded` with the time until the next trial; else the error of the call.
   */
  run<T>(call: () => Promise<T>): Promise<T> {
    // During the trial call, cockatiel would let other calls wait for its result without a bound.
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

  /** The trial call closes the circuit only by an answer. A trial that was cancelled or timed out proves nothing. */
  #isFailure(error: unknown): boolean {
    const code = error instanceof ServiceError ? error.code : undefined
    if (this.#policy.state === CircuitState.HalfOpen) return code === undefined || !ANSWER_CODES.has(code)
    return code !== undefined && FAILURE_CODES.has(code)
  }
}

const FAILURE_CODES = new Set<ErrorCode>(['upstream_error', 'upstream_timeout', 'overloaded'])
const ANSWER_CODES = new Set<ErrorCode>([
  'invalid_request',
  'context_length_exceeded',
  'request_too_large',
  'upstream_refused',
])
