import type { EmbeddingEngine } from '#shared/engines/embedding.ts'
import { ServiceError } from '#shared/error.ts'
import { Batch, type BatchBounds, EmbedJob, type EmbedText, type OnVector } from './batch.ts'

/** What a batcher may do. */
export interface BatcherOptions extends BatchBounds {
  /** Longest wait of an input for others while a call could be made, in milliseconds. */
  readonly waitMs: number
  /** Calls at once. */
  readonly callsMax: number
}

/** As many jobs may always share a call. */
const COMPANY_MIN = 8

/** Refusals that are about a text: in a batch of many jobs only one of them is to blame. */
const REFUSED = new Set([400, 413])
/** A failure of any kind says by this that its texts may be why: models in half precision make no number of some. */
const ABOUT_TEXT = /^input(\[|$)/

/**
 * Puts the inputs of many jobs into shared calls of one engine.
 *
 * While no call is under way an input goes at once. Else it waits for others up to `waitMs`, or until a batch is full; with
 * `callsMax` calls under way, until one ends. So a lone caller does not wait, and the slower the engine, the fuller the
 * batches. A batch takes an input of each job in turn, and the last free call is kept for jobs that have none under way:
 * a job of thousands of inputs does not hold up one of a single text.
 *
 * A batch takes at most half of many jobs, so that the engine works on the one half while the callers of the other read
 * their answers and come again. All in one call would go on like that: they would be answered, and so come, all at once.
 *
 * A batch that is refused, or whose answer is no use, is sent again, each job's part alone, so that nobody suffers from
 * another's text. Inputs of jobs that were cancelled are not sent, and a call that nobody waits for any more is aborted.
 * Nothing else is tried again: that is the arbiter's.
 *
 * It holds what its jobs hold: their number is bounded by the slots of the worker.
 */
export class Batcher {
  readonly #engine: EmbeddingEngine
  readonly #options: BatcherOptions
  /** Jobs with inputs that wait, the one whose turn it is first. */
  readonly #ring = new Set<EmbedJob>()
  readonly #calls = new Map<Batch, AbortController>()
  /** Jobs that are not over. */
  #jobs = 0
  #pumping: NodeJS.Immediate | undefined
  #timer: NodeJS.Timeout | undefined

  constructor(engine: EmbeddingEngine, options: BatcherOptions) {
    this.#engine = engine
    this.#options = options
  }

  /**
   * Embeds the texts of a job; resolves when `onVector` has heard of each.
   *
   * @throws ServiceError The first failure of a call that had one of them; the signal's reason
   */
  embed(texts: readonly EmbedText[], signal: AbortSignal, onVector: OnVector): Promise<void> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted()
      const onAbort = () => this.#leave(job, signal.reason)
      const job = new EmbedJob(texts, onVector, (error) => {
        signal.removeEventListener('abort', onAbort)
        this.#ring.delete(job)
        this.#jobs--
        if (error === undefined) resolve()
        else reject(error)
      })
      signal.addEventListener('abort', onAbort, { once: true })
      this.#ring.add(job)
      this.#jobs++
      this.#pumpSoon()
    })
  }

  /** Ends every job and call. */
  async close(): Promise<void> {
    const error = new ServiceError('overloaded', 'The worker is shutting down.', { retryAfterMs: 1_000 })
    for (const job of [...this.#ring]) this.#leave(job, error)
    for (const batch of this.#calls.keys()) for (const job of batch.jobs) this.#leave(job, error)
    clearTimeout(this.#timer)
    clearImmediate(this.#pumping)
    await this.#engine.close()
  }

  #leave(job: EmbedJob, reason: unknown): void {
    job.end(reason)
    for (const [batch, abort] of this.#calls) if (batch.jobs.has(job) && !batch.isWanted) abort.abort(reason)
  }

  /** Later in this turn of the loop, so that jobs which come together share a call. */
  #pumpSoon(): void {
    this.#pumping ??= setImmediate(() => {
      this.#pumping = undefined
      this.#pump()
    })
  }

  #pump(): void {
    clearTimeout(this.#timer)
    while (this.#calls.size < this.#options.callsMax) {
      const jobs = [...this.#ring].filter((job) => this.#maySend(job))
      if (jobs.length === 0) return
      const waitMs = this.#waitMs(jobs)
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.#pump(), waitMs)
        return
      }
      void this.#send(this.#fill(new Set(jobs)))
    }
  }

  /** The last free call is for jobs that have none, unless there is only one at all. */
  #maySend(job: EmbedJob): boolean {
    const isLast = this.#calls.size > 0 && this.#calls.size === this.#options.callsMax - 1
    return !isLast || job.underWay === 0
  }

  /** How much longer others are waited for. */
  #waitMs(jobs: readonly EmbedJob[]): number {
    if (this.#calls.size === 0 || this.#isFull(jobs)) return 0
    const since = Math.min(...jobs.map(({ sinceMs }) => sinceMs))
    return since + this.#options.waitMs - performance.now()
  }

  /** Whether what waits fills a batch. */
  #isFull(jobs: readonly EmbedJob[]): boolean {
    const { inputsMax, tokensMax } = this.#options
    let [inputs, tokens] = [0, 0]
    for (const job of jobs) {
      inputs += job.waiting
      tokens += (job.texts[job.peek()] as EmbedText).tokens * job.waiting
      if (inputs >= inputsMax || tokens >= tokensMax) return true
    }
    return false
  }

  /** The next batch: an input of each job in turn. Who has more goes to the end of the ring, and is met again there. */
  #fill(jobs: ReadonlySet<EmbedJob>): Batch {
    const batch = new Batch()
    const company = this.#options.callsMax === 1 ? this.#jobs : Math.max(COMPANY_MIN, Math.ceil(this.#jobs / 2))
    for (const job of this.#ring) {
      if (!jobs.has(job)) continue
      if (batch.jobs.size >= company && !batch.jobs.has(job)) continue
      if (job.isAlone) {
        if (!batch.isEmpty) continue
        this.#takeAll(batch, job)
        break
      }
      if (!batch.hasRoom(job.texts[job.peek()] as EmbedText, this.#options)) break
      this.#ring.delete(job)
      batch.takeFrom(job)
      if (job.waiting > 0) this.#ring.add(job)
    }
    return batch
  }

  /** As many inputs of one job as fit. */
  #takeAll(batch: Batch, job: EmbedJob): void {
    this.#ring.delete(job)
    while (job.waiting > 0 && batch.hasRoom(job.texts[job.peek()] as EmbedText, this.#options)) batch.takeFrom(job)
    if (job.waiting > 0) this.#ring.add(job)
  }

  async #send(batch: Batch): Promise<void> {
    const abort = new AbortController()
    this.#calls.set(batch, abort)
    try {
      batch.done(await this.#engine.embed(batch.texts, { signal: abort.signal }))
    } catch (error) {
      this.#onFailure(batch, ServiceError.from(error))
    } finally {
      this.#calls.delete(batch)
      this.#pump()
    }
  }

  #onFailure(batch: Batch, error: ServiceError): void {
    const isAboutText = REFUSED.has(error.status) || ABOUT_TEXT.test(error.param ?? '')
    if (!isAboutText || batch.jobs.size === 1) return batch.fail((indices) => renamed(error, indices))
    batch.putBack()
    for (const job of batch.jobs) if (job.waiting > 0) this.#ring.add(job)
  }
}

/**
 * The error in the words of one job: the engine counted the texts of its call, the caller those of its request. The two
 * forms are those of the port.
 */
function renamed(error: ServiceError, indices: readonly (number | undefined)[]): ServiceError {
  const own = (_: string, before: string, place: string) => `${before}${indices[Number(place)] ?? place}`
  const message = error.message.replace(/^(Input )(\d+)\b/, own)
  const param = error.param?.replace(/^(input\[)(\d+)(?=\])/, own) ?? null
  if (message === error.message && param === error.param) return error
  return new ServiceError(error.code, message, { cause: error.cause, param })
}
