import { type CircuitBreakerPolicy, CircuitState, ConsecutiveBreaker, circuitBreaker, handleWhen } from 'cockatiel'
import type { ErrorCode } from '#schemas/error.ts'
import type { UpstreamConfig } from '#schemas/models.ts'
import type { AdaptiveLimit, Permit } from '#shared/capacity/adaptive-limit.ts'
import { refusedCallMessage, ServiceError } from '#shared/lib/error.ts'
import { KeysInFlight, preferredServer } from './affinity.ts'
import { failureText } from './error.ts'

export const CALLS_PER_SERVER_MAX = 512
/** Hosts of OpenAI's own servers, which support parameters that other servers reject. */
const OPENAI = /(^|\.)(openai\.com|openai\.azure\.com)$/

export interface ServerAddress {
  readonly url: string
  readonly weight: number
}

export function addressesOf({ base_url, base_urls = [] }: UpstreamConfig): ServerAddress[] {
  const listed = base_urls.map((entry) => (typeof entry === 'string' ? { url: entry, weight: 1 } : entry))
  return base_url === undefined ? listed : [{ url: base_url, weight: 1 }, ...listed]
}

export interface Server {
  readonly weight: number
  /** Hash of the URL, from which rendezvous hashing computes the score of the server for a key (`affinity.ts`). */
  readonly seed: number
  readonly breaker: Breaker
  readonly limit: AdaptiveLimit
}

export interface AcquiredPermit<Own extends Server> {
  readonly server: Own
  readonly permit: Permit
  readonly key: string | undefined
}

export interface PermitRequest<Own extends Server> {
  readonly signal: AbortSignal
  readonly isTimed: boolean
  /** Servers at which this call already failed. The call goes to another one, so at least one server must remain. */
  readonly tried: ReadonlySet<Own>
  /** Affinity key. If undefined, then the call is placed by load alone. */
  readonly key: string | undefined
}

interface QueuedCall {
  tryEnter(): boolean
}

/**
 * The upstream servers of one model. A call with an affinity key goes to the preferred server of the key (`affinity.ts`). Any other call
 * goes to the working server with the lowest load relative to its weight. Calls without a permit wait in a queue. Each waiting call belongs
 * to a job, so the worker's slots bound the queue.
 */
export class Servers<Own extends Server> {
  readonly all: readonly Own[]
  readonly #workers: () => number
  readonly #waiting = new Set<QueuedCall>()
  readonly #keys = new KeysInFlight()
  #next = 0

  /** @param workers Number of workers that share the servers */
  constructor(all: readonly Own[], workers: () => number) {
    this.all = all
    this.#workers = workers
  }

  get permits(): number {
    return this.all.reduce((sum, { limit }) => sum + limit.permits, 0)
  }

  /**
   * Acquires a permit for a call, or waits until one is free.
   *
   * @throws The signal's reason
   */
  async acquire(request: PermitRequest<Own>): Promise<AcquiredPermit<Own>> {
    const { signal } = request
    signal.throwIfAborted()
    const acquired = this.#waiting.size === 0 ? this.#tryAcquire(request) : undefined
    if (acquired) return acquired
    const { promise, resolve, reject } = Promise.withResolvers<AcquiredPermit<Own>>()
    const waiting: QueuedCall = {
      tryEnter: () => {
        const free = this.#tryAcquire(request)
        if (free) resolve(free)
        return free !== undefined
      },
    }
    const release = () => {
      this.#waiting.delete(waiting)
      reject(signal.reason)
    }
    signal.addEventListener('abort', release, { once: true })
    this.#waiting.add(waiting)
    // The calls ahead of this one may wait for other servers. A permit that is free now can therefore go to this call at once.
    this.admitWaiting()
    return await promise.finally(() => signal.removeEventListener('abort', release))
  }

  leave({ server, permit, key }: AcquiredPermit<Own>): void {
    server.limit.end(permit)
    if (key !== undefined) this.#keys.remove(key)
    this.admitWaiting()
  }

  admitWaiting(): void {
    for (const waiting of this.#waiting) if (waiting.tryEnter()) this.#waiting.delete(waiting)
  }

  #tryAcquire(request: PermitRequest<Own>): AcquiredPermit<Own> | undefined {
    const server = this.#choose(request)
    if (!server) return undefined
    const { key, isTimed } = request
    if (key !== undefined) this.#keys.add(key)
    return { server, permit: server.limit.begin(isTimed), key }
  }

