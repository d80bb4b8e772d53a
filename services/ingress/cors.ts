import type { IncomingMessage, ServerResponse } from 'node:http'

/*
 * Cross-origin requests (https://fetch.spec.whatwg.org/#http-cors-protocol). If CORS_ORIGINS contains the origin of a
 * page, then browsers let the page call the API and read the answers. The page sends the key in a header. Cookies grant
 * no access, so `access-control-allow-credentials` is never sent.
 */

/** Response headers that a page may read, in addition to those that browsers always allow. */
const EXPOSED = [
  ...['x-request-id', 'request-id', 'x-job-id', 'location', 'preference-applied', 'idempotency-replayed', 'allow'],
  ...['retry-after', 'retry-after-ms', 'x-should-retry', 'openai-processing-ms', 'www-authenticate'],
  ...['requests', 'tokens'].flatMap((kind) => [
    ...[`x-ratelimit-limit-${kind}`, `x-ratelimit-remaining-${kind}`, `x-ratelimit-reset-${kind}`],
    ...['limit', 'remaining', 'reset'].map((what) => `anthropic-ratelimit-${kind}-${what}`),
  ]),
].join(', ')
const METHODS = 'GET, HEAD, POST, DELETE'
/** Time for which browsers cache a preflight answer, in seconds; the maximum of Chromium. */
const MAX_AGE_SECONDS = '7200'
/** Maximum characters of the requested header names. SDKs request about 400. */
const ASKED_CHARS_MAX = 4_096

export class Cors {
  readonly #isOpen: boolean
  /** Undefined if CORS_ORIGINS is not set. */
  readonly #origins: ReadonlySet<string> | undefined

  /** @param setting Origins separated by commas, or `*`; undefined: no origin */
  constructor(setting: string | undefined) {
    const origins = setting?.split(',').map((origin) => origin.trim().toLowerCase())
    this.#origins = origins && new Set(origins)
    this.#isOpen = this.#origins?.has('*') ?? false
  }

  /**
   * Sets the CORS headers of the answer. Answers preflight requests, which contain no key and are not counted against
   * limits.
   *
   * @returns true if the request was a preflight and is answered
   */
  answer({ method, headers }: IncomingMessage, res: ServerResponse): boolean {
    if (!this.#origins) return false
    // Set for other origins, too, so that a cache does not return their answer to an allowed page.
    if (!this.#isOpen) res.setHeader('vary', 'Origin')
    const { origin } = headers
    if (origin === undefined || !this.#allows(origin)) return false
    res.setHeader('access-control-allow-origin', this.#isOpen ? '*' : origin)
    res.setHeader('access-control-expose-headers', EXPOSED)
    if (method !== 'OPTIONS' || headers['access-control-request-method'] === undefined) return false
    // The requested headers are listed, because `*` does not include `authorization`.
    const requested = headers['access-control-request-headers']?.slice(0, ASKED_CHARS_MAX)
    res.writeHead(204, {
      'access-control-allow-methods': METHODS,
      ...(requested && { 'access-control-allow-headers': requested }),
      'access-control-max-age': MAX_AGE_SECONDS,
    })
    res.end()
    return true
  }

  /**
   * Whether a page may open a WebSocket, which browsers permit from every origin. Allowed are pages of this service and
   * of the origins in CORS_ORIGINS. Without CORS_ORIGINS, any page may connect, because a key is required. Requests
   * without an Origin header come from programs, not from pages.
   */
  allowsSocket({ headers: { origin, host } }: IncomingMessage): boolean {
    if (origin === undefined || !this.#origins) return true
    if (this.#allows(origin)) return true
    // The origin `null` and invalid values have no host. A request may have none, either, and two missing hosts must
    // not match.
    const own = URL.parse(origin)?.host
    return own !== undefined && own !== '' && own === host?.toLowerCase()
  }

  #allows(origin: string): boolean {
    return this.#isOpen || this.#origins?.has(origin.toLowerCase()) === true
  }
}
