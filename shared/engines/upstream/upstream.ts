/*
 * HTTP to the servers of one model. An engine sends the request of an attempt here and reads the answer from the returned `Exchange`.
 *
 * 1. The call waits for a permit of a server with a closed circuit breaker. The adaptive concurrency limit (`shared/capacity/adaptive-limit.ts`)
 *    bounds the permits of each server.
 * 2. The request is sent over a keep-alive connection. The call resolves with the first byte of a successful answer.
 * 3. A call that failed before its first byte is sent to at most one other server, within a retry budget. All other retries belong to the owner of
 *    the job.
 * 4. Statuses 429, 503 and 529 lower the limit of the server, and their Retry-After pauses the server.
 *
 * Redirects are not followed, because they would send the key to another host. Only HTTP/1.1 is used, so that aborting a call closes a socket, which
 * every server detects.
 */

import { Readable } from 'node:stream'
import { type Dispatcher, Pool } from 'undici'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { AdaptiveLimit } from '#shared/capacity/adaptive-limit.ts'
import { RetryBudget } from '#shared/jobs/decide.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { outgoingHeaders } from '#shared/telemetry/context.ts'
import type { CallTrace } from '#shared/telemetry/tracing.ts'
import { seedOf } from './affinity.ts'
import { connectionError, type ErrorContext, statusError } from './error.ts'
import { errorSanitizerOf } from './error-sanitizer.ts'
import { Exchange } from './exchange.ts'
import type { ModelPartition } from './limit-partition.ts'
import {
  type AcquiredPermit,
  addressesOf,
  Breaker,
  CALLS_PER_SERVER_MAX,
  type Server,
  type ServerAddress,
  Servers,
} from './servers.ts'

/** Default maximum of concurrent calls to one server, from all workers together. Applies if the model catalogue sets no `concurrency`. */
const FLEET_IN_FLIGHT_MAX = 8_192

const OVERLOAD_STATUSES = new Set([429, 503, 529])
const SERVER_ERROR_CODES = new Set(['overloaded', 'upstream_error', 'upstream_timeout'])

const ERROR_BODY_MAX = 64 * 1024

export interface UpstreamCall {
  readonly path: string
  readonly headers: Record<string, string>
  /** Headers of the caller. Headers of Sluice and of the model catalogue override them. */
  readonly forwarded?: Readonly<Record<string, string>> | undefined
  /**
   * Body of the request: JSON text, or a stream of another type. For a stream, `headers` must contain the content type
   * and the length.
   */
  readonly body: string | Buffer | Readable
  /** Whether a streamed answer is requested. The first byte must then arrive within `first_token_ms`. */
  readonly isStream: boolean
  readonly signal: AbortSignal
  readonly trace?: CallTrace | undefined
  /** Affinity key: calls with an equal key go to one server. Default: the call is placed by load. */
  readonly affinity?: string | undefined
}

/** Destination of calls to a server that is started on demand. Calls to any other server go to the base URL. */
export interface UpstreamTarget {
  readonly origin: string
  readonly dispatcher: Dispatcher
}

export interface UpstreamOptions {
  /**
   * Finds or starts the server, once per call. The base URL then provides only the path.
   *
   * @throws ServiceError
   */
  readonly connect?: (signal: AbortSignal) => Promise<UpstreamTarget>
  /** Name of an environment variable that should contain the API key but is not set. Every call then fails with an error that names the variable. */
  readonly missingKey?: string | undefined
  /** Divides the limits among this and other workers that call the same servers. Default: no sharing. */
  readonly share?: ModelPartition | undefined
}

interface HttpServer extends Server {
  readonly host: string
  /** Returns the full path of a call: the base URL's path, the given path, then the base URL's query. */
  readonly pathOf: (path: string) => string
  readonly pool: Pool
  connect(signal: AbortSignal): Promise<UpstreamTarget>
}

