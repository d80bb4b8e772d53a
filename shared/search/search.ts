/**
 * The search port: where the sources of a report come from. The local corpus (`local/`) needs nothing but this machine; the
 * others ask a service of the web.
 *
 * What every adapter promises: hits come best first and at most `limit` of them; a failure, a refusal and a throttled call are
 * errors, never an empty list, so nobody takes an outage for "nothing found"; text is plain and bounded, and belongs to the
 * page: it is quoted and searched, never obeyed.
 */

/** Which hosts may be asked and read. Documents of the local corpus have the host `local`. */
export interface DomainRules {
  /** Empty: all. A host stands for its subdomains too. */
  readonly allow: readonly string[]
  readonly deny: readonly string[]
}

/** How a search is made. */
export interface SearchOptions {
  /** Hits at most, 1 to {@link HITS_MAX}. */
  readonly limit: number
  readonly domains: DomainRules
  /** BCP 47; a backend that cannot search by language does without. */
  readonly language?: string | undefined
  /** Searches what is indexed so far, where that is not all yet; else it waits. */
  readonly isPartial?: boolean
  readonly signal: AbortSignal
}

/** How a hit is read. */
export interface ReadOptions {
  readonly domains: DomainRules
  /** Id of the project that reads: projects take turns at the threads that read documents. */
  readonly project: string
  readonly signal: AbortSignal
}

/** A source that a search has found. */
export interface Hit {
  /** Absolute for pages of the web; for documents of the corpus the path within it, with slashes. */
  readonly url: string
  readonly title: string
  readonly snippet: string
  /** ISO 8601, where the backend knows one. */
  readonly date?: string
  /** The name by which the backend reads it, where that is not its URL. */
  readonly id?: string
  /** The text that was found, where the backend keeps texts: {@link SearchBackend.read} gives this one and no later one. */
  readonly sha256?: string
}

/** Type of a piece of a text. A `heading`, and the `head` of a table, say nothing by themselves and are never quoted. */
export type BlockType = 'heading' | 'head' | 'text' | 'item' | 'row' | 'code'

/** A piece of a text: UTF-16 offsets, half open. Blocks are in order and do not overlap. */
export interface Block {
  readonly type: BlockType
  readonly start: number
  readonly end: number
}

/** The text of a source as it was read: it never changes, whatever becomes of the source. */
export interface Snapshot {
  readonly url: string
  readonly title: string
  /** Plain text, at most {@link SNAPSHOT_CHARS_MAX} UTF-16 units. */
  readonly text: string
  readonly blocks: readonly Block[]
  /** Of the text in UTF-8, in hex. */
  readonly sha256: string
  readonly date?: string
}

/** How common terms are, for telling what a question is about. */
export interface TermWeights {
  /** Passages in the corpus. */
  readonly passages: number
  /** Passages that hold each term, in the order of the terms asked for. */
  readonly holding: readonly number[]
}

/** How far documents are indexed. */
export interface IndexProgress {
  readonly indexed: number
  readonly documents: number
}

/** One place to search. */
export interface SearchBackend {
  /** Such as `local` or `searxng`. */
  readonly name: string
  /** What one search costs, in US dollars. */
  readonly searchUsd: number
  /** False where the rules leave nothing of it to search; absent: there may always be something. */
  hasAllowed?(domains: DomainRules): boolean
  /**
   * Finds sources for a text in plain words.
   *
   * @throws ServiceError `upstream_error`, `upstream_timeout`, `rate_limit_exceeded`, `upstream_refused`; the signal's reason
   */
  search(text: string, options: SearchOptions): Promise<Hit[]>
  /**
   * Reads what was found.
   *
   * @throws ServiceError `not_found`, `unsupported_media_type`, `request_too_large`, `permission_denied`, `invalid_value` (an
   *   address that must not be asked), `upstream_error`, `upstream_timeout`; the signal's reason
   */
  read(hit: Hit, options: ReadOptions): Promise<Snapshot>
  /** How common terms are where the whole corpus is known; absent elsewhere. @throws ServiceError As {@link search} */
  weigh?(terms: readonly string[], signal: AbortSignal): Promise<TermWeights>
  /**
   * Waits until all is indexed, where the backend has an index of its own that it makes; absent elsewhere.
   *
   * @param waitMs Longest time to wait.
   * @returns How far it is where that was not enough; undefined where it is whole, or cannot be made: a search says why
   * @throws The signal's reason
   */
  indexed?(waitMs: number, signal: AbortSignal): Promise<IndexProgress | undefined>
  close(): Promise<void>
}

/** The host that stands for the local corpus in lists of domains. */
export const LOCAL_HOST = 'local'
/** Hits of one search. */
export const HITS_MAX = 20
/** UTF-16 units of one snapshot; a longer document is several sources, a longer page is cut. */
export const SNAPSHOT_CHARS_MAX = 48 * 1024
/** UTF-16 units of a title and of a snippet. */
export const TITLE_CHARS_MAX = 200
export const SNIPPET_CHARS_MAX = 300

/** Whether the rules let any page of the web be read. */
export function isWebAllowed({ allow }: DomainRules): boolean {
  return allow.length === 0 || allow.some((domain) => domain.toLowerCase() !== LOCAL_HOST)
}

/** Whether the rules let a host be asked: what is denied counts first. */
export function isHostAllowed(host: string, { allow, deny }: DomainRules): boolean {
  const name = host.toLowerCase().replace(/\.$/, '')
  const isOf = (domain: string) => {
    const suffix = domain.toLowerCase().replace(/^\*?\.|\.$/g, '')
    return name === suffix || name.endsWith(`.${suffix}`)
  }
  return !deny.some(isOf) && (allow.length === 0 || allow.some(isOf))
}
