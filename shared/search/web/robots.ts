import { ServiceError } from '#shared/lib/error.ts'
import type { OutboundPage } from '#shared/outbound/outbound.ts'
import type { DocumentReader } from '#shared/search/documents/documents.ts'
import type { ReadOptions } from '#shared/search/search.ts'

export type Fetch = (url: string, bytesMax: number, options: ReadOptions) => Promise<OutboundPage>

/** Maximum bytes that are read. A crawler must support at least this size (RFC 9309 §2.5). */
const BYTES_MAX = 512 * 1024
const REDIRECTS_MAX = 5
/** Cache lifetime of a robots.txt, in ms. RFC 9309 §2.4 allows up to 24 hours. */
const ROBOTS_TTL_MS = 3_600_000
/** Cache lifetime in ms after robots.txt could not be fetched. In this time, no page of the site is read. */
const FAILURE_TTL_MS = 60_000
const ORIGINS_MAX = 100

/**
 * Content of a robots.txt. `all` if the site has no usable file (for example status 404, or a file that is too large), so that every page
 * may be read. `nothing` if the server failed or could not be reached, so that no page may be read.
 */
type Rules = Buffer | 'all' | 'nothing'

export class Robots {
  readonly #fetch: Fetch
  readonly #reader: DocumentReader
  readonly #agent: string
  readonly #origins = new Map<string, { readonly rules: Rules; readonly untilMs: number }>()

  constructor(fetch: Fetch, reader: DocumentReader, agent: string) {
    this.#fetch = fetch
    this.#reader = reader
    this.#agent = agent
  }

  /**
   * Whether a page may be read. Without a robots.txt, all pages of a site may be read. If the file cannot be fetched, then none may be read.
   *
   * @throws ServiceError `overloaded`, or the abort reason of the signal
   */
  async isAllowed({ origin, href }: URL, options: ReadOptions): Promise<boolean> {
    const rules = await this.#rulesOf(origin, options)
    if (typeof rules === 'string') return rules === 'all'
    const robotsUrl = new URL('/robots.txt', origin).href
    const question = { type: 'robots', robotsUrl, bytes: rules, url: href, agent: this.#agent } as const
    return await this.#reader.isAllowedByRobots(question, options.project, options.signal)
  }

  async #rulesOf(origin: string, options: ReadOptions): Promise<Rules> {
    const known = this.#origins.get(origin)
    if (known && known.untilMs > Date.now()) return known.rules
    const rules = await this.#load(origin, options)
    const [oldest] = this.#origins.keys()
    if (this.#origins.size >= ORIGINS_MAX && oldest !== undefined) this.#origins.delete(oldest)
    this.#origins.set(origin, { rules, untilMs: Date.now() + (rules === 'nothing' ? FAILURE_TTL_MS : ROBOTS_TTL_MS) })
    return rules
  }

  async #load(origin: string, options: ReadOptions): Promise<Rules> {
    let address = new URL('/robots.txt', origin)
    try {
      for (let hop = 0; hop <= REDIRECTS_MAX; hop++) {
        const { status, headers, body } = await this.#fetch(address.href, BYTES_MAX, options)
        const next = status >= 300 && status < 400 ? URL.parse(String(headers.location), address.href) : undefined
        if (!next) return rulesIn(status, body)
        address = next
      }
      return 'all'
    } catch (error) {
      options.signal.throwIfAborted()
      // A robots.txt larger than BYTES_MAX is treated like a missing file, so all pages are allowed.
      return ServiceError.from(error).code === 'request_too_large' ? 'all' : 'nothing'
    }
  }
}

function rulesIn(status: number, body: Buffer): Rules {
  if (status >= 500) return 'nothing'
  return status === 200 ? body : 'all'
}
