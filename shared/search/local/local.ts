import { basename, extname } from 'node:path'
import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { DocumentReader } from '#shared/search/documents/documents.ts'
import {
  type Block,
  type DomainRules,
  type Hit,
  type IndexProgress,
  isHostAllowed,
  LOCAL_HOST,
  type ReadOptions,
  type SearchBackend,
  type SearchOptions,
  SNAPSHOT_CHARS_MAX,
  SNIPPET_CHARS_MAX,
  type Snapshot,
  sha256Of,
  type TermCounts,
  TITLE_CHARS_MAX,
} from '#shared/search/search.ts'
import type { ReadDocument } from '#shared/search/text/builder.ts'
import { languageOf, queryTermsOf } from '#shared/search/text/query-terms.ts'
import { CorpusIndex, type IndexedFile, PASSAGES_MAX } from './corpus-index.ts'
import { type Corpus, type FoundFile, listFiles, readFound, urlOf } from './files.ts'
import { watchCorpus } from './watch.ts'

const DOCUMENT_CHARS_MAX = 2 * 1024 * 1024
const RETRY_DELAY_MS = 5_000
/**
 * READ_AHEAD: maximum documents that are parsed in advance while another document is indexed. SIZE_CHECK_DOCUMENTS: number of documents
 * between two checks of the index size.
 */
const READ_AHEAD = 3
const SIZE_CHECK_DOCUMENTS = 20
const NO_SNAPSHOTS: Promise<Snapshot[]> = Promise.resolve([])
/** Maximum words and maximum terms of a query. In scripts without spaces, such as Chinese, one word is divided into several terms. */
const WORDS_MAX = 16
const TERMS_MAX = 48

export interface LocalCorpusOptions {
  readonly corpus: Corpus
  readonly directory: string
  readonly onProblem?: (problem: string) => void
  /** Interval in ms of full scans. Such a scan finds changes for which the file system sent no event. Default: 30 s. */
  readonly pollIntervalMs?: number
}

export interface LocalCorpus extends SearchBackend {
  readonly name: 'local'
  /**
   * Resolves when all changes so far are indexed.
   *
   * @throws ServiceError `upstream_error` if the folder cannot be read
   */
  refresh(): Promise<void>
  countTerms(words: readonly string[], signal: AbortSignal): Promise<TermCounts>
  problems(): string[]
}

/**
 * Opens a folder of Markdown, HTML, PDF, Word and text files as a search backend (docs/guides/deep-research.md, The local corpus). The
 * folder is watched and indexed incrementally in the background. A search waits until the first scan has ended.
 */
export function openLocalCorpus(options: LocalCorpusOptions): LocalCorpus {
  return new CorpusBackend(options)
}

class CorpusBackend implements LocalCorpus {
  readonly name = 'local'
  readonly searchUsd = 0
  readonly #options: LocalCorpusOptions
  readonly #index: CorpusIndex
  readonly #reader = new DocumentReader({ threads: 1 })
  readonly #closing = new AbortController()
  readonly #unwatch: () => void
  #scanning: Promise<void>
  #next: Promise<void> | undefined
  #hasScanned = false
  #isFull = false
  #progress: IndexProgress = { indexed: 0, documents: 0 }

