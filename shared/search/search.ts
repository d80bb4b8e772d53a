/**
 * The search port: finds and reads the sources of a report. The local corpus (`local/`) needs only this machine; the other
 * adapters call a web service.
 *
 * Guarantees of every adapter:
 * - Hits are sorted, best first, and at most `limit`.
 * - A failure, a refusal or a rate limit throws an error. An empty list always means "nothing found", never an outage.
 * - Text is plain and bounded. Instructions in it are data of the page: they are quoted and searched, never executed.
 */

/** The hosts that may be searched and read. Documents of the local corpus have the host `local`. */
export interface DomainRules {
  /** Empty: all. A host includes its subdomains. */
  readonly allow: readonly string[]
  readonly deny: readonly string[]
}

export interface SearchOptions {
  /** Maximum number of hits, 1 to {@link HITS_MAX}. */
  readonly limit: number
  readonly domains: DomainRules
  /** BCP 47. A backend that cannot search by language ignores it. */
  readonly language?: string | undefined
  /** True: search the documents indexed so far. False: wait until the first indexing ends. Default: false. */
  readonly isPartial?: boolean
  readonly signal: AbortSignal
}

export interface ReadOptions {
  readonly domains: DomainRules
  /** Id of the project that reads: projects take turns at the threads that read documents. */
  readonly project: string
  readonly signal: AbortSignal
}

/** A source found by a search. */
export interface Hit {
  /** Absolute URL of a web page, or the path of a document within the corpus, with slashes. */
  readonly url: string
  readonly title: string
  readonly snippet: string
  /** ISO 8601, if the backend returns a date. */
  readonly date?: string
  /** The backend's id of the document, if the backend does not read by URL. */
  readonly id?: string
  /** Hash of the found text, if the backend stores texts. {@link SearchBackend.read} then returns this version, never a later one. */
  readonly sha256?: string
}

/** Type of a piece of a text. A `heading`, the `head` of a table and a defined `term` only introduce other blocks and are never quoted. */
export type BlockType = 'heading' | 'head' | 'term' | 'text' | 'item' | 'row' | 'code'

/** A piece of a text: UTF-16 offsets, half open. Blocks are in order and do not overlap. */
export interface Block {
  readonly type: BlockType
  readonly start: number
  readonly end: number
}

/** The text of a source when it was read. A snapshot never changes, even if the source does. */
export interface Snapshot {
  readonly url: string
  readonly title: string
  /** Plain text, at most {@link SNAPSHOT_CHARS_MAX} UTF-16 units. */
  readonly text: string
  readonly blocks: readonly Block[]
  /** Hash of the text in UTF-8, in hex. */
  readonly sha256: string
  readonly date?: string
}

/** Document frequencies of terms. Rare terms of a question show its subject. */
export interface TermCounts {
  /** Passages in the corpus. */
  readonly passages: number
  /** Number of passages with each term, in the order of the requested terms. */
  readonly holding: readonly number[]
}

export interface IndexProgress {
  readonly indexed: number
  readonly documents: number
}

export interface SearchBackend {
  readonly name: string
  /** Price of one search, in US dollars. */
  readonly searchUsd: number
  /** False if the rules exclude every document of this backend. Absent: the backend always has allowed documents. */
  hasAllowed?(domains: DomainRules): boolean
  /**
   * Finds sources for a text in plain words.
   *
   * @throws ServiceError `upstream_error`, `upstream_timeout`, `rate_limit_exceeded`, `upstream_refused`; the signal's reason
   */
  search(text: string, options: SearchOptions): Promise<Hit[]>
  /**
   * Reads a hit.
   *
   * @throws ServiceError `not_found`, `unsupported_media_type`, `request_too_large`, `permission_denied`,
   * `invalid_value` (a forbidden address), `upstream_error`, `upstream_timeout`; the signal's reason
   */
  read(hit: Hit, options: ReadOptions): Promise<Snapshot>
  /** Document frequencies of terms. Only backends with an own index have this method. @throws ServiceError As {@link search} */
  countTerms?(terms: readonly string[], signal: AbortSignal): Promise<TermCounts>
  /**
   * Waits until all documents are indexed. Only backends with an own index have this method.
   *
   * @param waitMs Maximum time to wait.
   * @returns The progress if the time was too short. Undefined if indexing has ended or failed; a search then throws the reason.
   * @throws The signal's reason
   */
  indexed?(waitMs: number, signal: AbortSignal): Promise<IndexProgress | undefined>
  close(): Promise<void>
}

/** Host name of the local corpus in lists of domains. */
export const LOCAL_HOST = 'local'
export const HITS_MAX = 20
/** Maximum UTF-16 units of a snapshot. A longer document becomes several sources; a longer page is cut. */
export const SNAPSHOT_CHARS_MAX = 48 * 1024
/** Maximum UTF-16 units of a title, and of a snippet. */
export const TITLE_CHARS_MAX = 200
export const SNIPPET_CHARS_MAX = 300

/** Whether the rules allow any host on the web. */
export function isWebAllowed({ allow }: DomainRules): boolean {
  return allow.length === 0 || allow.some((domain) => domain.toLowerCase() !== LOCAL_HOST)
}

/** Whether the rules allow a host. `deny` takes precedence over `allow`. */
export function isHostAllowed(host: string, { allow, deny }: DomainRules): boolean {
  const name = host.toLowerCase().replace(/\.$/, '')
  const isOf = (domain: string) => {
    const suffix = domain.toLowerCase().replace(/^\*?\.|\.$/g, '')
    return name === suffix || name.endsWith(`.${suffix}`)
  }
  return !deny.some(isOf) && (allow.length === 0 || allow.some(isOf))
}
