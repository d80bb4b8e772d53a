import type { IncomingMessage, ServerResponse } from 'node:http'

/*
 * Pages of other origins (https://fetch.spec.whatwg.org/#http-cors-protocol): a browser lets them call, and read what is answered,
 * where CORS_ORIGINS allows it. Keys come in headers that a page sets itself and no cookie lets anyone in, so credentials in the sense
 * of that protocol are never allowed.
 */

/** Headers of answers that a page may read, beside those that it always may. */
const EXPOSED = [
  ...['x-request-id', 'request-id', 'x-job-id', 'location', 'preference-applied', 'idempotency-replayed', 'allow'],
  ...['retry-after', 'retry-after-ms', 'x-should-retry', 'openai-processing-ms', 'www-authenticate'],
  ...['requests', 'tokens'].flatMap((kind) => [
    ...[`x-ratelimit-limit-${kind}`, `x-ratelimit-remaining-${kind}`, `x-ratelimit-reset-${kind}`],
    ...['limit', 'remaining', 'reset'].map((what) => `anthropic-ratelimit-${kind}-${what}`),
  ]),
].join(', ')
const METHODS = 'GET, HEAD, POST, DELETE'
/** How long a browser may remember the answer to a preflight; Chromium's own limit. */
const MAX_AGE_SECONDS = '7200'
/** Characters of the headers that a page asks for; SDKs ask for some 400. */
const ASKED_CHARS_MAX = 4_096

/** Which pages may call, by the setting CORS_ORIGINS. */
export class Cors {
  readonly #isOpen: boolean
  /** Undefined: the setting names none. */
  readonly #origins: ReadonlySet<string> | undefined

  /** @param setting Origins with commas between, or `*`; undefined: none */
  constructor(setting: string | undefined) {
    const origins = setting?.split(',').map((origin) => origin.trim().toLowerCase())
    this.#origins = origins && new Set(origins)
    this.#isOpen = this.#origins?.has('*') ?? false
  }

  /**
   * Tells the browser of a page that it may read the answer, whatever that will be, and answers its question beforehand: that has
   * no key and counts against no limit.
   *
   * @returns True when the request was such a question, and is answered.
   */
  answer({ method, headers }: IncomingMessage, res: ServerResponse): boolean {
    if (!this.#origins) return false
    // Also on answers to others: what a cache keeps of them is not for a page.
    if (!this.#isOpen) res.setHeader('vary', 'Origin')
    const { origin } = headers
    if (origin === undefined || !this.#allows(origin)) return false
    res.setHeader('access-control-allow-origin', this.#isOpen ? '*' : origin)
    res.setHeader('access-control-expose-headers', EXPOSED)
    if (method !== 'OPTIONS' || headers['access-control-request-method'] === undefined) return false
    // By name: `*` would leave out `authorization`.
    const asked = headers['access-control-request-headers']?.slice(0, ASKED_CHARS_MAX)
    res.writeHead(204, {
      'access-control-allow-methods': METHODS,
      ...(asked && { 'access-control-allow-headers': asked }),
      'access-control-max-age': MAX_AGE_SECONDS,
    })
    res.end()
    return true
  }

  /**
   * Whether a page may open a WebSocket, which browsers let every page try: one of the service itself, of an allowed origin, or, where
   * the setting names none, any, since nothing but a key lets it in. Programs send no origin.
   */
  allowsSocket({ headers: { origin, host } }: IncomingMessage): boolean {
    if (origin === undefined || !this.#origins) return true
    if (this.#allows(origin)) return true
    // `null` and garbage have no host, and a request may have none either: that is not the same one.
    const own = URL.parse(origin)?.host
    return own !== undefined && own !== '' && own === host?.toLowerCase()
  }

  #allows(origin: string): boolean {
    return this.#isOpen || this.#origins?.has(origin.toLowerCase()) === true
  }
}
