import { Readable } from 'node:stream'
import { type Dispatcher, Pool } from 'undici'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { ServiceError } from '#shared/error.ts'
import { RetryBudget } from '#shared/jobs/decide.ts'
import { Breaker } from './breaker.ts'
import { connectionError, type Speaker, statusError } from './error.ts'
import { Exchange } from './exchange.ts'
import { AdaptiveLimit } from './limit.ts'
import { addressesOf, IN_FLIGHT_MAX, type Server, type ServerAddress, Servers, type Taken } from './servers.ts'
import type { ModelShare } from './share.ts'
import { cleanerOf } from './words.ts'

/** Default maximum of concurrent calls to one server, from all workers that share it, if the catalogue sets no `concurrency`. */
const FLEET_IN_FLIGHT_MAX = 8_192

/** Overload statuses: too many requests, unavailable, overloaded. */
const TOO_MUCH = new Set([429, 503, 529])
/** Errors of a server that another server may not have. */
const ELSEWHERE = new Set(['overloaded', 'upstream_error', 'upstream_timeout'])

/** Maximum bytes of an error body that are read. */
const ERROR_BODY_MAX = 64 * 1024

/** One POST to an upstream. */
export interface UpstreamCall {
  /** Appended to the base URL, with a leading slash. */
  readonly path: string
  readonly headers: Record<string, string>
  /** Headers of the caller. Headers of the service and of the catalogue override them. */
  readonly forwarded?: Readonly<Record<string, string>> | undefined
  /** JSON text, or a stream of another type whose content type and length are among the headers. */
  readonly body: string | Buffer | Readable
  /** Whether a streamed answer is requested, so that its first byte must arrive within `first_token_ms`. */
  readonly isStream: boolean
  readonly signal: AbortSignal
}

/** The destination of a call if it is not the base URL: a server that is started on first use. */
export interface UpstreamTarget {
  readonly origin: string
  readonly dispatcher: Dispatcher
}

/** Options of upstreams that are not plain servers. */
export interface UpstreamOptions {
  /** Finds the server, once per call. The base URL then only provides the path. @throws ServiceError */
  readonly connect?: (signal: AbortSignal) => Promise<UpstreamTarget>
  /** The environment variable that should contain the key but is not set. Every call fails with its name. */
  readonly missingKey?: string | undefined
  /** Shares the limits with other workers that call the same servers. Default: no sharing. */
  readonly share?: ModelShare | undefined
}

/** One server of the upstream, with its sockets. */
interface HttpServer extends Server {
  /** The full path of a call: with the path of the base URL before it, and the query of the base URL after it. */
  readonly pathOf: (path: string) => string
  readonly pool: Pool
  connect(signal: AbortSignal): Promise<UpstreamTarget>
}

/**
 * HTTP to the servers of one model: keep-alive connections, an adaptive concurrency limit per server (`limit.ts`), and a circuit breaker
 * per server.
 *
 * A worker owns the retries of its jobs. Here a call that failed before its first byte is sent to at most one other server, within a retry
 * budget.
 *
 * Redirects are not followed, since they would send the key to another host. Only HTTP/1.1 is used, so that aborting a call closes a
 * socket, which every server detects.
 */
export class Upstream {
  readonly #model: string
  readonly #speaker: Speaker
  readonly #config: UpstreamConfig
  readonly #headers: Record<string, string>
  readonly #servers: Servers<HttpServer>
  readonly #missingKey: string | undefined
  readonly #share: ModelShare | undefined
  readonly #budget = new RetryBudget(0.1, 10)

  /** @param headers Sent with every call; the catalogue's `headers` override them. */
  constructor(
    model: Pick<ModelConfig, 'id'>,
    config: UpstreamConfig,
    headers: Record<string, string>,
    options: UpstreamOptions = {},
  ) {
    this.#model = model.id
    this.#missingKey = options.missingKey
    this.#config = config
    this.#headers = {
      'content-type': 'application/json',
      'accept-encoding': 'identity',
      ...headers,
      ...lowerCased(config.headers),
    }
    const clean = cleanerOf(model.id, config, this.#headers)
    this.#speaker = { model: model.id, clean, isOurs: options.connect !== undefined }
    this.#servers = new Servers(addressesOf(config).map((address) => this.#serverAt(address, options)))
    const limits = this.#servers.all.map(({ limit }) => limit)
    this.#share = options.share
    const isFailing = () => this.#servers.all.every(({ breaker }) => breaker.isOpen)
    this.#share?.use(limits, () => this.#servers.letIn(), isFailing)
  }

  /** Current maximum of concurrent calls, on all servers together. */
  get places(): number {
    return this.#servers.places
  }

