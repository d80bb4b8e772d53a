import { setTimeout as wait } from 'node:timers/promises'
import { ERRORS } from '#schemas/error.ts'
import { type ResearchRequest, type ResearchSource, SOURCES_MAX } from '#schemas/research/research.ts'
import type { Budget } from '#services/research/budget.ts'
import type { Clock } from '#services/research/clock.ts'
import { ServiceError } from '#shared/error.ts'
import type { Cost } from '#shared/kinds/composition.ts'
import { HITS_MAX, type Hit, type IndexProgress, type SearchBackend, type Snapshot } from '#shared/search/search.ts'
import { isRepeat, printOf, type TextPrint } from '#shared/search/text/duplicates.ts'
import { runYielding } from '#shared/yielding.ts'
import { type Freshness, freshnessOf } from './freshness.ts'

/** Times that something outside is asked, and the longest wait in between. */
const TRIES = 2
const WAIT_MS = 500
const WAIT_MS_MAX = 5_000
/** One search, or one page. */
const TRY_MS = 20_000

/** Searches, and pages, that are under way at once. */
const AT_ONCE = 4
/** Of reciprocal rank fusion. */
const RRF_K = 60
/** Pages of one host that one round reads: one site is one voice. */
const PER_HOST_MAX = 3
/** Minimum ratio of the lengths of two texts that may be the same one under another head and foot, whose length in UTF-16 units is allowed too. */
const LENGTH_RATIO_MIN = 0.9
const LENGTH_SLACK = 200

/** What a search has found, and where it is read. */
interface Found {
  readonly hit: Hit
  readonly backend: SearchBackend
  score: number
}

/** What gathering works with. */
export interface GatherOptions {
  readonly backends: readonly SearchBackend[]
  readonly request: ResearchRequest
  readonly clock: Clock
  readonly budget: Budget
  /** Id of the project whose research it is. */
  readonly project: string
  readonly signal: AbortSignal
}

/**
 * Searches and reads: each search and each page is a step, so that a run that is taken up again asks for none of them twice. A
 * step that fails is not kept; how many did is counted, because "nothing was found" may only be said where nothing failed.
 */
export class Gathering {
  readonly #options: GatherOptions
  readonly #found = new Map<string, Found>()
  readonly #tried = new Set<string>()
  readonly snapshots: Snapshot[] = []
  /** Of those that another source may repeat. */
  readonly #prints = new Map<Snapshot, TextPrint>()
  searches = 0
  failedSearches = 0
  unread = 0
  /** The run was cancelled while it searched or read: something of it is missing, and nothing has failed. */
  isCut = false
  /** How far indexes are that are searched before they are whole. */
  indexing: IndexProgress | undefined
  #failure: ServiceError | undefined
  readonly #freshness: Freshness | undefined

  constructor(options: GatherOptions) {
    this.#options = options
    this.#freshness = freshnessOf(options.request.question)
  }

  /** Whether there is anything that may be searched. */
  get canSearch(): boolean {
    return this.#options.backends.length > 0
  }

  get sourcesFound(): number {
    return this.#found.size
  }

  /** Sources that were found, best first; as many as may be read. */
  get results(): ResearchSource[] {
    return this.#ranked()
      .slice(0, SOURCES_MAX)
      .map(({ hit: { title, url, snippet, date } }) => ({
        title,
        url,
        snippet,
        ...(date && { date }),
      }))
  }

  /**
   * Searches by texts at every backend, as far as the budget goes.
   *
   * @returns False when it goes no further
   * @throws ServiceError When all searches of the run so far have failed
   */
  async search(queries: readonly string[]): Promise<boolean> {
    const { backends, budget } = this.#options
    const wanted = queries.flatMap((query) => backends.map((backend) => ({ query, backend })))
    const paid = wanted.filter(({ backend }) => budget.reserve({ searches: 1, usd: backend.searchUsd }))
    const lists = await inGroups(paid, (each) => this.#searchOne(each.backend, each.query))
    for (const [at, hits] of lists.entries()) this.#add(hits, paid[at]?.backend)
    if (this.#failure && this.failedSearches === this.searches) throw this.#failure
    return paid.length === wanted.length
  }

  /** Reads the best sources that are not read yet, as far as the budget goes. @returns Those that are new */
  async read(): Promise<Snapshot[]> {
    const chosen = this.#choose()
    const read = await inGroups(chosen, (found) => this.#readOne(found))
    return await runYielding(this.#keepNew(read), this.#options.signal)
  }

  /** What says the same as a source that was ranked before it is the same source. */
  *#keepNew(read: readonly (Snapshot | undefined)[]): Generator<void, Snapshot[]> {
    const fresh: Snapshot[] = []
    for (const snapshot of read) {
      if (snapshot === undefined || this.snapshots.some(({ sha256 }) => sha256 === snapshot.sha256)) continue
      let isKnown = false
      for (const other of this.snapshots.filter((each) => mayRepeat(snapshot, each)))
        isKnown ||= yield* isRepeat(yield* this.#printOf(snapshot), yield* this.#printOf(other))
      if (isKnown) continue
      this.snapshots.push(snapshot)
      fresh.push(snapshot)
    }
    return fresh
  }

  *#printOf(snapshot: Snapshot): Generator<void, TextPrint> {
    const known = this.#prints.get(snapshot)
    if (known) return known
    const print = yield* printOf(snapshot.text)
    this.#prints.set(snapshot, print)
    return print
  }

  async #searchOne(backend: SearchBackend, query: string): Promise<readonly Hit[]> {
    const { domains, language } = this.#options.request
    const input = { backend: backend.name, query, limit: HITS_MAX, domains, language }
    const cost = { searches: 1, usd: backend.searchUsd }
    const isPartial = this.indexing !== undefined
    const run = (signal: AbortSignal) =>
      backend.search(query, { limit: HITS_MAX, domains, language, isPartial, signal })
    const [hits, failure] = await this.#outside('search', input, cost, run)
    if (hits || failure) this.searches++
    if (hits) return hits
    if (!failure) return []
    this.failedSearches++
    this.#failure = failure
    return []
  }

  async #readOne({ hit, backend }: Found): Promise<Snapshot | undefined> {
    const { request, project } = this.#options
    const { domains } = request
    const input = { backend: backend.name, url: hit.url, id: hit.id, sha256: hit.sha256 }
    const run = (signal: AbortSignal) => backend.read(hit, { domains, project, signal })
    const [snapshot, failure] = await this.#outside('read', input, { pages: 1 }, run)
    if (failure) this.unread++
    return snapshot
  }

  /**
   * Asks a backend in a step. Its failure is one of the backend; what else goes wrong is no matter of ours.
   *
   * @returns What it gave, or its failure; neither where the run was cancelled meanwhile
   */
  async #outside<T>(
    kind: string,
    input: unknown,
    cost: Cost,
    run: (signal: AbortSignal) => Promise<T>,
  ): Promise<[T, undefined] | [undefined, ServiceError | undefined]> {
    const { clock, signal } = this.#options
    let failure: ServiceError | undefined
    try {
      const value = await clock.composition.step(kind, input, async (stepSignal) => {
        const ending = AbortSignal.any([signal, stepSignal])
        try {
          return { value: await withRetry(run, AbortSignal.any([ending, clock.cancelled]), clock.leftMs), cost }
        } catch (error) {
          if (!clock.cancelled.aborted && !ending.aborted) failure = ServiceError.from(error)
          throw error
        }
      })
      return [value, undefined]
    } catch (error) {
      // A replay is cut without being asked to run what was not recorded.
      const isCut = !failure && clock.cancelled.aborted && !signal.aborted
      if (!failure && !isCut) throw error
      this.isCut ||= isCut
      return [undefined, failure]
    }
  }

