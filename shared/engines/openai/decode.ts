import type { GenerateEvent, GenerateRequest, Usage } from '#schemas/generate.ts'
import type { AnswerDecoder } from '#shared/engines/upstream/answer.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { guessInputTokens } from '#shared/engines/upstream/usage.ts'
import { ServiceError } from '#shared/error.ts'
import { ChoiceState, type WireChoice } from './choice.ts'

/** What is read of a chunk, or of a whole chat completion. */
interface Chunk {
  system_fingerprint?: string | null
  choices?: WireChoice[]
  usage?: WireUsage | null
}

interface WireUsage {
  prompt_tokens?: number
  completion_tokens?: number
  prompt_tokens_details?: { cached_tokens?: number; cache_write_tokens?: number } | null
  completion_tokens_details?: { reasoning_tokens?: number } | null
}

/**
 * Reads chat completions, streamed or whole, as many servers write them.
 *
 * Finishes are held back to the end: filter results may come after the finish reason, and usage comes last. The answer is
 * complete when each choice has its finish reason, or `[DONE]` came after some output.
 */
export class OpenAiDecoder implements AnswerDecoder {
  readonly #request: GenerateRequest
  readonly #choices: ChoiceState[] = []
  #hasStarted = false
  #sawDone = false
  #usage: WireUsage | undefined

  constructor(request: GenerateRequest) {
    this.#request = request
  }

  get isDone(): boolean {
    return this.#sawDone
  }

  get usage(): Usage | undefined {
    return this.#usage && readUsage(this.#usage)
  }

  isEnd(data: string): boolean {
    if (data !== '[DONE]') return false
    this.#sawDone = true
    return true
  }

  frame(data: Record<string, unknown>, out: GenerateEvent[]): void {
    this.#read(data as Chunk, out)
  }

  whole(body: Record<string, unknown>, out: GenerateEvent[]): undefined {
    this.#read(body as Chunk, out)
  }

  end(out: GenerateEvent[]): void {
    const choices = this.#choices.filter((choice) => choice !== undefined)
    if (choices.length === 0) throw this.#incomplete()
    if (choices.length < this.#request.n) {
      // Another try would give as few: such servers do not know `n`.
      const message = `The upstream of model '${this.#request.model}' gave ${choices.length} of ${this.#request.n} choices.`
      throw new ServiceError('upstream_refused', message, { param: 'n' })
    }
    for (const choice of choices) {
      if (!choice.finish && !this.#sawDone) throw this.#incomplete()
      choice.end(out, this.#request)
    }
  }

  #read(chunk: Chunk, out: GenerateEvent[]): void {
    if (!this.#hasStarted) this.#start(chunk, out)
    if (chunk.usage) this.#usage = chunk.usage
    if (!Array.isArray(chunk.choices)) return
    for (const [position, choice] of chunk.choices.entries()) this.#choice(choice.index ?? position).read(choice, out)
  }

  #start(chunk: Chunk, out: GenerateEvent[]): void {
    this.#hasStarted = true
    const fingerprint = chunk.system_fingerprint
    out.push({
      type: 'start',
      model: this.#request.model,
      input_tokens: guessInputTokens(this.#request),
      ...(fingerprint ? { fingerprint } : {}),
    })
  }

  #choice(index: number): ChoiceState {
    // An index nobody asked for would make an array of any size.
    if (!(index >= 0 && index < this.#request.n))
      throw answerError(this.#request.model, 'sent a choice nobody asked for')
    this.#choices[index] ??= new ChoiceState(index, this.#request.model)
    return this.#choices[index]
  }

  #incomplete(): ServiceError {
    return answerError(this.#request.model, 'ended its answer before it was complete')
  }
}

function readUsage(wire: WireUsage): Usage | undefined {
  const { prompt_tokens, completion_tokens = 0, prompt_tokens_details, completion_tokens_details } = wire
  if (!isCount(prompt_tokens) || !isCount(completion_tokens)) return undefined
  const { cached_tokens, cache_write_tokens } = prompt_tokens_details ?? {}
  const { reasoning_tokens } = completion_tokens_details ?? {}
  return {
    input_tokens: prompt_tokens,
    output_tokens: completion_tokens,
    ...(isCount(cached_tokens) ? { cached_tokens } : {}),
    ...(isCount(cache_write_tokens) ? { cache_write_tokens } : {}),
    ...(isCount(reasoning_tokens) ? { reasoning_tokens } : {}),
  }
}

function isCount(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0
}
