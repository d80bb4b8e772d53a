import { createHash } from 'node:crypto'

/**
 * The search port, which finds and reads the sources of a research report. The local corpus (`local/`) needs only this machine. The other adapters
 * call a web service.
 *
 * Guarantees of every adapter:
 * - At most `limit` hits are returned, best first.
 * - A failure, a refusal or a rate limit throws an error. An empty list always means "nothing found", never an outage.
 * - Text is plain and of bounded length. Text in a page that looks like an instruction for a model is treated as data and never executed.
 */

/** The hosts that may be searched and read. All documents of the local corpus have the host `local`. */
export interface DomainRules {
  /** Allowed hosts, including their subdomains. If empty, then all hosts are allowed. */
  readonly allow: readonly string[]
  readonly deny: readonly string[]
}

export interface SearchOptions {
  readonly limit: number
  readonly domains: DomainRules
  /** Language of the results as a BCP 47 tag, such as `de`. A backend that cannot search by language ignores the tag. */
  readonly language?: string | undefined
  /** True to search only the documents that are indexed so far. False to wait until all documents are indexed for the first time. Default: false. */
  readonly isPartial?: boolean
  readonly signal: AbortSignal
}

export interface ReadOptions {
  readonly domains: DomainRules
  /** Id of the calling project. The threads that read documents serve projects round robin. */
  readonly project: string
  readonly signal: AbortSignal
}

export interface Hit {
  readonly url: string
  readonly title: string
  readonly snippet: string
  readonly date?: string
  /** The backend's id of the document. Undefined if the backend reads documents by URL. */
  readonly id?: string
  /**
   * SHA-256 of the text in which the hit was found, if the backend stores texts. The method {@link SearchBackend.read} then returns exactly this
   * text, even if the document has changed since.
   */
  readonly sha256?: string
}

/** Type of a block. A `heading`, the `head` row of a table and a defined `term` only introduce other blocks. Reports never quote them alone. */
export type BlockType = 'heading' | 'head' | 'term' | 'text' | 'item' | 'row' | 'code'

/** A part of a text, from `start` up to but not including `end`, in UTF-16 units. Blocks are in order and do not overlap. */
export interface Block {
  readonly type: BlockType
  readonly start: number
  readonly end: number
}

/** The text of a source at the time of reading. Later changes of the source have no effect on a snapshot. */
export interface Snapshot {
  readonly url: string
  readonly title: string
  readonly text: string
  readonly blocks: readonly Block[]
  readonly sha256: string
  readonly date?: string
}

/**
 * Frequency of terms in a corpus: the number of all `passages`, and for each term the number of passages that contain it (`holding`). Rare terms of a
 * question usually name its subject, so a good source must contain them.
 */
export interface TermCounts {
  readonly passages: number
  readonly holding: readonly number[]
}

export interface IndexProgress {
  readonly indexed: number
  readonly documents: number
}

export interface SearchBackend {
  readonly name: string
  readonly searchUsd: number
  /**
   * Whether this backend has any document that the domain rules allow. A backend without this method, such as a web search, is assumed to have such a
   * document.
   */
  hasAllowed?(domains: DomainRules): boolean
  /**
   * Searches for a question or for words in plain language.
   *
   * @throws ServiceError `upstream_error`, `upstream_timeout`, `rate_limit_exceeded`, `upstream_refused`, or the abort reason of the signal
   */
  search(text: string, options: SearchOptions): Promise<Hit[]>
  /**
   * Reads the document of a hit.
   *
   * @throws ServiceError `not_found`, `unsupported_media_type`, `request_too_large`, `permission_denied`, `invalid_value` (a forbidden address),
   * `upstream_error`, `upstream_timeout`, or the abort reason of the signal
   */
  read(hit: Hit, options: ReadOptions): Promise<Snapshot>
  /**
   * Counts the passages with each term. Only backends with their own index have this method.
   *
   * @throws ServiceError as {@link search}
   */
  countTerms?(terms: readonly string[], signal: AbortSignal): Promise<TermCounts>
  /**
   * Waits until all documents are indexed. Only backends with an index of their own have this method.
   *
   * @param waitMs Maximum wait in ms.
   * @returns The progress, if indexing did not end within this time. Undefined if it has ended or failed. A search throws the reason of a failure.
   * @throws The abort reason of the signal
   */
  indexed?(waitMs: number, signal: AbortSignal): Promise<IndexProgress | undefined>
  close(): Promise<void>
}

/** Host name by which domain rules refer to the local corpus. */
export const LOCAL_HOST = 'local'
export const HITS_MAX = 20
/**
 * Maximum UTF-16 units of a snapshot. A longer local document becomes several sources, and a longer web page is
 * truncated.
 */
export const SNAPSHOT_CHARS_MAX = 48 * 1024
export const TITLE_CHARS_MAX = 200
export const SNIPPET_CHARS_MAX = 300

export function isWebAllowed({ allow }: DomainRules): boolean {
  return allow.length === 0 || allow.some((domain) => domain.toLowerCase() !== LOCAL_HOST)
}

/** Whether the rules allow a host. A host in both lists is denied. */
export function isHostAllowed(host: string, { allow, deny }: DomainRules): boolean {
  const name = host.toLowerCase().replace(/\.$/, '')
  const isOf = (domain: string) => {
    const suffix = domain.toLowerCase().replace(/^\*?\.|\.$/g, '')
    return name === suffix || name.endsWith(`.${suffix}`)
  }
  return !deny.some(isOf) && (allow.length === 0 || allow.some(isOf))
}

export function sha256Of(text: string): string {
  return createHash('sha256').update(text, 'utf8').digest('hex')
}