  constructor(options: LocalCorpusOptions) {
    this.#options = options
    this.#index = new CorpusIndex(options.directory)
    this.#scanning = this.#scan()
    this.#scanning.catch((error: unknown) => this.#reportProblem(error))
    this.#unwatch = watchCorpus(options.corpus, options.pollIntervalMs, () => {
      this.refresh().catch((error: unknown) => this.#reportProblem(error))
    })
  }

  hasAllowed(domains: DomainRules): boolean {
    return isHostAllowed(LOCAL_HOST, domains)
  }

  async search(text: string, { limit, domains, isPartial = false, signal }: SearchOptions): Promise<Hit[]> {
    if (!isHostAllowed(LOCAL_HOST, domains)) return []
    if (isPartial) this.#requireDocuments()
    else await this.#waitForScan(signal)
    return this.#index.search(termsFor(text), limit).map(({ snippet, date, ...source }) => ({
      ...source,
      snippet: snippet.slice(0, SNIPPET_CHARS_MAX).toWellFormed(),
      ...(date === '' ? {} : { date }),
    }))
  }

  async read({ url, sha256 }: Hit, { domains, signal }: ReadOptions): Promise<Snapshot> {
    if (!isHostAllowed(LOCAL_HOST, domains))
      throw new ServiceError('permission_denied', 'The local corpus is not among the allowed domains.')
    // A hit with a hash refers to a text that is already in the index, so the read does not wait for the first scan.
    if (sha256 === undefined) await this.#waitForScan(signal)
    const snapshot = this.#index.find(url, sha256)
    if (!snapshot) throw new ServiceError('not_found', `The corpus has no document ${url}.`)
    return snapshot
  }

  async countTerms(words: readonly string[], signal: AbortSignal): Promise<TermCounts> {
    await this.#waitForScan(signal)
    const holding = await runYielding(this.#countAll(words.slice(0, 4 * WORDS_MAX)), signal)
    return { passages: this.#index.size, holding }
  }

  async indexed(waitMs: number, signal: AbortSignal): Promise<IndexProgress | undefined> {
    const waited = AbortSignal.any([signal, this.#closing.signal, AbortSignal.timeout(Math.ceil(waitMs))])
    await abortable(this.#scanning, waited).catch(() => {})
    signal.throwIfAborted()
    return this.#hasScanned || !waited.aborted ? undefined : this.#progress
  }

  refresh(): Promise<void> {
    // A scan that is now running may have passed a file before that file changed, so callers wait for the next scan.
    this.#next ??= this.#scanning
      .catch(() => {})
      .then(() => {
        this.#next = undefined
        this.#scanning = this.#scan()
        return this.#scanning
      })
    return this.#next
  }

  problems(): string[] {
    return this.#index.isOpen ? this.#index.problems() : []
  }

  async close(): Promise<void> {
    this.#unwatch()
    this.#closing.abort(new ServiceError('overloaded', 'The corpus is closed.'))
    await this.#scanning.catch(() => {})
    await this.#reader.close()
    this.#index.close()
  }

  *#countAll(words: readonly string[]): Generator<undefined, number[]> {
    const counts: number[] = []
    for (const word of words) {
      counts.push(this.#index.count(word))
      yield
    }
    return counts
  }

  async #waitForScan(signal: AbortSignal): Promise<void> {
    if (!this.#hasScanned) await abortable(this.#scanning, AbortSignal.any([signal, this.#closing.signal]))
  }

  #requireDocuments(): void {
    const { indexed, documents } = this.#progress
    if (this.#hasScanned || indexed > 0) return
    const message = `The local corpus is being indexed: ${indexed} of ${documents} documents.`
    throw new ServiceError('overloaded', message, { retryAfterMs: RETRY_DELAY_MS })
  }

  async #scan(): Promise<void> {
    try {
      const found = await listFiles(this.#options.corpus)
      const known = new Map(this.#index.files().map((file) => [file.path, file]))
      const changed = found.filter((file) => !isSame(file, known.get(file.path)))
      const unchanged = found.length - changed.length
      const reading: Promise<Snapshot[]>[] = []
      for (const [at, file] of changed.entries()) {
        this.#closing.signal.throwIfAborted()
        this.#progress = { indexed: unchanged + at, documents: found.length }
        if (at % SIZE_CHECK_DOCUMENTS === 0) this.#isFull = this.#index.size >= PASSAGES_MAX
        for (const next of changed.slice(reading.length, at + READ_AHEAD)) reading.push(this.#sourcesOf(next))
        await this.#indexFile(file, reading[at] ?? this.#sourcesOf(file))
        reading[at] = NO_SNAPSHOTS
      }
      for (const { path } of found) known.delete(path)
      for (const path of known.keys()) await runYielding(this.#index.remove(path), this.#closing.signal)
      this.#hasScanned = true
    } catch (error) {
      if (this.#closing.signal.aborted) throw this.#closing.signal.reason
      throw new ServiceError('upstream_error', 'The local corpus cannot be read.', { cause: error })
    }
  }

  /** Indexes a file. If the file cannot be read, then the problem is recorded, and the file is tried again only after it has changed. */
  async #indexFile(file: FoundFile, reading: Promise<Snapshot[]>): Promise<void> {
    const { signal } = this.#closing
    try {
      await runYielding(this.#index.replace(file, await reading, null), signal)
    } catch (error) {
      signal.throwIfAborted()
      const { code, message } = ServiceError.from(error)
      const problem = code === 'internal_error' ? 'The file could not be read.' : message
      await runYielding(this.#index.replace(file, [], problem), signal)
      this.#options.onProblem?.(`${file.path}: ${problem}`)
    }
  }

  #sourcesOf(file: FoundFile): Promise<Snapshot[]> {
    const reading = this.#read(file)
    // The read may fail before its result is awaited. Without this handler, Node would report an unhandled rejection.
    reading.catch(() => {})
    return reading
  }

  async #read(file: FoundFile): Promise<Snapshot[]> {
    const { path, type, modifiedMs } = file
    if (this.#isFull) throw new ServiceError('overloaded', `The corpus has ${PASSAGES_MAX} passages, the maximum.`)
    const content = await readFound(file, this.#closing.signal)
    const document = await this.#reader.read(
      { type, bytes: content, charsMax: DOCUMENT_CHARS_MAX },
      LOCAL_HOST,
      this.#closing.signal,
    )
    const title = (document.title || basename(path, extname(path))).slice(0, TITLE_CHARS_MAX).toWellFormed()
    return partsOf(document, urlOf(path), title, new Date(modifiedMs).toISOString().slice(0, 10))
  }

  #reportProblem(error: unknown): void {
    if (!this.#closing.signal.aborted) this.#options.onProblem?.(ServiceError.from(error).message)
  }
}

function isSame(file: FoundFile, known: IndexedFile | undefined): boolean {
  return known !== undefined && known.bytes === file.bytes && known.modifiedMs === file.modifiedMs
}

function termsFor(text: string): string[] {
  const plain = text.normalize('NFC')
  const terms = new Map<string, string>()
  const words = new Set<string>()
  for (const { word, term } of queryTermsOf(plain, languageOf(plain))) {
    words.add(word)
    if (words.size > WORDS_MAX || terms.size >= TERMS_MAX) break
    terms.set(term, word)
  }
  return [...terms.keys()]
}

/** Converts a document to sources. A document longer than {@link SNAPSHOT_CHARS_MAX} becomes several sources. */
function partsOf(document: ReadDocument, url: string, title: string, date: string): Snapshot[] {
  const groups = groupsOf(document.blocks)
  return groups.map((blocks, at) => {
    const isPart = groups.length > 1
    const start = blocks[0]?.start ?? 0
    const text = document.text.slice(start, blocks.at(-1)?.end ?? 0)
    return {
      url: isPart ? `${url}#part-${at + 1}` : url,
      title: isPart ? `${title} (part ${at + 1})` : title,
      text,
      blocks: blocks.map((block) => ({ ...block, start: block.start - start, end: block.end - start })),
      sha256: sha256Of(text),
      date,
    }
  })
}

function groupsOf(blocks: readonly Block[]): Block[][] {
  const groups: Block[][] = []
  for (const whole of blocks) {
    for (const block of cut(whole)) {
      const group = groups.at(-1)
      const first = group?.[0]
      if (group && first && block.end - first.start <= SNAPSHOT_CHARS_MAX) group.push(block)
      else groups.push([block])
    }
  }
  return groups
}

function* cut(block: Block): Generator<Block> {
  for (let start = block.start; start < block.end; start += SNAPSHOT_CHARS_MAX)
    yield { ...block, start, end: Math.min(block.end, start + SNAPSHOT_CHARS_MAX) }
}