export class Upstream {
  readonly #model: string
  /**
   * Whether the trace header `baggage` is sent. The header may name users, and the server may belong to a third party, so the model must allow it.
   */
  readonly #hasBaggage: boolean
  readonly #errorContext: ErrorContext
  readonly #config: UpstreamConfig
  readonly #headers: Record<string, string>
  readonly #servers: Servers<HttpServer>
  readonly #missingKey: string | undefined
  readonly #partition: ModelPartition | undefined
  readonly #budget = new RetryBudget(0.1, 10)

  constructor(
    model: Pick<ModelConfig, 'id'> & Partial<Pick<ModelConfig, 'forward_headers'>>,
    config: UpstreamConfig,
    headers: Record<string, string>,
    options: UpstreamOptions = {},
  ) {
    this.#model = model.id
    this.#hasBaggage = model.forward_headers?.includes('baggage') ?? false
    this.#missingKey = options.missingKey
    this.#config = config
    this.#headers = {
      'content-type': 'application/json',
      'accept-encoding': 'identity',
      ...headers,
      ...lowerCased(config.headers),
    }
    const clean = errorSanitizerOf(model.id, config, this.#headers)
    this.#errorContext = { model: model.id, sanitize: clean, isOwnServer: options.connect !== undefined }
    const servers = addressesOf(config).map((address) => this.#serverAt(address, options))
    this.#servers = new Servers(servers, () => options.share?.workers ?? 1)
    const limits = this.#servers.all.map(({ limit }) => limit)
    this.#partition = options.share
    const breakers = this.#servers.all.map(({ breaker }) => breaker)
    this.#partition?.use(limits, () => this.#servers.admitWaiting(), breakers)
  }

  get permits(): number {
    return this.#servers.permits
  }

  /**
   * Sends a call and waits for the first byte of a successful answer. The caller must release the exchange.
   *
   * @throws ServiceError for an error status, a connection error or a timeout. The signal's reason, if the signal aborts
   */
  async call(call: UpstreamCall): Promise<Exchange> {
    if (this.#missingKey !== undefined) {
      const message = `The environment variable ${this.#missingKey} is not set for the worker of the model '${this.#model}'. The variable must contain a secret for the upstream.`
      throw new ServiceError('upstream_refused', message)
    }
    if (this.#partition && this.#partition.workers > 1 && this.permits === 0) throw this.#noPartition()
    this.#budget.earn()
    const acquired = await this.#acquire(call, NO_SERVERS)
    try {
      return await this.#callOn(acquired, call)
    } catch (error) {
      if (!this.#canTryOtherServer(error, call)) throw error
      this.#budget.spend()
      return await this.#callOn(await this.#acquire(call, new Set([acquired.server])), call)
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.#servers.all.map(({ pool }) => pool.destroy()))
  }

  #acquire({ signal, isStream, affinity }: UpstreamCall, tried: ReadonlySet<HttpServer>) {
    return this.#servers.acquire({ signal, isTimed: isStream, tried, key: affinity })
  }

  /**
   * Error if this worker's part of the limit is zero. The owner of the job then retries, possibly on another worker.
   * Without the error, the call would wait here until the limit rises or another worker ends.
   */
  #noPartition(): ServiceError {
    const message = `The servers of model '${this.#model}' have no free capacity for this worker. Try again.`
    return new ServiceError('overloaded', message, { retryAfterMs: 100, reason: 'upstream' })
  }

  #serverAt({ url: base, weight }: ServerAddress, { connect, share }: UpstreamOptions): HttpServer {
    const { breaker, timeouts } = this.#config
    const { concurrency = share ? FLEET_IN_FLIGHT_MAX : CALLS_PER_SERVER_MAX } = this.#config
    const url = new URL(base)
    const pool = new Pool(url.origin, {
      connections: Math.min(concurrency, CALLS_PER_SERVER_MAX),
      pipelining: 1,
      allowH2: false,
      connect: { timeout: timeouts.connect_ms },
      // Timers of undici are disabled, because they are coarse and cannot distinguish the first token from later tokens. The exchange has its own
      // timers.
      headersTimeout: 0,
      bodyTimeout: 0,
    })
    const target = { origin: url.origin, dispatcher: pool }
    return {
      weight,
      host: url.host,
      seed: seedOf(base),
      pathOf: pathsAt(url),
      pool,
      connect: connect ?? (() => Promise.resolve(target)),
      limit: new AdaptiveLimit(concurrency, undefined, share),
      breaker: new Breaker(this.#model, { failures: breaker.failures, resetMs: breaker.reset_ms }),
    }
  }

  /** Whether the call may be retried on another server. A streamed body can be sent only once. */
  #canTryOtherServer(error: unknown, { body, signal }: UpstreamCall): boolean {
    const isServers = error instanceof ServiceError && SERVER_ERROR_CODES.has(error.code)
    return (
      isServers &&
      this.#servers.all.length > 1 &&
      !(body instanceof Readable) &&
      !signal.aborted &&
      this.#budget.canSpend
    )
  }

  async #callOn(acquired: AcquiredPermit<HttpServer>, call: UpstreamCall): Promise<Exchange> {
    const { server } = acquired
    let isRunning = false
    try {
      const retryAfterMs = server.limit.pausedMs
      if (retryAfterMs > 0) {
        const message = `The upstream of model '${this.#model}' is at its rate limit and requested a pause. Try again later.`
        throw new ServiceError('overloaded', message, { retryAfterMs, reason: 'upstream' })
      }
      return await server.breaker.run(async () => {
        call.signal.throwIfAborted()
        const target = await server.connect(call.signal)
        isRunning = true
        call.trace?.onServer?.(this.#model, this.#servers.all.indexOf(server), server.host)
        return await this.#open(call, acquired, target)
      })
    } catch (error) {
      if (!isRunning) this.#servers.leave(acquired)
      throw error
    }
  }

  async #open(
    call: UpstreamCall,
    acquired: AcquiredPermit<HttpServer>,
    { origin, dispatcher }: UpstreamTarget,
  ): Promise<Exchange> {
    const { pathOf, limit } = acquired.server
    const exchange = new Exchange({
      errorContext: this.#errorContext,
      timeouts: this.#config.timeouts,
      signal: call.signal,
      isStream: call.isStream,
      onEnd: () => this.#servers.leave(acquired),
      onUsage: (usage) => this.#partition?.countPrompt(this.#servers.all.indexOf(acquired.server), usage),
      onModel: call.trace?.onModel,
    })
    const headers = {
      ...call.forwarded,
      ...this.#headers,
      ...call.headers,
      ...outgoingHeaders(call.trace?.traceparent, this.#hasBaggage),
      accept: call.isStream ? 'text/event-stream' : 'application/json',
    }
    try {
      dispatcher.dispatch({ origin, method: 'POST', path: pathOf(call.path), headers, body: call.body }, exchange)
    } catch (error) {
      exchange.fail(connectionError(this.#model, error))
    }
    await exchange.waitForBytes().catch((error: unknown) => {
      if (error instanceof ServiceError && error.code === 'upstream_timeout') limit.timedOut(acquired.permit)
      throw error
    })
    if (exchange.status >= 200 && exchange.status < 300) {
      limit.answered(acquired.permit)
      return exchange
    }
    const body = await exchange.text(ERROR_BODY_MAX)
    const failure = statusError(this.#errorContext, exchange.status, exchange.headers, body)
    // A 429 for an exhausted quota does not show the load of the server, so it does not lower the limit.
    const isTooMuch = OVERLOAD_STATUSES.has(exchange.status) && failure.code !== 'upstream_refused'
    if (isTooMuch) limit.overloaded(acquired.permit)
    if (isTooMuch && failure.retryAfterMs !== undefined) limit.pause(failure.retryAfterMs)
    throw failure
  }
}

/** Returns a function that adds a path to the base URL before its query. Azure requires the query `?api-version=2024-10-21` in every call. */
function pathsAt({ pathname, search }: URL): (path: string) => string {
  const base = pathname.replace(/\/+$/, '')
  const query = search.slice(1)
  if (query === '') return (path) => base + path
  return (path) => `${base}${path}${path.includes('?') ? '&' : '?'}${query}`
}

const NO_SERVERS: ReadonlySet<HttpServer> = new Set()

function lowerCased(headers: Record<string, string>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}
