import { RateLimiterMemory, type RateLimiterRes } from 'rate-limiter-flexible'
import type { ErrorCode } from '#schemas/error.ts'
import type { WireFormat } from '#services/ingress/reply/errors.ts'
import { ServiceError } from '#shared/error.ts'

const MINUTE_SECONDS = 60

/** What one key may use of one ingress. 0 means no limit. */
export interface RateLimitConfig {
  readonly rateLimitRequests: number
  readonly rateLimitTokens: number
  /** Calls at once. */
  readonly runningMaxPerKey: number
  /** Waits for jobs and streams of their events that may be open at once. */
  readonly followsMaxPerKey: number
  /** Runs of code a minute of one end user of a key, as its caller names them. */
  readonly codeRunsPerUser: number
}

type Kind = 'requests' | 'tokens'

/** What takes the headers: a response. */
interface Headed {
  setHeader(name: string, value: string): unknown
}

/**
 * Limits per key: requests and tokens a minute, and calls at once (docs/protocol.md, Limits). Counted in this process:
 * with several ingresses each grants the whole limit.
 *
 * Calls are what makes work. Who reads, polls, follows or cancels is not refused for the calls under way; only what stays
 * open, waits and streams of events, has a bound of its own.
 */
export class RateLimits {
  readonly #limiters: Partial<Record<Kind, RateLimiterMemory>>
  readonly #users: RateLimiterMemory | undefined
  readonly #running = new Map<string, number>()
  readonly #following = new Map<string, number>()
  readonly #runningMax: number
  readonly #followsMax: number

  constructor(config: RateLimitConfig) {
    this.#limiters = {
      ...(config.rateLimitRequests > 0 && { requests: limiter(config.rateLimitRequests) }),
      ...(config.rateLimitTokens > 0 && { tokens: limiter(config.rateLimitTokens) }),
    }
    this.#users = config.codeRunsPerUser > 0 ? limiter(config.codeRunsPerUser) : undefined
    this.#runningMax = config.runningMaxPerKey
    this.#followsMax = config.followsMaxPerKey
  }

  /**
   * A call of the key begins. It is looked at and counted in one step: calls that come together must not all find the same
   * place free.
   *
   * @returns Says that the call has ended.
   *
   * @throws ServiceError `rate_limit_exceeded` when as many run as may
   */
  begin(keyId: string): () => void {
    return take(this.#running, keyId, this.#runningMax, 'run', 'requests')
  }

  /**
   * A wait for a job of the key, or a stream of its events, begins.
   *
   * @returns Says that it has ended.
   * @throws ServiceError `rate_limit_exceeded` when as many are open as may
   */
  beginFollow(keyId: string): () => void {
    return take(this.#following, keyId, this.#followsMax, 'have', 'waits and event streams open')
  }

  /**
   * Counts one call of a key, or refuses it. Either way `res` gets the headers that tell what is left
   * (docs/protocol.md, Headers); none without limits.
   *
   * @throws ServiceError `rate_limit_exceeded` with the time until the limit allows more
   */
  async count(keyId: string, format: WireFormat, res: Headed): Promise<void> {
    const { requests, tokens } = this.#limiters
    if (tokens) {
      const state = await tokens.get(keyId)
      tell(res, 'tokens', format, tokens.points, state)
      if (state && state.remainingPoints <= 0) throw exceeded('tokens', tokens.points, state)
    }
    if (requests) {
      const [state, isRefused] = await requests.consume(keyId).then(
        (state) => [state, false] as const,
        (refused: RateLimiterRes) => [refused, true] as const,
      )
      tell(res, 'requests', format, requests.points, state)
      if (isRefused) throw exceeded('requests', requests.points, state)
    }
  }

  /** Gives `res` the headers that tell what is left to a key, without counting anything. */
  async show(keyId: string, format: WireFormat, res: Headed): Promise<void> {
    for (const kind of ['tokens', 'requests'] as const) {
      const limiter = this.#limiters[kind]
      if (limiter) tell(res, kind, format, limiter.points, await limiter.get(keyId))
    }
  }

  /**
   * Counts one call of an end user of a key, or refuses it. Calls that name no user are not counted.
   *
   * @throws ServiceError `rate_limit_exceeded` with the time until the limit allows more
   */
  async countUser(keyId: string, userId: string | undefined): Promise<void> {
    if (!this.#users || userId === undefined) return
    const { points } = this.#users
    await this.#users.consume(`${keyId} ${userId}`).catch((refused: RateLimiterRes) => {
      throw refusal(`Rate limit reached: ${points} runs per minute of one user.`, refused.msBeforeNext)
    })
  }

  /** Counts the tokens a call used, after it. */
  spendTokens(keyId: string, tokens: number): void {
    // Penalty counts without refusing: the tokens are used already.
    void this.#limiters.tokens?.penalty(keyId, tokens)
  }
}

/** Takes one place of a key. @param most 0: without a bound. */
function take(taken: Map<string, number>, keyId: string, most: number, may: string, what: string): () => void {
  const count = taken.get(keyId) ?? 0
  if (count >= (most || Infinity)) throw refusal(`This key may ${may} ${most} ${what} at once.`, 1_000)
  taken.set(keyId, count + 1)
  return () => {
    const left = (taken.get(keyId) ?? 1) - 1
    if (left > 0) taken.set(keyId, left)
    else taken.delete(keyId)
  }
}

function tell(res: Headed, kind: Kind, format: WireFormat, limit: number, state: RateLimiterRes | null): void {
  const remaining = String(Math.max(0, state?.remainingPoints ?? limit))
  const resetMs = state?.msBeforeNext ?? 0
  if (format === 'anthropic') {
    res.setHeader(`anthropic-ratelimit-${kind}-limit`, String(limit))
    res.setHeader(`anthropic-ratelimit-${kind}-remaining`, remaining)
    res.setHeader(`anthropic-ratelimit-${kind}-reset`, new Date(Date.now() + resetMs).toISOString())
  } else {
    res.setHeader(`x-ratelimit-limit-${kind}`, String(limit))
    res.setHeader(`x-ratelimit-remaining-${kind}`, remaining)
    res.setHeader(`x-ratelimit-reset-${kind}`, resetMs < 1_000 ? `${resetMs}ms` : `${Math.ceil(resetMs / 1_000)}s`)
  }
}

function limiter(points: number): RateLimiterMemory {
  return new RateLimiterMemory({ points, duration: MINUTE_SECONDS })
}

function exceeded(kind: Kind, limit: number, state: RateLimiterRes): ServiceError {
  const code = kind === 'tokens' ? 'token_limit_exceeded' : 'rate_limit_exceeded'
  return refusal(`Rate limit reached: ${limit} ${kind} per minute.`, state.msBeforeNext, code)
}

function refusal(message: string, retryAfterMs: number, code: ErrorCode = 'rate_limit_exceeded'): ServiceError {
  return new ServiceError(code, `${message} Try again later.`, { retryAfterMs })
}
