import { setTimeout as wait } from 'node:timers/promises'
import { ERRORS } from '#schemas/error.ts'
import { type ResearchRequest, type ResearchSource, SOURCES_MAX } from '#schemas/kinds/research.ts'
import type { Budget } from '#services/research/budget/budget.ts'
import type { Clock } from '#services/research/budget/clock.ts'
import type { Cost } from '#shared/kinds/composition.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { HITS_MAX, type Hit, type IndexProgress, type SearchBackend, type Snapshot } from '#shared/search/search.ts'
import { isRepeat, printOf, type TextPrint } from '#shared/search/text/duplicates.ts'

const FRESH =
  /\b(?:latest|newest|most recent|recent|recently|current|currently|nowadays|today|up[- ]to[- ]date|this (?:year|month|week)|as of)\b/i
const YEAR = /\b(?:19|20)\d\d\b/g

/** Maximum attempts of a call, and delay in ms before the retry. If the server's Retry-After exceeds 5 s, then there is no retry. */
const ATTEMPTS_MAX = 2
const RETRY_DELAY_MS = 500
const RETRY_AFTER_MS_MAX = 5_000
const ATTEMPT_TIMEOUT_MS = 20_000

const CALLS_IN_FLIGHT_MAX = 4
const RRF_K = 60
/** Maximum pages per host and round, so that one site cannot fill the report. */
const PER_HOST_MAX = 3
/**
 * Two texts may be copies of each other if their lengths differ by at most 10 % plus 200 UTF-16 units. Copies may have different headers and
 * footers.
 */
const LENGTH_RATIO_MIN = 0.9
const LENGTH_SLACK = 200

interface RankedHit {
  readonly hit: Hit
  readonly backend: SearchBackend
  score: number
}

export interface GatherOptions {
  readonly backends: readonly SearchBackend[]
  readonly request: ResearchRequest
  readonly clock: Clock
  readonly budget: Budget
  readonly project: string
  readonly signal: AbortSignal
}

/**
 * Finds and reads the sources of one run.
 *
 * 1. Each search and each page is a recorded step, so a resumed run repeats none of them. A failed step is not recorded.
 * 2. Failures are counted and reported, because the answer may be in a source that a failed search would have found.
 * 3. The ranked lists of all queries and backends are merged by reciprocal rank fusion. The score of a hit is the sum of 1 / (60 + rank)
 *    over the lists that contain it. Example: rank 1 in two lists gives 2 / 61 = 0.033.
 * 4. A source that repeats the text of an earlier one is dropped, because copies are not independent sources.
 */
export class Gathering {
  readonly #options: GatherOptions
  readonly #found = new Map<string, RankedHit>()
  readonly #tried = new Set<string>()
  readonly snapshots: Snapshot[] = []
  readonly #prints = new Map<Snapshot, TextPrint>()
  searches = 0
  failedSearches = 0
  unread = 0
  /** True if a cancel interrupted a search or a read. Some results are then missing, although no call has failed. */
  isInterrupted = false
  /** Progress of an index that is searched although it is incomplete. Undefined if all indexes are complete. */
  indexing: IndexProgress | undefined
  #failure: ServiceError | undefined
  readonly #freshness: Freshness | undefined

  constructor(options: GatherOptions) {
    this.#options = options
    this.#freshness = freshnessOf(options.request.question)
  }

  get canSearch(): boolean {
    return this.#options.backends.length > 0
  }

  get sourcesFound(): number {
    return this.#found.size
  }

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
   * Sends each query to each backend while the budget lasts.
   *
   * @returns False if the budget did not suffice for all searches
   * @throws ServiceError if every search of the run so far has failed
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

