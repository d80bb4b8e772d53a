import { RateLimiterMemory, type RateLimiterRes } from 'rate-limiter-flexible'
import { ServiceError } from '#shared/error.ts'
import type { WireFormat } from './call.ts'

const MINUTE_SECONDS = 60

/** What a key may use. 0 means no limit. */
export interface RateLimitConfig {
  readonly requestsPerMinute: number
  readonly tokensPerMinute: number
  readonly runningMaxPerKey: number
}

type Kind = 'requests' | 'tokens'

/**
 * Limits per key: requests and tokens a minute, and calls at once (contract J 40). Counted in this process: with several
 * ingresses each grants the whole limit.
 */
export class RateLimits {
  readonly #limiters: Partial<Record<Kind, RateLimiterMemory>>
  readonly #running = new Map<string, number>()
  readonly #runningMax: number

  constructor(config: RateLimitConfig) {
    this.#limiters = {
      ...(config.requestsPerMinute > 0 && { requests: limiter(config.requestsPerMinute) }),
      ...(config.tokensPerMinute > 0 && { tokens: limiter(config.tokensPerMinute) }),
    }
    this.#runningMax = config.runningMaxPerKey
  }

  /**
   * Counts one call of a key, or refuses it.
   *
   * @returns The headers that tell what is left (contract A.5); empty without limits.
   * @throws ServiceError `rate_limit_exceeded` with the time until the limit allows more
   */
  async admit(keyId: string, format: WireFormat): Promise<Record<string, string>> {
    if ((this.#running.get(keyId) ?? 0) >= (this.#runningMax || Infinity)) {
      throw refusal(`This key may run ${this.#runningMax} requests at once.`, 1_000)
    }
    const headers: Record<string, string> = {}
    const { requests, tokens } = this.#limiters
    if (tokens) {
      const state = await tokens.get(keyId)
      if (state && state.remainingPoints <= 0) throw exceeded('tokens', tokens.points, state)
      Object.assign(headers, headersOf('tokens', format, tokens.points, state))
    }
    if (requests) {
      const state = await requests.consume(keyId).catch((refused: RateLimiterRes) => {
        throw exceeded('requests', requests.points, refused)
      })
      Object.assign(headers, headersOf('requests', format, requests.points, state))
    }
    return headers
  }

  /** A call of the key began; call the result when it ended. */
  begin(keyId: string): () => void {
    this.#running.set(keyId, (this.#running.get(keyId) ?? 0) + 1)
    return () => {
      const left = (this.#running.get(keyId) ?? 1) - 1
      if (left > 0) this.#running.set(keyId, left)
      else this.#running.delete(keyId)
    }
  }

  /** Counts the tokens a call used, after it. */
  spendTokens(keyId: string, tokens: number): void {
    // Penalty counts without refusing: the tokens are used already.
    void this.#limiters.tokens?.penalty(keyId, tokens)
  }
}

function limiter(points: number): RateLimiterMemory {
  return new RateLimiterMemory({ points, duration: MINUTE_SECONDS })
}

function exceeded(kind: Kind, limit: number, state: RateLimiterRes): ServiceError {
  return refusal(`Rate limit reached: ${limit} ${kind} per minute.`, state.msBeforeNext)
}

function refusal(message: string, retryAfterMs: number): ServiceError {
  return new ServiceError('rate_limit_exceeded', `${message} Try again later.`, { retryAfterMs })
}

function headersOf(
  kind: Kind,
  format: WireFormat,
  limit: number,
  state: RateLimiterRes | null,
): Record<string, string> {
  const remaining = Math.max(0, state?.remainingPoints ?? limit)
  const resetMs = state?.msBeforeNext ?? 0
  if (format === 'anthropic') {
    return {
      [`anthropic-ratelimit-${kind}-limit`]: String(limit),
      [`anthropic-ratelimit-${kind}-remaining`]: String(remaining),
      [`anthropic-ratelimit-${kind}-reset`]: new Date(Date.now() + resetMs).toISOString(),
    }
  }
  return {
    [`x-ratelimit-limit-${kind}`]: String(limit),
    [`x-ratelimit-remaining-${kind}`]: String(remaining),
    [`x-ratelimit-reset-${kind}`]: resetMs < 1_000 ? `${resetMs}ms` : `${Math.ceil(resetMs / 1_000)}s`,
  }
}
