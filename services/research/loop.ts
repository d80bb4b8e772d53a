import type { ResearchEvent, ResearchPhase, ResearchRequest, ResearchStop } from '#schemas/kinds/research.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { SearchBackend } from '#shared/search/search.ts'
import { isUndivided } from '#shared/search/text/scripts.ts'
import { Budget, boundsOf } from './budget/budget.ts'
import { Clock } from './budget/clock.ts'
import { claimsOf, type Draft } from './evidence/draft.ts'
import { type Evidence, findEvidence, type LargeCorpus } from './evidence/evidence.ts'
import { writeExtractive } from './evidence/extractive.ts'
import { Gathering } from './gather/gather.ts'
import { waitForIndexes } from './gather/indexing.ts'
import { fetchTermCounts } from './gather/term-counts.ts'
import { type CountedPassage, countPassages, rankPassages, weightsIn } from './question/passages.ts'
import {
  distinct,
  parseQuestion,
  type Question,
  queriesOf,
  queryTermsIn,
  searchFormOf,
  vocabularyOf,
  type Weights,
  weightsOf,
  withParts,
} from './question/question.ts'
import { EmbeddingRanker } from './ranking/embedding-ranker.ts'
import { assemble, type Report, reportableGaps } from './report.ts'
import { Asker, type WriterModel } from './writer/ask.ts'
import { planResearch } from './writer/plan.ts'
import { writeByModel } from './writer/writer.ts'

const EARLY_END_REASONS: Partial<Record<ResearchStop, string>> = {
  deadline: 'its time limit was reached',
  budget: 'its budget was used up',
  cancelled: 'it was cancelled',
}

export interface ResearchSetup {
  readonly backends: readonly SearchBackend[]
  /** A chat model that plans and writes. If undefined, then the report consists of verbatim quotes. */
  readonly writer?: WriterModel | undefined
  /** Id of an embedding model. If set, then passages are ranked by the similarity of their vectors in addition to their words. */
  readonly embeddings?: string | undefined
  /** Id of the calling project. If the capacity of a search backend is scarce, then projects are served round robin. */
  readonly project: string
}

/** Maximum UTF-16 units of one `text` event. */
const PIECE_CHARS = 4_000
/**
 * Maximum passages and terms of pseudo-relevance feedback. The next round's query adds terms that several of the best
 * passages share.
 */
const FEEDBACK_PASSAGES = 5
const FEEDBACK_TERMS = 6
/**
 * Minimum number of passages of a corpus that counts as large. If no passage of a large corpus contains a word of the question, then the corpus
 * lacks the subject. In a smaller corpus, even a common word may be missing by chance.
 */
const LARGE_CORPUS_PASSAGES_MIN = 5_000

/**
 * Researches a question. Yields progress events, then the report (text, annotations, search results, usage), then one `end` event.
 *
 * Phases:
 * 1. Plan: split the question into parts and queries, with a model if one is set.
 * 2. Gather: search and read in rounds, until a round reads no new source or a bound is reached.
 * 3. Analyze: rank passages and find the sentences that answer.
 * 4. Write: a model writes a draft whose sentences are checked. Without a usable draft, the report consists of quotes.
 * 5. Finalize: verify every citation and send the report.
 *
 * Each external call is a recorded step or child job of `composition`. A resumed run replays the recorded results, so it repeats no call and makes
 * equal decisions. Without a model, equal sources and questions give equal reports, byte for byte.
 *
 * @param signal Ends the run at once, without a report.
 * @throws ServiceError if every search failed; `job_cancelled` if the run is cancelled before it has any claim
 * @throws The reason of the signal, if the signal aborts
 */
export async function* runResearch(
  setup: ResearchSetup,
  request: ResearchRequest,
  composition: Composition,
  signal: AbortSignal,
): AsyncGenerator<ResearchEvent> {
  const question = await runYielding(parseQuestion(request), signal, setup.project)
  yield* new Run(setup, request, question, composition, signal).events()
}

class Run {
  readonly #setup: ResearchSetup
  readonly #request: ResearchRequest
  readonly #signal: AbortSignal
  readonly #asker: Asker | undefined
  readonly #ranker: EmbeddingRanker | undefined
  /** The question as submitted. `#question` may in addition contain parts that a model planned. */
  readonly #asked: Question
  #question: Question
  readonly #budget: Budget
  readonly #clock: Clock
  readonly #gathering: Gathering
  readonly #passages: CountedPassage[] = []
  readonly #queries: string[] = []
  #weights: Weights = new Map()
  /** True if `#weights` were computed over the whole corpus instead of only over the passages read so far. */
  #isWeighed = false
  #corpus: LargeCorpus | undefined
  #sequence = 0