  /**
   * Sends a call and waits for the first byte of a successful answer. The caller releases the exchange.
   *
   * @throws ServiceError for an error status, a connection error or a timeout; the signal's reason on abort.
   */
  async call(call: UpstreamCall): Promise<Exchange> {
    if (this.#missingKey !== undefined) {
      const message = `The model '${this.#model}' has no key for its upstream: ${this.#missingKey} is not set where its worker runs.`
      throw new ServiceError('upstream_refused', message)
    }
    if (this.#share && this.#share.workers > 1 && this.places === 0) throw this.#noPart()
    this.#budget.earn()
    const taken = await this.#servers.take(call.signal, call.isStream, NONE)
    try {
      return await this.#callOn(taken, call)
    } catch (error) {
      if (!this.#mayGoElsewhere(error, call)) throw error
      this.#budget.spend()
      return await this.#callOn(await this.#servers.take(call.signal, call.isStream, new Set([taken.server])), call)
    }
  }

  /** Closes all sockets, including those of running calls. */
  async close(): Promise<void> {
    await Promise.all(this.#servers.all.map(({ pool }) => pool.destroy()))
  }

  /** Without this error the call would wait forever: no worker gives up its part. */
  #noPart(): ServiceError {
    const message = `All permits of model '${this.#model}' belong to other workers; retry.`
    return new ServiceError('overloaded', message, { retryAfterMs: 100 })
  }

  #serverAt({ url: base, weight }: ServerAddress, { connect, share }: UpstreamOptions): HttpServer {
    const { breaker, timeouts } = this.#config
    const { concurrency = share ? FLEET_IN_FLIGHT_MAX : IN_FLIGHT_MAX } = this.#config
    const url = new URL(base)
    const pool = new Pool(url.origin, {
      connections: Math.min(concurrency, IN_FLIGHT_MAX),
      pipelining: 1,
      allowH2: false,
      connect: { timeout: timeouts.connect_ms },
      // The exchange has its own timers. The timers of undici are coarse and cannot distinguish the first token from later ones.
      headersTimeout: 0,
      bodyTimeout: 0,
    })
    const target = { origin: url.origin, dispatcher: pool }
    return {
      weight,
      pathOf: pathsAt(url),
      pool,
      connect: connect ?? (() => Promise.resolve(target)),
      limit: new AdaptiveLimit(concurrency, undefined, share),
      breaker: new Breaker(this.#model, { failures: breaker.failures, resetMs: breaker.reset_ms }),
    }
  }

  /** A body that is a stream cannot be sent twice. */
  #mayGoElsewhere(error: unknown, { body, signal }: UpstreamCall): boolean {
    const isServers = error instanceof ServiceError && ELSEWHERE.has(error.code)
    return (
      isServers &&
      this.#servers.all.length > 1 &&
      !(body instanceof Readable) &&
      !signal.aborted &&
      this.#budget.canSpend
    )
  }

  async #callOn(taken: Taken<HttpServer>, call: UpstreamCall): Promise<Exchange> {
    const { server } = taken
    let isRunning = false
    try {
      const retryAfterMs = server.limit.pausedMs
      if (retryAfterMs > 0) {
        const message = `The upstream of model '${this.#model}' asked for a pause.`
        throw new ServiceError('overloaded', message, { retryAfterMs })
      }
      return await server.breaker.run(async () => {
        call.signal.throwIfAborted()
        const target = await server.connect(call.signal)
        isRunning = true
        return await this.#open(call, taken, target)
      })
    } catch (error) {
      if (!isRunning) this.#servers.leave(taken)
      throw error
    }
  }

  async #open(call: UpstreamCall, taken: Taken<HttpServer>, { origin, dispatcher }: UpstreamTarget): Promise<Exchange> {
    const { pathOf, limit } = taken.server
    const exchange = new Exchange({
      speaker: this.#speaker,
      timeouts: this.#config.timeouts,
      signal: call.signal,
      isStream: call.isStream,
      onEnd: () => this.#servers.leave(taken),
    })
    const headers = {
      ...call.forwarded,
      ...this.#headers,
      ...call.headers,
      accept: call.isStream ? 'text/event-stream' : 'application/json',
    }
    try {
      dispatcher.dispatch({ origin, method: 'POST', path: pathOf(call.path), headers, body: call.body }, exchange)
    } catch (error) {
      exchange.fail(connectionError(this.#model, error))
    }
    await exchange.waitForBytes().catch((error: unknown) => {
      if (error instanceof ServiceError && error.code === 'upstream_timeout') limit.silent(taken.place)
      throw error
    })
    if (exchange.status >= 200 && exchange.status < 300) {
      limit.answered(taken.place)
      return exchange
    }
    const body = await exchange.text(ERROR_BODY_MAX)
    const failure = statusError(this.#speaker, exchange.status, exchange.headers, body)
    // A 429 may also mean an exhausted quota, which is no sign of load.
    const isTooMuch = TOO_MUCH.has(exchange.status) && failure.code !== 'upstream_refused'
    if (isTooMuch) limit.busy(taken.place)
    if (isTooMuch && failure.retryAfterMs !== undefined) limit.pause(failure.retryAfterMs)
    throw failure
  }
}

/** Azure requires `?api-version=2024-10-21` on every call. */
function pathsAt({ pathname, search }: URL): (path: string) => string {
  const base = pathname.replace(/\/+$/, '')
  const query = search.slice(1)
  if (query === '') return (path) => base + path
  return (path) => `${base}${path}${path.includes('?') ? '&' : '?'}${query}`
}

const NONE: ReadonlySet<HttpServer> = new Set()

function lowerCased(headers: Record<string, string>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}
