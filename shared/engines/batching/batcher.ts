import type { EmbeddingEngine } from '#shared/engines/embedding.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { Batch, type BatchBounds, EmbedJob, type EmbedText, type OnVector } from './batch.ts'

export interface BatcherOptions extends BatchBounds {
  /** Maximum time that an input waits for others while a call could be made, in milliseconds. */
  readonly waitMs: number
  readonly callsMax: number
}

/** A batch takes inputs of at most half of the waiting jobs, but always of up to this many jobs. */
const BATCH_TEXTS_MIN = 8

/** HTTP statuses that a single faulty text causes, so that the other jobs of a batch are not at fault. */
const REFUSED = new Set([400, 413])
/** `param` of an error that may be caused by a text. Models in half precision, for example, compute NaN for some texts. */
const ABOUT_TEXT = /^input(\[|$)/

/**
 * Combines the inputs of many jobs into shared calls of one engine.
 *
 * 1. While no call runs, an input is sent at once, so a lone caller does not wait.
 * 2. Otherwise an input waits up to `waitMs` or until the batch is full; with `callsMax` calls running, it waits until one ends. The slower
 *    the engine, the fuller the batches.
 * 3. A batch takes one input of each job in turn. The last free call is reserved for jobs without a running call. A job of thousands of
 *    inputs therefore does not delay a job of a single text.
 * 4. With many jobs a batch takes at most half of them. The engine works on one half while the callers of the other half read their answers
 *    and return. Otherwise all callers would be answered, and would return, at the same time.
 * 5. If a batch is rejected or its answer is unusable, then each job's inputs are sent again in calls of their own. A faulty text therefore
 *    fails only its own job.
 * 6. Inputs of cancelled jobs are not sent, and a call without any running job is aborted. No other error is retried here: the owner of a
 *    job decides that.
 *
 * The memory is bounded by the worker's slots.
 */
export class Batcher {
  readonly #engine: EmbeddingEngine
  readonly #options: BatcherOptions
  /** Jobs with waiting inputs, the next one first. */
  readonly #ring = new Set<EmbedJob>()
  readonly #calls = new Map<Batch, AbortController>()
  #jobs = 0
  #pumping: NodeJS.Immediate | undefined
  #timer: NodeJS.Timeout | undefined

  constructor(engine: EmbeddingEngine, options: BatcherOptions) {
    this.#engine = engine
    this.#options = options
  }

  /**
   * Embeds the texts of a job. Resolves after `onVector` was called for each.
   *
   * @throws ServiceError The first error of a call with one of the texts; the signal's reason
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

  /** Sends batches at the end of this event-loop tick, so that jobs which arrive together share a call. */
  #pumpSoon(): void {
    this.#pumping ??= setImmediate(() => {
      this.#pumping = undefined
      this.#pump()
    })
  }

  #pump(): void {
    clearTimeout(this.#timer)
    while (this.#calls.size < this.#options.callsMax) {
      const jobs = [...this.#ring].filter((job) => this.#canSend(job))
      if (jobs.length === 0) return
      const waitMs = this.#waitMs(jobs)
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.#pump(), waitMs)
        return
      }
      void this.#send(this.#fill(new Set(jobs)))
    }
  }

  /** The last free call is reserved for jobs without a running call, unless there is only one call at all. */
  #canSend(job: EmbedJob): boolean {
    const isLast = this.#calls.size > 0 && this.#calls.size === this.#options.callsMax - 1
    return !isLast || job.underWay === 0
  }

  #waitMs(jobs: readonly EmbedJob[]): number {
    if (this.#calls.size === 0 || this.#isFull(jobs)) return 0
    const since = Math.min(...jobs.map(({ sinceMs }) => sinceMs))
    return since + this.#options.waitMs - performance.now()
  }

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

  /**
   * Fills the next batch with one input of each job in turn. A job with more inputs moves to the end of the ring, where this loop reaches
   * it again.
   */
  #fill(jobs: ReadonlySet<EmbedJob>): Batch {
    const batch = new Batch()
    const company = this.#options.callsMax === 1 ? this.#jobs : Math.max(BATCH_TEXTS_MIN, Math.ceil(this.#jobs / 2))
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
 * Converts positions in the engine's call into input indices of one job. The port defines the two forms in which an error names an input.
 */
function renamed(error: ServiceError, indices: readonly (number | undefined)[]): ServiceError {
  const own = (_: string, before: string, place: string) => `${before}${indices[Number(place)] ?? place}`
  const message = error.message.replace(/^(Input )(\d+)\b/, own)
  const param = error.param?.replace(/^(input\[)(\d+)(?=\])/, own) ?? null
  if (message === error.message && param === error.param) return error
  return new ServiceError(error.code, message, { cause: error.cause, param })
}
