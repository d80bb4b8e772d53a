import type { Embedded, EmbeddingEngine } from '#shared/engines/engine.ts'
import { ServiceError } from '#shared/lib/error.ts'

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

interface BatchBounds {
  readonly inputsMax: number
  readonly tokensMax: number
}

export interface EmbedText {
  readonly text: string
  readonly tokens: number
}

/** Called once per input, in any order, when its vector is ready. */
type OnVector = (index: number, vector: Float32Array, tokens: number) => void

/** The inputs of one job, which are spread over several batches. */
class EmbedJob {
  readonly texts: readonly EmbedText[]
  /** Time at which the oldest waiting input began to wait. */
  readonly sinceMs: number
  underWay = 0
  /** Set after a batch with other jobs was rejected: the faulty text is unknown, so this job is sent alone from then on. */
  isAlone = false
  isOver = false
  readonly #onVector: OnVector
  readonly #onEnd: (error?: unknown) => void
  /** Indices of inputs that were sent and must be sent again. */
  #again: number[] = []
  #next = 0
  #left: number

  /** @param onEnd Called once: without an error after all vectors, or with the error. */
  constructor(texts: readonly EmbedText[], onVector: OnVector, onEnd: (error?: unknown) => void) {
    this.texts = texts
    this.sinceMs = performance.now()
    this.#left = texts.length
    this.#onVector = onVector
    this.#onEnd = onEnd
  }

  get waiting(): number {
    return this.isOver ? 0 : this.#again.length + this.texts.length - this.#next
  }

  peek(): number {
    return this.#again[0] ?? this.#next
  }

  take(): number {
    this.underWay++
    return this.#again.shift() ?? this.#next++
  }

  /** Returns an input of a rejected call to the queue. */
  putBack(index: number): void {
    this.underWay--
    if (!this.isOver) this.#again.push(index)
  }

  done(index: number, vector: Float32Array, tokens: number): void {
    this.underWay--
    if (this.isOver) return
    try {
      this.#onVector(index, vector, tokens)
    } catch (error) {
      // An error of this job's consumer must not fail the other jobs of the batch.
      return this.end(error)
    }
    if (--this.#left === 0) this.end()
  }

  end(error?: unknown): void {
    if (this.isOver) return
    this.isOver = true
    this.#onEnd(error)
  }
}

interface Slot {
  readonly text: EmbedText
  readonly inputs: { readonly job: EmbedJob; readonly index: number }[]
}

/** The distinct texts of one upstream call. */
class Batch {
  readonly #slots: Slot[] = []
  readonly #byText = new Map<string, Slot>()
  readonly #jobs = new Set<EmbedJob>()
  #tokens = 0

  get texts(): string[] {
    return this.#slots.map(({ text }) => text.text)
  }

  get jobs(): ReadonlySet<EmbedJob> {
    return this.#jobs
  }

  get isEmpty(): boolean {
    return this.#slots.length === 0
  }

  get isWanted(): boolean {
    for (const job of this.#jobs) if (!job.isOver) return true
    return false
  }

  hasRoom({ text, tokens }: EmbedText, { inputsMax, tokensMax }: BatchBounds): boolean {
    if (this.isEmpty || this.#byText.has(text)) return true
    return this.#slots.length < inputsMax && this.#tokens + tokens <= tokensMax
  }

  takeFrom(job: EmbedJob): void {
    const index = job.take()
    const text = job.texts[index] as EmbedText
    this.#jobs.add(job)
    const slot = this.#byText.get(text.text)
    if (slot) return void slot.inputs.push({ job, index })
    const added = { text, inputs: [{ job, index }] }
    this.#slots.push(added)
    this.#byText.set(text.text, added)
    this.#tokens += text.tokens
  }

  done(answer: Embedded): void {
    const tokens = tokensEach(answer, this.#slots)
    for (const [place, { inputs }] of this.#slots.entries()) {
      const vector = answer.vectors[place] as Float32Array
      for (const { job, index } of inputs) job.done(index, vector, tokens[place] as number)
    }
  }

  /** Returns all inputs to their jobs, each of which is sent alone from then on. */
  putBack(): void {
    for (const { inputs } of this.#slots) {
      for (const { job, index } of inputs) {
        job.isAlone = true
        job.putBack(index)
      }
    }
  }

  /**
   * Ends all jobs of the batch with an error.
   *
   * @param errorFor Creates the error of one job. `indices` has the index of the job's input per position of the call; undefined if the
   *   position has inputs of other jobs only.
   */
  fail(errorFor: (indices: readonly (number | undefined)[]) => ServiceError): void {
    for (const job of this.#jobs) {
      job.end(errorFor(this.#slots.map(({ inputs }) => inputs.find((input) => input.job === job)?.index)))
    }
    for (const { inputs } of this.#slots) for (const { job } of inputs) job.underWay--
  }
}

/**
 * Tokens of each text as integers. If the engine reports only a total, then the total is divided in proportion to estimates. The parts add
 * up to the total.
 */
function tokensEach({ tokens, tokensEach }: Embedded, slots: readonly Slot[]): readonly number[] {
  if (tokensEach) return tokensEach
  const estimates = slots.map(({ text }) => text.tokens)
  if (tokens === undefined) return estimates
  const sum = estimates.reduce((a, b) => a + b, 0)
  let [told, share] = [0, 0]
  return estimates.map((estimate) => {
    share += (tokens * estimate) / sum
    const part = Math.round(share) - told
    told += part
    return part
  })
}
