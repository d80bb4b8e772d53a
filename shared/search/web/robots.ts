import { ServiceError } from '#shared/lib/error.ts'
import type { OutboundPage } from '#shared/outbound/outbound.ts'
import type { DocumentReader } from '#shared/search/documents/documents.ts'

/** Fetches one address through the outbound guard. */
export type Fetch = (url: string, bytesMax: number, signal: AbortSignal) => Promise<OutboundPage>

/** Minimum size that a crawler must support (RFC 9309 §2.5), used as the maximum. */
const BYTES_MAX = 512 * 1024
const REDIRECTS_MAX = 5
/** Cache lifetime, shorter than the day that RFC 9309 §2.4 allows. */
const ROBOTS_TTL_MS = 3_600_000
/** TTL if robots.txt could not be fetched, so that nothing of the site may be read. */
const FAILURE_TTL_MS = 60_000
const ORIGINS_MAX = 100

/** Rules of a site: its robots.txt, or a decision without one. */
type Rules = Buffer | 'all' | 'nothing'

/** Fetches and caches the robots.txt of sites (RFC 9309), for an hour. */
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
   * Whether a page may be read. If a site has no robots.txt, all of it may be read. If fetching the file fails, none of it may be read.
   *
   * @throws ServiceError `overloaded`; the signal's reason
   */
  async isAllowed({ origin, href }: URL, project: string, signal: AbortSignal): Promise<boolean> {
    const rules = await this.#rulesOf(origin, signal)
    if (typeof rules === 'string') return rules === 'all'
    const robotsUrl = new URL('/robots.txt', origin).href
    const question = { type: 'robots', robotsUrl, bytes: rules, url: href, agent: this.#agent } as const
    return await this.#reader.isAllowedByRobots(question, project, signal)
  }

  async #rulesOf(origin: string, signal: AbortSignal): Promise<Rules> {
    const known = this.#origins.get(origin)
    if (known && known.untilMs > Date.now()) return known.rules
    const rules = await this.#load(origin, signal)
    const [oldest] = this.#origins.keys()
    if (this.#origins.size >= ORIGINS_MAX && oldest !== undefined) this.#origins.delete(oldest)
    this.#origins.set(origin, { rules, untilMs: Date.now() + (rules === 'nothing' ? FAILURE_TTL_MS : ROBOTS_TTL_MS) })
    return rules
  }

  async #load(origin: string, signal: AbortSignal): Promise<Rules> {
    let address = new URL('/robots.txt', origin)
    try {
      for (let hop = 0; hop <= REDIRECTS_MAX; hop++) {
        const { status, headers, body } = await this.#fetch(address.href, BYTES_MAX, signal)
        const next = status >= 300 && status < 400 ? URL.parse(String(headers.location), address.href) : undefined
        if (!next) return rulesIn(status, body)
        address = next
      }
      return 'all'
    } catch (error) {
      signal.throwIfAborted()
      // A robots.txt over BYTES_MAX counts as absent.
      return ServiceError.from(error).code === 'request_too_large' ? 'all' : 'nothing'
    }
  }
}

function rulesIn(status: number, body: Buffer): Rules {
  if (status >= 500) return 'nothing'
  return status === 200 ? body : 'all'
}