  /** Selects a server for a call. If no server works, then one of the failing servers is selected, so that the caller receives its error. */
  #choose({ tried, key }: PermitRequest<Own>): Own | undefined {
    const untried = this.all.filter((server) => !tried.has(server))
    const working = untried.filter(({ breaker, limit }) => !breaker.isOpen && limit.pausedMs === 0)
    const candidates = working.length > 0 ? working : untried
    const free = candidates.filter(({ limit }) => limit.hasFreePermit)
    if (free.length < 2) return free[0]
    const isPlaced = key !== undefined && !this.#keys.isShared(key, this.#workers())
    const preferred = isPlaced ? preferredServer(key, candidates) : undefined
    if (preferred) return preferred
    this.#next = (this.#next + 1) % free.length
    const turned = [...free.slice(this.#next), ...free.slice(0, this.#next)]
    return turned.reduce((best, server) => (loadOf(server) < loadOf(best) ? server : best))
  }
}

function loadOf({ limit, weight }: Server): number {
  return (limit.inFlight + 1) / weight
}

export function isOpenAiServer(config: UpstreamConfig): boolean {
  let isOwn = ownServers.get(config)
  if (isOwn === undefined) {
    isOwn = addressesOf(config).some(({ url }) => OPENAI.test(new URL(url).hostname))
    ownServers.set(config, isOwn)
  }
  return isOwn
}

/** Cached results of {@link isOpenAiServer}, because parsing the URL would take 1 % of the time of each call. */
const ownServers = new WeakMap<UpstreamConfig, boolean>()

/**
 * A circuit breaker. After `failures` consecutive failed calls, calls are rejected for `resetMs`. Then one trial call decides whether the circuit
 * closes again.
 *
 * Each model of each upstream server has its own breaker, so that a broken model does not affect healthy models. Only faults of the upstream before
 * the first byte count as failures.
 */
export class Breaker {
  readonly #model: string
  readonly #resetMs: number
  readonly #policy: CircuitBreakerPolicy
  #opensAgainMs = 0
  #lastFailure = ''
  /** Message of the upstream in the last failure. Only operators can read this message in the request log. */
  #lastMessage: string | undefined
  #lastCode: ErrorCode = 'overloaded'

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

  /** Whether no call has succeeded since the circuit opened. Unlike `isOpen`, true also while the next call would be the trial. */
  get isFailing(): boolean {
    return this.#policy.state !== CircuitState.Closed
  }

  get isOpen(): boolean {
    const { state } = this.#policy
    return state === CircuitState.HalfOpen || (state === CircuitState.Open && Date.now() < this.#opensAgainMs)
  }

  /**
   * Runs a call, unless the circuit is open.
   *
   * @throws ServiceError the error of the call, or the code of the last failure with the time until the next trial
   */
  run<T>(call: () => Promise<T>): Promise<T> {
    // During a trial call, the circuit breaker library cockatiel would make other calls wait for its result without a
    // time limit. Such calls are rejected here instead.
    if (this.#policy.state === CircuitState.HalfOpen) throw this.#open(this.#resetMs)
    if (this.#policy.state === CircuitState.Open && Date.now() < this.#opensAgainMs) {
      throw this.#open(this.#opensAgainMs - Date.now())
    }
    return this.#policy.execute(call)
  }

  #open(retryAfterMs: number): ServiceError {
    const waitMs = Math.min(retryAfterMs, 60_000)
    const message = refusedCallMessage(this.#model, Date.now() + waitMs, this.#lastFailure)
    const retry = { retryAfterMs: waitMs, reason: 'upstream' } as const
    return new ServiceError(this.#lastCode, message, { ...retry, upstreamMessage: this.#lastMessage })
  }

  /** Whether a call counts as failed. A trial call that was cancelled or timed out also fails, because only an answer may close the circuit. */
  #isFailure(error: unknown): boolean {
    const code = error instanceof ServiceError ? error.code : undefined
    const isTrial = this.#policy.state === CircuitState.HalfOpen
    const isFailure = isTrial ? !code || !ANSWER_CODES.has(code) : code !== undefined && FAILURE_CODES.has(code)
    if (isFailure) {
      this.#lastFailure = failureText(error)
      this.#lastMessage = error instanceof ServiceError ? error.upstreamMessage : undefined
      if (code !== undefined && FAILURE_CODES.has(code)) this.#lastCode = code
    }
    return isFailure
  }
}

const FAILURE_CODES = new Set<ErrorCode>(['upstream_error', 'upstream_timeout', 'overloaded'])
const ANSWER_CODES = new Set<ErrorCode>([
  'invalid_request',
  'context_length_exceeded',
  'request_too_large',
  'upstream_refused',
])
