import { Semaphore } from '#shared/capacity/semaphore.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { checkUrl, type OutboundPolicy, type Resolve } from '#shared/outbound/guard.ts'
import { getOutbound, type OutboundAnswer, type OutboundPage, type PageCall } from '#shared/outbound/outbound.ts'
import { DocumentReader } from '#shared/search/documents/documents.ts'
import { type DocumentInput, type DocumentType, usedBytesOf } from '#shared/search/documents/message.ts'
import {
  isHostAllowed,
  type ReadOptions,
  SNAPSHOT_CHARS_MAX,
  type Snapshot,
  sha256Of,
  TITLE_CHARS_MAX,
} from '#shared/search/search.ts'
import { type Fetch, Robots } from './robots.ts'

type Limits = Pick<PageCall, 'bytesMax' | 'usedBytesOf'>

export interface PagesOptions {
  readonly policy: OutboundPolicy
  readonly resolve?: Resolve
  readonly timeoutMs?: number
  readonly bytesMax?: number
}

const AGENT = 'SluiceResearch'
const TIMEOUT_MS = 12_000
const PAGE_BYTES_MAX = 5 * 1024 * 1024
/** Maximum redirects. Browsers follow about 20. */
const REDIRECTS_MAX = 5
const DOWNLOADS_MAX = 64
/**
 * Maximum concurrent downloads per project. The event loop handles arrived data of all connections before other events. Unlimited downloads of one
 * project would therefore delay other projects.
 */
const DOWNLOADS_PER_PROJECT_MAX = 8

const TYPES: Readonly<Record<string, DocumentType>> = {
  'text/html': 'html',
  'application/xhtml+xml': 'html',
  'text/plain': 'text',
  'text/markdown': 'markdown',
  'application/pdf': 'pdf',
}

/**
 * Reads web pages that a search found. Each redirect passes all checks again: the outbound address, the domain rules of the request and the
 * site's robots.txt. Pages are parsed in a thread of {@link DocumentReader}.
 */
export class WebPages {
  readonly #options: PagesOptions
  readonly #robots: Robots
  readonly #reader = new DocumentReader()
  readonly #downloads = new Semaphore({ permits: DOWNLOADS_MAX, permitsPerKey: DOWNLOADS_PER_PROJECT_MAX })

  constructor(options: PagesOptions) {
    this.#options = options
    const fetch: Fetch = (url, bytesMax, reading) => this.#get(url, { bytesMax }, reading)
    this.#robots = new Robots(fetch, this.#reader, AGENT)
  }

  async read(address: string, options: ReadOptions): Promise<Snapshot> {
    const { url, page } = await this.#follow(address, options)
    if (page.status !== 200) throw refusalOf(page.status)
    const type = typeOf(page)
    if (!type) throw new ServiceError('unsupported_media_type', 'The content type of the page is not supported.')
    const charset = /;.*?charset\s*=\s*"?([\w:.-]{1,40})/is.exec(page.headers['content-type'] ?? '')?.[1]
    return await this.parse(url.href, { type, bytes: page.body, charset }, options)
  }

  /**
   * Reads the text of a document.
   *
   * @param givenTitle Replaces the title in the document, unless it is empty
   */
  async parse(
    url: string,
    document: Omit<DocumentInput, 'charsMax'>,
    { project, signal }: ReadOptions,
    givenTitle = '',
  ): Promise<Snapshot> {
    const input = { ...document, charsMax: SNAPSHOT_CHARS_MAX }
    const { title, text, blocks } = await this.#reader.read(input, project, signal)
    if (blocks.length === 0) throw new ServiceError('unsupported_media_type', 'The page has no text.')
    const cutTitle = (givenTitle.trim() || title).slice(0, TITLE_CHARS_MAX).toWellFormed()
    return { url, title: cutTitle, text, blocks, sha256: sha256Of(text) }
  }

  async close(): Promise<void> {
    await this.#reader.close()
  }

  async #follow(address: string, options: ReadOptions): Promise<{ url: URL; page: OutboundPage }> {
    const seen = new Set<string>()
    const bytesMax = this.#options.bytesMax ?? PAGE_BYTES_MAX
    let url = URL.parse(address)
    while (url && seen.size <= REDIRECTS_MAX && !seen.has(url.href)) {
      url.hash = ''
      seen.add(url.href)
      // The address is checked before robots.txt is requested, because that request already contacts the site.
      checkUrl(url.href, this.#options.policy)
      if (!isHostAllowed(url.hostname, options.domains))
        throw new ServiceError('permission_denied', 'The host is outside the allowed domains.')
      if (!(await this.#robots.isAllowed(url, options)))
        throw new ServiceError('permission_denied', 'The robots.txt of the site does not allow this page.')
      const page = await this.#get(url.href, { bytesMax, usedBytesOf: usedBytesIn }, options)
      const target = page.status >= 300 && page.status < 400 ? page.headers.location : undefined
      if (target === undefined) return { url, page }
      url = URL.parse(target, url.href)
    }
    throw new ServiceError('upstream_error', 'The page redirects too often, in a loop, or to an invalid URL.')
  }

  async #get(url: string, limits: Limits, { project, signal }: ReadOptions): Promise<OutboundPage> {
    const { policy, resolve, timeoutMs = TIMEOUT_MS } = this.#options
    const headers = {
      'user-agent': `Mozilla/5.0 (compatible; ${AGENT})`,
      accept: 'text/html, text/plain, application/pdf;q=0.8',
    }
    await this.#downloads.take(signal, 1, project)
    try {
      return await getOutbound(url, { headers, policy, timeoutMs, signal, ...limits, ...(resolve && { resolve }) })
    } finally {
      this.#downloads.release(1, project)
    }
  }
}

function typeOf({ headers }: OutboundAnswer): DocumentType | undefined {
  return TYPES[(headers['content-type'] ?? '').split(';', 1)[0]?.trim().toLowerCase() ?? '']
}

/** Returns the number of bytes of an answer to download. 0 for an error status or an unsupported type, because such a body is not used. */
function usedBytesIn(answer: OutboundAnswer): number {
  const type = answer.status === 200 ? typeOf(answer) : undefined
  return type ? usedBytesOf(type, SNAPSHOT_CHARS_MAX) : 0
}

function refusalOf(status: number): ServiceError {
  if (status === 404 || status === 410) return new ServiceError('not_found', 'The page does not exist.')
  if (status === 429 || status >= 500)
    return new ServiceError('upstream_error', `The site responded with status ${status}.`)
  return new ServiceError('permission_denied', `The site responded with status ${status}.`)
}
