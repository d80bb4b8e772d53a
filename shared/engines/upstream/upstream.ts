import type { Readable } from 'node:stream'
import { type Dispatcher, Pool } from 'undici'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { ServiceError } from '#shared/error.ts'
import { Slots } from '#shared/slots.ts'
import { Breaker } from './breaker.ts'
import { connectionError, type Speaker, statusError } from './error.ts'
import { Exchange } from './exchange.ts'
import { cleanerOf } from './words.ts'

/** Calls at once to one upstream when the catalogue sets no `concurrency`. */
export const IN_FLIGHT_MAX = 512

/** Bytes of an error body that are read. */
const ERROR_BODY_MAX = 64 * 1024

/** One POST to an upstream. */
export interface UpstreamCall {
  /** Appended to the base URL, with a leading slash. */
  readonly path: string
  readonly headers: Record<string, string>
  /** JSON text; or a stream of something else, whose content type and length are among the headers. */
  readonly body: string | Readable
  /** The answer is asked for as a stream, so its first byte must come within `first_token_ms`. */
  readonly isStream: boolean
  readonly signal: AbortSignal
}

/** Where a call goes when that is not simply the base URL: to a server that is started on first use. */
export interface UpstreamTarget {
  readonly origin: string
  readonly dispatcher: Dispatcher
}

/** What differs for upstreams that are not plain servers. */
export interface UpstreamOptions {
  /** Finds the server, once for each call; the base URL then only gives the path. @throws ServiceError */
  readonly connect?: (signal: AbortSignal) => Promise<UpstreamTarget>
  /** The environment variable that should hold the key and is not set: every call fails and names it. */
  readonly missingKey?: string | undefined
}

/**
 * HTTP to the upstream server of one model: keep-alive connections, a cap on calls in flight, a circuit breaker.
 *
 * Nothing is retried here: a worker owns the retries of its jobs. Redirects are not followed: they would send the key to
 * another host. HTTP/1.1 only, so that aborting a call closes a socket, which every server notices.
 */
export class Upstream {
  readonly #model: string
  readonly #speaker: Speaker
  readonly #config: UpstreamConfig
  readonly #headers: Record<string, string>
  readonly #path: string
  readonly #pool: Pool
  readonly #slots: Slots
  readonly #breaker: Breaker
  readonly #missingKey: string | undefined
  readonly #connect: (signal: AbortSignal) => Promise<UpstreamTarget>

  /** @param headers Sent with every call; the catalogue's `headers` win over them. */
  constructor(
    model: Pick<ModelConfig, 'id'>,
    config: UpstreamConfig,
    headers: Record<string, string>,
    options: UpstreamOptions = {},
  ) {
    const url = new URL(config.base_url)
    const inFlightMax = config.concurrency ?? IN_FLIGHT_MAX
    this.#model = model.id
    this.#missingKey = options.missingKey
    this.#config = config
    this.#headers = { 'content-type': 'application/json', ...headers, ...lowerCased(config.headers) }
    const clean = cleanerOf(model.id, config, this.#headers)
    this.#speaker = { model: model.id, clean, isOurs: options.connect !== undefined }
    this.#path = url.pathname.replace(/\/+$/, '')
    this.#pool = new Pool(url.origin, {
      connections: inFlightMax,
      pipelining: 1,
      allowH2: false,
      connect: { timeout: config.timeouts.connect_ms },
      // The exchange keeps its own clocks; undici's are coarse and cannot tell a first token from the next.
      headersTimeout: 0,
      bodyTimeout: 0,
    })
    const target = { origin: url.origin, dispatcher: this.#pool }
    this.#connect = options.connect ?? (() => Promise.resolve(target))
    this.#slots = new Slots(inFlightMax)
    this.#breaker = new Breaker(model.id, {
      failures: config.breaker.failures,
      resetMs: config.breaker.reset_ms,
    })
  }

  /**
   * Sends a call and waits for the first byte of a good answer. The caller releases the exchange.
   *
   * @throws ServiceError what the bad answer, the broken connection or the clock means; the signal's reason on abort.
   */
  async call(call: UpstreamCall): Promise<Exchange> {
    if (this.#missingKey !== undefined) {
      const message = `The model '${this.#model}' has no key for its upstream: ${this.#missingKey} is not set where its worker runs.`
      throw new ServiceError('upstream_refused', message)
    }
    await this.#slots.take(call.signal)
    let isRunning = false
    try {
      return await this.#breaker.run(async () => {
        call.signal.throwIfAborted()
        const target = await this.#connect(call.signal)
        isRunning = true
        return await this.#open(call, target)
      })
    } catch (error) {
      if (!isRunning) this.#slots.release()
      throw error
    }
  }

  /** Closes all sockets, also those of running calls. */
  close(): Promise<void> {
    return this.#pool.destroy()
  }

  async #open(call: UpstreamCall, { origin, dispatcher }: UpstreamTarget): Promise<Exchange> {
    const exchange = new Exchange({
      speaker: this.#speaker,
      timeouts: this.#config.timeouts,
      signal: call.signal,
      isStream: call.isStream,
      onEnd: () => this.#slots.release(),
    })
    const headers = {
      ...this.#headers,
      ...call.headers,
      accept: call.isStream ? 'text/event-stream' : 'application/json',
    }
    try {
      dispatcher.dispatch({ origin, method: 'POST', path: this.#path + call.path, headers, body: call.body }, exchange)
    } catch (error) {
      exchange.fail(connectionError(this.#model, error))
    }
    await exchange.waitForBytes()
    if (exchange.status >= 200 && exchange.status < 300) return exchange
    const body = await exchange.text(ERROR_BODY_MAX)
    throw statusError(this.#speaker, exchange.status, exchange.headers, body)
  }
}

function lowerCased(headers: Record<string, string>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}
