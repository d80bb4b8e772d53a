import type { Embedded } from '#shared/engines/embedding.ts'
import type { ServiceError } from '#shared/lib/error.ts'

export interface BatchBounds {
  readonly inputsMax: number
  readonly tokensMax: number
}

export interface EmbedText {
  readonly text: string
  readonly tokens: number
}

/** Called once per input, in any order, when its vector is ready. */
export type OnVector = (index: number, vector: Float32Array, tokens: number) => void

/** The inputs of one job, which are spread over several batches. */
export class EmbedJob {
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
export class Batch {
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
