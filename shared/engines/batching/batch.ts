import type { Embedded } from '#shared/engines/embedding.ts'
import type { ServiceError } from '#shared/error.ts'

/** What one upstream call may carry. */
export interface BatchBounds {
  readonly inputsMax: number
  /** Of tokens as they were estimated; a text above it goes alone. */
  readonly tokensMax: number
}

/** One input: a text, and about how many tokens it has. */
export interface EmbedText {
  readonly text: string
  readonly tokens: number
}

/** Hears of each input as its vector is there, in any order. */
export type OnVector = (index: number, vector: Float32Array, tokens: number) => void

/** The inputs of one job on their way through the batches. */
export class EmbedJob {
  readonly texts: readonly EmbedText[]
  /** When its oldest waiting input began to wait. */
  readonly sinceMs: number
  /** Inputs in calls. */
  underWay = 0
  /** Its texts were refused in company, so that nobody knows whose fault it was: from now on it goes alone. */
  isAlone = false
  isOver = false
  readonly #onVector: OnVector
  readonly #onEnd: (error?: unknown) => void
  /** Indices that were sent and have to be sent again. */
  #again: number[] = []
  #next = 0
  #left: number

  /** @param onEnd Hears once that all vectors were told, or what went wrong. */
  constructor(texts: readonly EmbedText[], onVector: OnVector, onEnd: (error?: unknown) => void) {
    this.texts = texts
    this.sinceMs = performance.now()
    this.#left = texts.length
    this.#onVector = onVector
    this.#onEnd = onEnd
  }

  /** Inputs that wait to be sent. */
  get waiting(): number {
    return this.isOver ? 0 : this.#again.length + this.texts.length - this.#next
  }

  /** Index of the input that is to be sent next. */
  peek(): number {
    return this.#again[0] ?? this.#next
  }

  take(): number {
    this.underWay++
    return this.#again.shift() ?? this.#next++
  }

  /** Its call was refused: the input waits again. */
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
      // Its own trouble, not that of the others in the batch.
      return this.end(error)
    }
    if (--this.#left === 0) this.end()
  }

  /** Ends it for whoever waits; a second call does nothing. */
  end(error?: unknown): void {
    if (this.isOver) return
    this.isOver = true
    this.#onEnd(error)
  }
}

/** A text of a batch, and whose inputs it is. */
interface Slot {
  readonly text: EmbedText
  readonly inputs: { readonly job: EmbedJob; readonly index: number }[]
}

/** The texts of one upstream call, each once. */
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

  /** Somebody still waits for it. */
  get isWanted(): boolean {
    for (const job of this.#jobs) if (!job.isOver) return true
    return false
  }

  hasRoom({ text, tokens }: EmbedText, { inputsMax, tokensMax }: BatchBounds): boolean {
    if (this.isEmpty || this.#byText.has(text)) return true
    return this.#slots.length < inputsMax && this.#tokens + tokens <= tokensMax
  }

  /** Takes the next input of a job. */
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

  /** Gives each input its vector. */
  done(answer: Embedded): void {
    const tokens = tokensEach(answer, this.#slots)
    for (const [place, { inputs }] of this.#slots.entries()) {
      const vector = answer.vectors[place] as Float32Array
      for (const { job, index } of inputs) job.done(index, vector, tokens[place] as number)
    }
  }

  /** Its inputs wait again, each job's without company. */
  putBack(): void {
    for (const { inputs } of this.#slots) {
      for (const { job, index } of inputs) {
        job.isAlone = true
        job.putBack(index)
      }
    }
  }

  /** Ends its jobs. @param errorFor What a job gets, whose inputs have these indices by their places in the call */
  fail(errorFor: (indices: readonly (number | undefined)[]) => ServiceError): void {
    for (const job of this.#jobs) {
      job.end(errorFor(this.#slots.map(({ inputs }) => inputs.find((input) => input.job === job)?.index)))
    }
    for (const { inputs } of this.#slots) for (const { job } of inputs) job.underWay--
  }
}

/**
 * Tokens of each text, in whole numbers: as the engine tells, else the tokens of the call in the proportion of the
 * estimates, so that the parts add up to the whole.
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