  constructor(
    setup: ResearchSetup,
    request: ResearchRequest,
    question: Question,
    composition: Composition,
    signal: AbortSignal,
  ) {
    this.#setup = { ...setup, backends: setup.backends.filter((each) => each.hasAllowed?.(request.domains) ?? true) }
    this.#request = request
    this.#signal = signal
    this.#asked = question
    this.#question = question
    this.#budget = new Budget(boundsOf(request.effort, request.limits))
    this.#clock = new Clock(composition, this.#budget.bounds.seconds)
    this.#asker = setup.writer && new Asker(this.#clock, this.#budget, setup.writer, request.temperature)
    this.#ranker =
      setup.embeddings === undefined ? undefined : new EmbeddingRanker(this.#clock, this.#budget, setup.embeddings)
    this.#gathering = new Gathering({
      backends: this.#setup.backends,
      request,
      clock: this.#clock,
      budget: this.#budget,
      project: setup.project,
      signal,
    })
  }

  async *events(): AsyncGenerator<ResearchEvent> {
    await this.#clock.start()
    yield this.#progress('planning', 2, 'Analysing the question')
    yield* this.#waitForIndexes()
    const queries = await this.#plan()
    const stop = yield* this.#gather(queries)
    yield this.#progress('analyzing', 70, 'Selecting sentences that answer the question')
    const evidence = await this.#evidence(this.#question)
    const late = stop ?? (this.#asker && (await this.#clock.stop('write')))
    yield this.#progress('writing', 80, 'Writing the report')
    const written = await this.#write(evidence, late)
    const draft = { ...written, gaps: reportableGaps(this.#asked.text, written.gaps) }
    // If the deadline passed while the model wrote, then the draft may be incomplete. The report then states that the
    // run ended early.
    const early = late ?? (this.#asker && (await this.#clock.stop('written')))
    if (early === 'cancelled' && claimsOf(draft).length === 0) throw nothingToWrite()
    yield this.#progress('finalizing', 95, 'Checking every citation')
    yield* this.#finish(draft, early ?? (claimsOf(draft).length > 0 ? 'answered' : 'no_evidence'))
  }

  /** Waits a bounded time for incomplete indexes. The report later mentions documents that were not yet indexed. */
  async *#waitForIndexes(): AsyncGenerator<ResearchEvent> {
    const waits = waitForIndexes(this.#setup.backends, this.#clock, this.#signal)
    for (let wait = await waits.next(); ; wait = await waits.next()) {
      if (wait.done) {
        this.#gathering.indexing = wait.value
        return
      }
      const { indexed, documents } = wait.value
      const what = documents === 0 ? 'Looking for documents' : `Indexing ${indexed} of ${documents} documents`
      yield this.#progress('planning', 2, what)
    }
  }

  async #plan(): Promise<string[]> {
    const plan = this.#asker && (await planResearch(this.#asker, this.#request))
    const parts = plan?.parts ?? []
    if (plan)
      this.#question = withParts(
        this.#asked,
        parts.map(({ question }) => question),
      )
    const own = await this.#ownQueries()
    return distinct([this.#asked.text, ...parts.flatMap(({ queries }) => queries), ...own])
  }

  /** Returns the queries that are derived without a model. Sets the term weights, if a backend can count terms over its whole corpus. */
  async #ownQueries(): Promise<string[]> {
    const vocabulary = vocabularyOf(this.#question)
    // If an index is incomplete, then terms are not counted. Counting would wait for the index, and the run has already waited for it once.
    const backends = this.#gathering.indexing ? [] : this.#setup.backends
    const terms = [...vocabulary.keys()]
    const words = [...vocabulary].map(([term, word]) => searchFormOf(term, word))
    const weighed = await fetchTermCounts(backends, words, this.#clock, this.#signal)
    if (!weighed) return queriesOf(this.#question, new Map(), () => true)
    this.#isWeighed = true
    this.#weights = weightsOf(terms, weighed)
    const absent = new Set(terms.filter((_, at) => weighed.holding[at] === 0))
    if (weighed.passages >= LARGE_CORPUS_PASSAGES_MIN) this.#corpus = { passages: weighed.passages, absent }
    const held = new Set(terms.filter((_, at) => (weighed.holding[at] ?? 0) > 0))
    return queriesOf(this.#question, this.#weights, (term) => held.has(term))
  }

  /**
   * Searches and reads in rounds. Ends when a round reads no new source or no query is left.
   *
   * @returns The reason if gathering stopped earlier, otherwise undefined
   */
  async *#gather(planned: readonly string[]): AsyncGenerator<ResearchEvent, ResearchStop | undefined> {
    const { rounds, queries: perRound } = this.#budget.bounds
    let waiting = [...planned]
    for (let round = 1; round <= rounds; round++) {
      const stop = await this.#clock.stop(round)
      if (stop) return stop
      const queries = distinct(waiting, this.#queries).slice(0, perRound)
      if (queries.length === 0) return undefined
      waiting = distinct(waiting, [...this.#queries, ...queries])
      this.#queries.push(...queries)
      const share = (at: number) => Math.round(5 + (60 * (round - 1 + at)) / rounds)
      yield this.#progress(
        'searching',
        share(0),
        `Searching by ${queries.length === 1 ? '1 query' : `${queries.length} queries`}`,
      )
      const isPaid = await this.#gathering.search(queries)
      yield this.#progress('reading', share(0.4), `Reading up to ${this.#budget.bounds.pages} sources`)
      const isNew = await this.#read()
      yield this.#progress('reading', share(0.9), `Read ${this.#gathering.snapshots.length} sources`)
      // A cancel interrupted a search or a read, so gathering ends here. A replay ends at the same point, because an interrupted step has
      // no recorded result.
      if (this.#gathering.isInterrupted) return 'cancelled'
      if (!isPaid) return 'budget'
      if (!isNew) return undefined
      waiting.push(...(await this.#feedback()))
    }
    return undefined
  }

  async #read(): Promise<boolean> {
    const fresh = await this.#gathering.read()
    const asked = queryTermsIn(this.#question)
    for (const snapshot of fresh)
      this.#passages.push(...(await runYielding(countPassages(snapshot, asked), this.#signal, this.#setup.project)))
    if (!this.#isWeighed) this.#weights = weightsIn([...vocabularyOf(this.#question).keys()], this.#passages)
    return fresh.length > 0
  }

  /** Returns a query for the next round: the question's words plus terms that several of the best passages share. */
  async #feedback(): Promise<string[]> {
    const ranked = await this.#rank(this.#question)
    const counts = new Map<string, number>()
    for (const { terms } of ranked.slice(0, FEEDBACK_PASSAGES))
      for (const term of terms) if (!this.#question.terms.has(term)) counts.set(term, (counts.get(term) ?? 0) + 1)
    const often = [...counts].filter(([, count]) => count > 1).sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1))
    const more = often.slice(0, FEEDBACK_TERMS).map(([term]) => term)
    return more.length === 0 ? [] : [`${[...new Set(this.#question.terms.values())].join(' ')} ${more.join(' ')}`]
  }

  async #evidence(question: Question): Promise<Evidence> {
    const ranked = await this.#rank(question)
    const evidence = await runYielding(
      findEvidence(question, ranked, this.#weights, this.#corpus),
      this.#signal,
      this.#setup.project,
    )
    // Vectors only reorder the passages of the word search. If no sentence matches by its words, then there is nothing to reorder.
    if (!this.#ranker || evidence.candidates.length === 0) return evidence
    const again = await this.#ranker.rank(question, ranked, this.#signal)
    return again
      ? await runYielding(
          findEvidence(question, again, this.#weights, this.#corpus, true),
          this.#signal,
          this.#setup.project,
        )
      : evidence
  }

  async #rank(question: Question): Promise<CountedPassage[]> {
    return await runYielding(rankPassages(question, this.#passages, this.#weights), this.#signal, this.#setup.project)
  }

  /** Writes with the model if one is configured and time is left. If the model fails, then the report consists of quotes. */
  async #write(evidence: Evidence, late: ResearchStop | undefined): Promise<Draft> {
    if (this.#asker && late !== 'deadline' && late !== 'cancelled' && evidence.candidates.length > 0) {
      const { text, clauses } = this.#question
      const parts = clauses.map((clause) => clause.text)
      const assignment = { question: text, parts, evidence, weights: this.#weights }
      const draft = await writeByModel(this.#asker, assignment)
      if (draft) return draft
    }
    const plain = this.#question === this.#asked ? evidence : await this.#evidence(this.#asked)
    const draft = writeExtractive(plain, this.#budget.bounds.claims)
    // If no search ran, then the report must not state that the sources lack something.
    return this.#gathering.searches > 0 ? draft : { ...draft, gaps: [] }
  }

  *#finish(draft: Draft, stop: ResearchStop): Generator<ResearchEvent> {
    const isSearched = this.#gathering.searches > 0
    const isDivided = !isUndivided(this.#asked.text)
    const notes = { isSearched, isDivided, caveats: caveatsOf(this.#gathering, stop, this.#ranker?.caveat) }
    const report = assemble(draft, notes, this.#request.report_tokens)
    requireExactCitations(report)
    for (const text of piecesOf(report.content)) yield { type: 'text', text }
    yield { type: 'annotations', annotations: [...report.annotations] }
    yield { type: 'search_results', results: this.#gathering.results }
    yield { type: 'usage', usage: this.#usage() }
    yield this.#end(draft, report, stop)
  }

  #usage() {
    const { searches, pages, usd } = this.#budget.used
    const input_tokens = (this.#asker?.inputTokens ?? 0) + (this.#ranker?.inputTokens ?? 0)
    return { input_tokens, output_tokens: this.#asker?.outputTokens ?? 0, searches, pages, cost_usd: usd }
  }

  #end({ writer, quoted, dropped, gaps }: Draft, report: Report, stop: ResearchStop): ResearchEvent {
    const { unread, failedSearches } = this.#gathering
    const isWhole = !report.isCut && (stop === 'answered' || stop === 'no_evidence')
    const counts = { supported: report.claims, quoted, dropped, unread, failed_searches: failedSearches }
    const quality = { writer, ...counts, gaps: [...gaps] }
    return { type: 'end', stop_reason: stop, finish_reason: isWhole ? 'stop' : 'length', quality }
  }

  #progress(phase: ResearchPhase, percent: number, message: string): ResearchEvent {
    const { sourcesFound, snapshots } = this.#gathering
    const counts = { queries: this.#queries.length, sources_found: sourcesFound, sources_read: snapshots.length }
    return { type: 'progress', sequence: ++this.#sequence, phase, percent, message, ...counts }
  }
}

/** Returns the error of a cancelled run without claims. A report "no source answers" would be wrong, because the search was incomplete. */
function nothingToWrite(): ServiceError {
  return new ServiceError('job_cancelled', 'The research was cancelled before it had any findings.')
}

function* piecesOf(text: string): Generator<string> {
  for (let at = 0; at < text.length; ) {
    const end = at + PIECE_CHARS
    const isInside = (text.charCodeAt(end - 1) & 0xfc00) === 0xd800
    yield text.slice(at, isInside ? end + 1 : end)
    at = isInside ? end + 1 : end
  }
}

/**
 * Returns sentences about the limits of a run. Examples: a source was not searched or read, the ranking by vectors failed, the run ended
 * early.
 */
function caveatsOf(gathering: Gathering, stop: ResearchStop, ranking: string | undefined): string[] {
  const { canSearch, failedSearches, indexing, searches, unread } = gathering
  const remarks: string[] = []
  if (!canSearch) remarks.push('The allowed domains of the request exclude all sources.')
  if (failedSearches > 0) remarks.push(`${failedSearches} of ${searches} searches failed, so sources may be missing.`)
  if (indexing)
    remarks.push(`Only ${indexing.indexed} of ${indexing.documents} documents were indexed when the search began.`)
  if (unread > 0) remarks.push(`${unread} ${unread === 1 ? 'source' : 'sources'} could not be read.`)
  if (ranking !== undefined) remarks.push(ranking)
  if (EARLY_END_REASONS[stop]) remarks.push(`The research ended early, because ${EARLY_END_REASONS[stop]}.`)
  return remarks
}

/**
 * The last check before a report is sent. Every annotation must cover a marker such as `[1]`, in order. Each quote must be equal to the cited range
 * of its source, character for character. A failure is a defect of the report writer.
 *
 * @throws ServiceError `internal_error` if a citation fails the check
 */
function requireExactCitations({ content, annotations, sources }: Report): void {
  let last = 0
  for (const { url_citation: cited } of annotations) {
    const marker = sliceByPoints(content, cited.start_index, cited.end_index)
    const source = sources[Number(/^\[(\d{1,3})\]$/.exec(marker)?.[1]) - 1]
    const isOf = source?.url === cited.url && source.sha256 === cited.source_sha256
    if (!source || !isOf || cited.start_index < last) throw citationError()
    if (sliceByPoints(source.text, cited.source_start, cited.source_end) !== cited.quote) throw citationError()
    last = cited.end_index
  }
}

function sliceByPoints(text: string, start: number, end: number): string {
  let [points, from] = [0, text.length]
  for (let at = 0; at < text.length; at++) {
    if ((text.charCodeAt(at) & 0xfc00) === 0xdc00) continue
    if (points === start) from = Math.min(from, at)
    if (points === end) return text.slice(from, at)
    points++
  }
  return text.slice(from)
}

function citationError(): ServiceError {
  return new ServiceError('internal_error', 'A quotation in the report does not occur in its source.')
}
