import {
  type DomainRules,
  type Hit,
  isHostAllowed,
  isWebAllowed,
  type ReadOptions,
  type SearchBackend,
  type SearchOptions,
  SNIPPET_CHARS_MAX,
  type Snapshot,
  TITLE_CHARS_MAX,
} from '#shared/search/search.ts'
import { decodeEntities } from '#shared/search/text/builder.ts'
import { type ApiCall, callApi } from './api.ts'
import type { WebPages } from './pages.ts'
import { Throttle } from './throttle.ts'

export interface WebService<T = unknown> {
  readonly name: string
  readonly searchUsd: number
  /** Whether the service has a parameter for domains. If not, then the domains are added to the text of the query. */
  readonly takesDomains: boolean
  call(text: string, options: SearchOptions): ApiCall<T>
  /**
   * Returns the hits of an answer.
   *
   * @throws ServiceError if the response reports a failed search
   */
  hits(answer: T): RawHit[]
}

export interface RawHit {
  readonly url: string
  readonly id?: string
  readonly title?: string | null | undefined
  readonly snippet?: string | null | undefined
  readonly date?: string | null | undefined
}

const SITES_MAX = 5
const MARKUP_FACTOR = 4
const URL_CHARS_MAX = 2_048
const TRACKING = /^(?:utm_\w+|gclid|fbclid|msclkid|mc_[ce]id)$/i

export function openWebSearch<T>(service: WebService<T>, pages: WebPages): SearchBackend {
  return new WebSearch(service, pages)
}

class WebSearch<T> implements SearchBackend {
  readonly name: string
  readonly searchUsd: number
  readonly #service: WebService<T>
  readonly #pages: WebPages
  readonly #throttle: Throttle

  constructor(service: WebService<T>, pages: WebPages) {
    this.name = service.name
    this.searchUsd = service.searchUsd
    this.#service = service
    this.#pages = pages
    this.#throttle = new Throttle(service.name)
  }

  hasAllowed(domains: DomainRules): boolean {
    return isWebAllowed(domains)
  }

  async search(text: string, options: SearchOptions): Promise<Hit[]> {
    const words = this.#service.takesDomains ? text : withSites(text, options.domains)
    const call = this.#service.call(words, options)
    const answer = await this.#throttle.run(() => callApi(this.name, call, options.signal))
    return hitsOf(this.#service.hits(answer), options)
  }

  async read(hit: Hit, options: ReadOptions): Promise<Snapshot> {
    const snapshot = await this.#pages.read(hit.url, options)
    return { ...snapshot, title: snapshot.title || hit.title, ...(hit.date && { date: hit.date }) }
  }

  async close(): Promise<void> {
    await this.#pages.close()
  }
}

export function hitsOf(raw: readonly RawHit[], { domains, limit }: SearchOptions): Hit[] {
  const hits = new Map<string, Hit>()
  for (const { url: text, id, title, snippet, date } of raw) {
    const url = canonicalUrl(text)
    if (!url || !isHostAllowed(url.hostname, domains) || hits.has(url.href)) continue
    const day = date ? dayOf(date) : undefined
    hits.set(url.href, {
      url: url.href,
      title: plain(title ?? '', TITLE_CHARS_MAX) || url.hostname,
      snippet: plain(snippet ?? '', SNIPPET_CHARS_MAX),
      ...(day && { date: day }),
      ...(id !== undefined && { id }),
    })
    if (hits.size >= limit) break
  }
  return [...hits.values()]
}

/** Removes the fragment and tracking parameters of an address, so that different links to one page count as one source. */
function canonicalUrl(text: string): URL | undefined {
  const url = text.length <= URL_CHARS_MAX ? URL.parse(text) : null
  if (!url || !/^https?:$/.test(url.protocol)) return undefined
  url.hash = ''
  for (const name of [...url.searchParams.keys()]) if (TRACKING.test(name)) url.searchParams.delete(name)
  return url
}

/** Removes the HTML markup with which services highlight words. Only the first `charsMax * MARKUP_FACTOR` characters are read. */
function plain(text: string, charsMax: number): string {
  const some = text.slice(0, charsMax * MARKUP_FACTOR)
  return decodeEntities(some.replace(/<\/?[a-z][^>]{0,200}>/gi, ''))
    .replace(/\s+/g, ' ')
    .trim()
    .slice(0, charsMax)
    .toWellFormed()
}

function dayOf(date: string): string | undefined {
  const time = Date.parse(date)
  return Number.isNaN(time) ? undefined : new Date(time).toISOString().slice(0, 10)
}

function withSites(text: string, { allow, deny }: DomainRules): string {
  const sites = allow.slice(0, SITES_MAX).map((domain) => `site:${domain}`)
  const without = deny.slice(0, SITES_MAX).map((domain) => `-site:${domain}`)
  // More than SITES_MAX domains would make the query too long. The query then contains none of them, and the results are filtered afterwards.
  const wanted =
    allow.length > 0 && allow.length <= SITES_MAX ? [sites.length > 1 ? `(${sites.join(' OR ')})` : sites[0]] : []
  return [text, ...wanted, ...without].join(' ')
}
