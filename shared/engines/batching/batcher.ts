import type { Embedded, EmbeddingEngine, EngineOptions } from '#shared/engines/engine.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { withoutBaggage } from '#shared/telemetry/context.ts'
import type { CallTrace } from '#shared/telemetry/tracing.ts'

export interface BatcherOptions extends BatchBounds {
  /** Maximum time in ms for which an input waits for other inputs to fill its batch, while a call could be made at once. */
  readonly waitMs: number
  readonly callsMax: number
  /** Runs the call of a batch in a span, with links to the calls whose inputs the batch contains. Default: without a span. */
  readonly traced?: (
    links: readonly CallTrace[],
    options: EngineOptions,
    run: (options: EngineOptions) => Promise<Embedded>,
  ) => Promise<Embedded>
}

/** A batch takes inputs of at most half of all jobs, or of this many jobs if half is less. See rule 4 of {@link Batcher}. */
const BATCH_JOBS_MIN = 8

/** HTTP statuses with which an upstream may reject a whole batch because of one faulty text. */
const REFUSED = new Set([400, 413])
/** Matches the `param` of an error that one text may cause. For example, models in half precision compute NaN for some texts. */
const ABOUT_TEXT = /^input(\[|$)/

/**
 * Combines the inputs of many jobs into shared calls of one engine.
 *
 * 1. While no call runs, an input is sent at once, so a lone caller does not wait.
 * 2. Otherwise an input waits up to `waitMs`, or until the batch is full. If `callsMax` calls are running, then the input waits until one ends. A
 *    slow engine therefore gets full batches.
 * 3. A batch takes one input of each job in rotation. The last free call is reserved for jobs without a running call. A job of thousands of inputs
 *    therefore does not delay a job of a single text.
 * 4. If there are many jobs, then a batch takes inputs of at most half of them. The engine works on one half while the callers of the other half read
 *    their answers and submit new jobs. Otherwise all callers would do this at the same time, and the engine would idle.
 * 5. If a batch is rejected or its answer is unusable, then each job's inputs are sent again in calls of their own. A faulty text therefore fails
 *    only its own job.
 * 6. Inputs of cancelled jobs are not sent, and a call without any running job is aborted. No other error is retried here, because the owner of a job
 *    decides about retries.
 *
 * Memory is bounded, because the number of jobs is at most the worker's slots.
 */
export class Batcher {
  readonly #engine: EmbeddingEngine
  readonly #options: BatcherOptions
  /** Jobs with waiting inputs. The first job is the next to be served. */
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
   * Embeds the texts of a job. Resolves after `onVector` was called for each text.
   *
   * @throws ServiceError The first error of a call with one of the texts. The signal's reason, if the signal aborts
   */
  embed(texts: readonly EmbedText[], signal: AbortSignal, onVector: OnVector, trace: CallTrace = {}): Promise<void> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted()
      const onAbort = () => this.#leave(job, signal.reason)
      const job = new EmbedJob(texts, onVector, trace, (error) => {
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
    const error = new ServiceError('overloaded', 'The worker is shutting down.', {
      retryAfterMs: 1_000,
      reason: 'draining',
    })
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

  /** Sends batches at the end of this event-loop tick, so that jobs that arrive in the same tick share a call. */
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

  /**
   * Whether a call for the job may be sent. The last permitted call is reserved for jobs without a running call, unless `callsMax` is 1.
   */
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

  #fill(jobs: ReadonlySet<EmbedJob>): Batch {
    const batch = new Batch()
    const company = this.#options.callsMax === 1 ? this.#jobs : Math.max(BATCH_JOBS_MIN, Math.ceil(this.#jobs / 2))
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
      const links = [...batch.jobs].map(({ trace }) => trace)
      const onServer = (...at: Parameters<NonNullable<CallTrace['onServer']>>) => {
        for (const link of links) link.onServer?.(...at)
      }
      const first = links[0]?.traceparent
      const traceparent = links.length > 1 ? withoutBaggage(first) : first
      const options = { signal: abort.signal, traceparent, onServer }
      const run = (within: EngineOptions) => this.#engine.embed(batch.texts, within)
      batch.done(await (this.#options.traced?.(links, options, run) ?? run(options)))
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
 * Rewrites an error of a shared call for one job. Positions of inputs in the call become indices of the job's own inputs, in the message
 * and in `param`.
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

class EmbedJob {
  readonly texts: readonly EmbedText[]
  readonly trace: CallTrace
  readonly sinceMs: number
  underWay = 0
  /** Whether the job's inputs must be sent alone. Set after a batch with other jobs was rejected, because the faulty text is unknown. */
  isAlone = false
  isOver = false
  readonly #onVector: OnVector
  readonly #onEnd: (error?: unknown) => void
  #again: number[] = []
  #next = 0
  #left: number

  constructor(texts: readonly EmbedText[], onVector: OnVector, trace: CallTrace, onEnd: (error?: unknown) => void) {
    this.texts = texts
    this.trace = trace
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
      // If `onVector` throws, then only this job ends. The other jobs of the batch continue.
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

/** The distinct texts of one upstream call. Jobs with the same text share one position. */
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
   * @param errorFor Creates the error of one job. `indices` has one entry per text of the call: the index of that text in the job's inputs, or
   * undefined
   */
  fail(errorFor: (indices: readonly (number | undefined)[]) => ServiceError): void {
    for (const job of this.#jobs) {
      job.end(errorFor(this.#slots.map(({ inputs }) => inputs.find((input) => input.job === job)?.index)))
    }
    for (const { inputs } of this.#slots) for (const { job } of inputs) job.underWay--
  }
}

/**
 * Returns the tokens of each text as integers. If the engine reports only a total, then it is divided in proportion to estimates. The parts add up to
 * the total.
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