  /**
   * Reads the best unread hits while the budget lasts.
   *
   * @returns The new sources, without those that repeat an earlier source
   */
  async read(): Promise<Snapshot[]> {
    const chosen = this.#choose()
    const read = await inGroups(chosen, (found) => this.#readOne(found))
    return await runYielding(this.#keepNew(read), this.#options.signal, this.#options.project)
  }

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

  async #readOne({ hit, backend }: RankedHit): Promise<Snapshot | undefined> {
    const { request, project } = this.#options
    const { domains } = request
    const input = { backend: backend.name, url: hit.url, id: hit.id, sha256: hit.sha256 }
    const run = (signal: AbortSignal) => backend.read(hit, { domains, project, signal })
    const [snapshot, failure] = await this.#outside('read', input, { pages: 1 }, run)
    if (failure) this.unread++
    return snapshot
  }

  /**
   * Runs a backend call, with retries, as a recorded step. A backend error is returned. Any other error is thrown.
   *
   * @returns The result or the failure. If a cancel interrupted the call, then both are undefined.
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
          return { value: await withRetry(run, AbortSignal.any([ending, clock.cancelled]), clock.remainingMs), cost }
        } catch (error) {
          if (!clock.cancelled.aborted && !ending.aborted) failure = ServiceError.from(error)
          throw error
        }
      })
      return [value, undefined]
    } catch (error) {
      // In the replay of a cancelled run, a step without a recorded result throws. The step counts as interrupted, not as failed.
      const isInterrupted = !failure && clock.cancelled.aborted && !signal.aborted
      if (!failure && !isInterrupted) throw error
      this.isInterrupted ||= isInterrupted
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

  #choose(): RankedHit[] {
    const perHost = new Map<string, number>()
    const chosen: RankedHit[] = []
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

  #ranked(): RankedHit[] {
    const all = [...this.#found.values()]
    const fresh = new Map(this.#freshness?.(all).map((found, rank) => [found, 1 / (RRF_K + rank + 1)]))
    const scoreOf = (found: RankedHit) => found.score + (fresh.get(found) ?? 0)
    return all.sort((a, b) => scoreOf(b) - scoreOf(a) || (a.hit.url < b.hit.url ? -1 : 1))
  }
}

function mayRepeat(a: Snapshot, b: Snapshot): boolean {
  const [shorter, longer] = [Math.min(a.text.length, b.text.length), Math.max(a.text.length, b.text.length)]
  return longer - shorter <= LENGTH_SLACK + (1 - LENGTH_RATIO_MIN) * longer && documentOf(a.url) !== documentOf(b.url)
}

function documentOf(url: string): string {
  return url.replace(/#part-\d+$/, '')
}

async function inGroups<T, R>(items: readonly T[], work: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = []
  for (let at = 0; at < items.length; at += CALLS_IN_FLIGHT_MAX) {
    results.push(...(await Promise.all(items.slice(at, at + CALLS_IN_FLIGHT_MAX).map(work))))
  }
  return results
}

/**
 * Runs a call with a timeout per try. A retryable error is retried once, unless its Retry-After exceeds 5 s or the remaining time.
 *
 * @param leftMs Time limit for all tries together, in milliseconds.
 * @throws ServiceError of the last try, or the signal's reason
 */
async function withRetry<T>(run: (signal: AbortSignal) => Promise<T>, signal: AbortSignal, leftMs: number): Promise<T> {
  const endsAtMs = Date.now() + leftMs
  signal.throwIfAborted()
  for (let tries = 1; ; tries++) {
    const timeout = AbortSignal.timeout(Math.ceil(Math.min(ATTEMPT_TIMEOUT_MS, Math.max(1, endsAtMs - Date.now()))))
    try {
      return await run(AbortSignal.any([signal, timeout]))
    } catch (error) {
      signal.throwIfAborted()
      const failure = timeout.aborted
        ? new ServiceError('upstream_timeout', 'The attempt exceeded its timeout.')
        : ServiceError.from(error)
      const waitMs = failure.retryAfterMs ?? RETRY_DELAY_MS
      if (
        tries >= ATTEMPTS_MAX ||
        !ERRORS[failure.code].retry ||
        waitMs > Math.min(RETRY_AFTER_MS_MAX, endsAtMs - Date.now())
      )
        throw failure
      await wait(waitMs, undefined, { signal })
    }
  }
}

type Freshness = <T extends { readonly hit: Hit }>(found: readonly T[]) => T[]

/**
 * Returns a function that selects hits by their date. Undefined if the question does not mention time. Words such as "latest" sort the newest hits
 * first. A year in the question selects the hits of that year. Local files count as undated, because a file's date may be that of its copy.
 */
function freshnessOf(question: string): Freshness | undefined {
  if (FRESH.test(question)) return newestFirst
  const years = new Set(question.match(YEAR))
  if (years.size === 0) return undefined
  return (found) => found.filter(({ hit }) => years.has(dateOf(hit).slice(0, 4)))
}

function newestFirst<T extends { readonly hit: Hit }>(found: readonly T[]): T[] {
  const dated = found.filter(({ hit }) => dateOf(hit) !== '')
  return dated.toSorted((a, b) => (dateOf(a.hit) === dateOf(b.hit) ? 0 : dateOf(a.hit) < dateOf(b.hit) ? 1 : -1))
}

function dateOf({ url, date }: Hit): string {
  return /^https?:/.test(url) ? (date ?? '') : ''
}