  #add(hits: readonly Hit[], backend: SearchBackend | undefined): void {
    if (!backend) return
    for (const [rank, hit] of hits.slice(0, HITS_MAX).entries()) {
      const key = `${hit.url} ${hit.sha256 ?? ''}`
      const known = this.#found.get(key)
      if (known) known.score += 1 / (RRF_K + rank + 1)
      else this.#found.set(key, { hit, backend, score: 1 / (RRF_K + rank + 1) })
    }
  }

  #choose(): Found[] {
    const perHost = new Map<string, number>()
    const chosen: Found[] = []
    for (const found of this.#ranked()) {
      const key = `${found.hit.url} ${found.hit.sha256 ?? ''}`
      const host = URL.parse(found.hit.url)?.host
      const ofHost = host === undefined ? 0 : (perHost.get(host) ?? 0)
      if (this.#tried.has(key) || ofHost >= PER_HOST_MAX) continue
      if (!this.#options.budget.reserve({ pages: 1 })) break
      if (host !== undefined) perHost.set(host, ofHost + 1)
      this.#tried.add(key)
      chosen.push(found)
    }
    return chosen
  }

  #ranked(): Found[] {
    const all = [...this.#found.values()]
    const fresh = new Map(this.#freshness?.(all).map((found, rank) => [found, 1 / (RRF_K + rank + 1)]))
    const scoreOf = (found: Found) => found.score + (fresh.get(found) ?? 0)
    return all.sort((a, b) => scoreOf(b) - scoreOf(a) || (a.hit.url < b.hit.url ? -1 : 1))
  }
}

/** Whether two sources are of nearly the same length, without which neither repeats the other, and no parts of one document. */
function mayRepeat(a: Snapshot, b: Snapshot): boolean {
  const [shorter, longer] = [Math.min(a.text.length, b.text.length), Math.max(a.text.length, b.text.length)]
  return longer - shorter <= LENGTH_SLACK + (1 - LENGTH_RATIO_MIN) * longer && documentOf(a.url) !== documentOf(b.url)
}

function documentOf(url: string): string {
  return url.replace(/#part-\d+$/, '')
}

/** Some at once, and their results in the order they were asked for. */
async function inGroups<T, R>(items: readonly T[], work: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = []
  for (let at = 0; at < items.length; at += AT_ONCE) {
    results.push(...(await Promise.all(items.slice(at, at + AT_ONCE).map(work))))
  }
  return results
}

/**
 * Asks something outside, with a time for each try and one more try where that may help.
 *
 * @param leftMs Milliseconds for all of it.
 * @throws ServiceError; the signal's reason
 */
async function withRetry<T>(run: (signal: AbortSignal) => Promise<T>, signal: AbortSignal, leftMs: number): Promise<T> {
  const endsAtMs = Date.now() + leftMs
  signal.throwIfAborted()
  for (let tries = 1; ; tries++) {
    const timeout = AbortSignal.timeout(Math.ceil(Math.min(TRY_MS, Math.max(1, endsAtMs - Date.now()))))
    try {
      return await run(AbortSignal.any([signal, timeout]))
    } catch (error) {
      signal.throwIfAborted()
      const failure = timeout.aborted
        ? new ServiceError('upstream_timeout', 'It took too long.')
        : ServiceError.from(error)
      const waitMs = failure.retryAfterMs ?? WAIT_MS
      if (tries >= TRIES || !ERRORS[failure.code].retry || waitMs > Math.min(WAIT_MS_MAX, endsAtMs - Date.now()))
        throw failure
      await wait(waitMs, undefined, { signal })
    }
  }
}
