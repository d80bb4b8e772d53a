import type { GenerateEvent, GenerateRequest, NativeUsage, Usage } from '#schemas/generate.ts'
import type { AnswerDecoder } from '#shared/engines/upstream/answer.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { estimateInputTokens } from '#shared/engines/upstream/usage.ts'
import { nativeEvent } from '#shared/kinds/native-output.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { ChoiceState, type WireChoice } from './choice.ts'
import { UsageReader } from './usage.ts'

type Chunk = Readonly<Record<string, unknown>>

/** Answer fields with an internal form, and fields that an encoder sets itself. `obfuscation` only pads the frames of one connection. */
const KNOWN_FIELDS: ReadonlySet<string> = new Set([
  ...['id', 'object', 'created', 'model', 'choices', 'message', 'usage', 'system_fingerprint', 'error', 'obfuscation'],
])
const ANSWER_FIELDS_MAX = 64
/** Maximum reported tokens per choice of a valid answer without text, because servers count the end marker. */
const SILENT_TOKENS_MAX = 1

/**
 * Reads chat completions, streamed or whole, in the forms of many servers.
 *
 * Finish events are held back until the end, since filter results may follow the finish reason, and usage comes last. The answer is
 * complete if each choice has its finish reason. Alternatively, `[DONE]` or the end of a whole answer must follow some output.
 *
 * If usage or finish reason report output of which nothing could be read, then the answer is an error, and never an empty answer.
 */
export class OpenAiDecoder implements AnswerDecoder {
  readonly #request: GenerateRequest
  readonly #isSame: boolean
  readonly #choices: ChoiceState[] = []
  /** Choices with an index that the request did not ask for. */
  readonly #others = new Map<unknown, ChoiceState>()
  readonly #usage = new UsageReader()
  /** Unknown answer fields as JSON, because many servers repeat them in each chunk. */
  readonly #answered = new Map<string, string>()
  #hasStarted = false
  #sawDone = false
  #isWhole = false

  constructor(request: GenerateRequest) {
    this.#request = request
    this.#isSame = request.dialect === 'openai' && request.completion === undefined
  }

  get isDone(): boolean {
    return this.#sawDone
  }

  get isComplete(): boolean {
    const choices = this.#known()
    return choices.length >= this.#request.n && choices.every(({ finish }) => finish !== undefined)
  }

  get usage(): Partial<Usage> | undefined {
    return this.#usage.known(this.#hasOutput)
  }

  get nativeUsage(): NativeUsage | undefined {
    return this.#isSame ? this.#usage.native : undefined
  }

  isEnd(data: string): boolean {
    if (data.trim() !== '[DONE]') return false
    this.#sawDone = true
    return true
  }

  frame(data: Record<string, unknown>, out: GenerateEvent[]): void {
    this.#read(data, out)
  }

  whole(body: Record<string, unknown>, out: GenerateEvent[]): undefined {
    this.#isWhole = true
    this.#read(body, out)
  }

  end(out: GenerateEvent[]): void {
    const choices = this.#known()
    if (choices.length === 0) throw this.#incomplete()
    if (choices.length < this.#request.n) {
      // A retry would return as few choices: such servers do not support `n`.
      const message = `The upstream of model '${this.#request.model}' gave ${choices.length} of ${this.#request.n} choices.`
      throw new ServiceError('upstream_refused', message, { param: 'n' })
    }
    const isClosed = this.#sawDone || this.#isWhole
    if (choices.some(({ finish, hasOutput }) => !finish && !(isClosed && hasOutput))) throw this.#incomplete()
    if (!this.#hasOutput && choices.some((choice) => this.#reportsOutput(choice))) {
      throw answerError(this.#request.model, 'reported output of which nothing could be read')
    }
    for (const choice of choices) choice.end(out)
  }

  get #hasOutput(): boolean {
    return this.#choices.some((choice) => choice?.hasOutput)
  }

  #known(): ChoiceState[] {
    return this.#choices.filter((choice) => choice !== undefined)
  }

  /** Whether the server counted or reported output. Hidden reasoning and tokens of a stop string leave no text. */
  #reportsOutput({ finish }: ChoiceState): boolean {
    if (finish === 'tool_calls') return true
    const { output_tokens, reasoning_tokens = 0 } = this.usage ?? {}
    if (output_tokens === undefined) return finish === 'length'
    if (finish === 'content_filter' || (finish === 'stop' && this.#request.stop.length > 0)) return false
    return output_tokens - reasoning_tokens > SILENT_TOKENS_MAX * this.#request.n
  }

  #read(chunk: Chunk, out: GenerateEvent[]): void {
    if (!this.#hasStarted) this.#start(chunk, out)
    const choices = choicesOf(chunk)
    this.#usage.read(chunk, choices)
    if (this.#isSame) this.#answerFields(chunk, out)
    let position = 0
    for (const choice of choices) {
      this.#choice(choice.index ?? position)?.read(choice as WireChoice, this.#isWhole, out)
      position++
    }
  }

  #start(chunk: Chunk, out: GenerateEvent[]): void {
    this.#hasStarted = true
    const fingerprint = chunk.system_fingerprint
    out.push({
      type: 'start',
      model: this.#request.model,
      input_tokens: estimateInputTokens(this.#request),
      ...(typeof fingerprint === 'string' && fingerprint !== '' ? { fingerprint } : {}),
    })
  }

  #answerFields(chunk: Chunk, out: GenerateEvent[]): void {
    let changed: Record<string, unknown> | undefined
    for (const name in chunk) {
      const value = chunk[name]
      if (value === null || KNOWN_FIELDS.has(name) || name === '__proto__') continue
      const json = JSON.stringify(value)
      if (this.#answered.get(name) === json) continue
      if (this.#answered.size < ANSWER_FIELDS_MAX) this.#answered.set(name, json)
      changed ??= {}
      changed[name] = value
    }
    if (changed) out.push(nativeEvent('openai', 'answer', changed))
  }

  /**
   * The choice of an index. Some servers count from one, or never restart at zero. Such an index gets the first choice without output, if
   * there is one.
   */
  #choice(index: unknown): ChoiceState | undefined {
    const known = this.#others.get(index)
    if (known) return known
    const { n } = this.#request
    const number = typeof index === 'string' ? Number(index) : index
    if (Number.isInteger(number) && (number as number) >= 0 && (number as number) < n) {
      return this.#open(number as number)
    }
    for (let place = 0; place < n; place++) {
      const taken = this.#choices[place]
      if (taken?.hasOutput || (taken && [...this.#others.values()].includes(taken))) continue
      const choice = this.#open(place)
      this.#others.set(index, choice)
      return choice
    }
    return undefined
  }

  #open(place: number): ChoiceState {
    this.#choices[place] ??= new ChoiceState(place, this.#request)
    return this.#choices[place]
  }

  #incomplete(): ServiceError {
    return answerError(this.#request.model, 'ended its answer before it was complete')
  }
}

/** The choices of a chunk. Ollama's own API has one, in the chunk itself. */
function choicesOf(chunk: Chunk): Record<string, unknown>[] {
  const { choices, message, done, done_reason } = chunk
  if (Array.isArray(choices)) return choices.filter(isObject)
  if (isObject(choices)) return [choices]
  if (!isObject(message)) return []
  return [{ index: 0, message, finish_reason: done === true ? (done_reason ?? 'stop') : null }]
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
