import type { FinishReason, GenerateEvent, GenerateRequest, Logprob } from '#schemas/generate.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { WholeCharacters } from '#shared/whole-characters.ts'

/** Calls of tools in one choice: more are no model's, and each of them is looked for among the others. */
const CALLS_MAX = 1_024

/** What is read of a choice: of a chunk, or of a whole answer, where `message` takes the place of `delta`. */
export interface WireChoice {
  index?: number
  delta?: Delta | null
  message?: Delta | null
  logprobs?: { content?: WireLogprob[] | null } | null
  finish_reason?: string | null
  /** vLLM: the stop string that was hit, or a token id. */
  stop_reason?: unknown
  content_filter_results?: Record<string, unknown> | null
}

interface Delta {
  content?: string | ContentPart[] | null
  refusal?: string | null
  /** DeepSeek's word, used by most servers; vLLM and others say `reasoning`. */
  reasoning_content?: string | null
  reasoning?: string | null
  tool_calls?: WireToolCall[] | null
}

interface ContentPart {
  type?: string
  text?: string
  thinking?: ContentPart[]
}

interface WireToolCall {
  index?: number
  id?: string | null
  function?: { name?: string | null; arguments?: string | object | null }
}

/** A log probability as servers write it. */
export interface WireLogprob {
  token: string
  logprob: number | null
  bytes?: number[] | null
  top_logprobs?: WireLogprob[] | null
}

/** One choice as it grows. */
export class ChoiceState {
  readonly #choice: number
  readonly #model: string
  readonly #text = new WholeCharacters()
  readonly #refusal = new WholeCharacters()
  readonly #reasoning = new WholeCharacters()
  readonly #calls: CallState[] = []
  #stopReason: unknown
  #filter: Record<string, unknown> | undefined
  finish: string | undefined

  constructor(choice: number, model: string) {
    this.#choice = choice
    this.#model = model
  }

  read(wire: WireChoice, out: GenerateEvent[]): void {
    const delta = wire.delta ?? wire.message
    if (delta) this.#delta(delta, wire.logprobs?.content, out)
    if (wire.content_filter_results) this.#filter = { ...this.#filter, ...wire.content_filter_results }
    if (!wire.finish_reason) return
    this.finish = wire.finish_reason
    this.#stopReason = wire.stop_reason
  }

  /** Pushes what closes the choice. @throws ServiceError when its finish reason tells of a failure */
  end(out: GenerateEvent[], request: GenerateRequest): void {
    if (this.finish === 'abort' || this.finish === 'error') {
      throw answerError(this.#model, 'gave up before its answer was complete')
    }
    for (const call of this.#calls) {
      if (!call.end(out)) throw answerError(this.#model, 'called a tool without a name')
    }
    const hitStop = typeof this.#stopReason === 'string' && request.stop.includes(this.#stopReason)
    out.push({
      type: 'finish',
      choice: this.#choice,
      reason: this.#finishReason(),
      ...(hitStop ? { stop_sequence: this.#stopReason as string } : {}),
      ...(this.#filter ? { filter: this.#filter } : {}),
    })
  }

  /** Agents loop on `tool_calls`, so it is said whenever calls are returned (docs/protocol.md, Chat answers). */
  #finishReason(): FinishReason {
    if (this.finish === 'length' || this.finish === 'content_filter') return this.finish
    return this.#calls.length > 0 ? 'tool_calls' : 'stop'
  }

  #delta(delta: Delta, logprobs: WireLogprob[] | null | undefined, out: GenerateEvent[]): void {
    const choice = this.#choice
    const reasoning = delta.reasoning_content ?? delta.reasoning
    if (typeof reasoning === 'string') this.#pushReasoning(reasoning, out)
    if (typeof delta.content === 'string') this.#pushText(delta.content, logprobs, out)
    else if (Array.isArray(delta.content)) this.#pushParts(delta.content, out)
    else if (logprobs?.length) this.#pushText('', logprobs, out)
    if (typeof delta.refusal === 'string') {
      const text = this.#refusal.push(delta.refusal)
      if (text !== '') out.push({ type: 'refusal', choice, text })
    }
    if (Array.isArray(delta.tool_calls)) {
      for (const call of delta.tool_calls) this.#call(call).read(call, out)
    }
  }

  #pushText(piece: string, logprobs: WireLogprob[] | null | undefined, out: GenerateEvent[]): void {
    const text = this.#text.push(piece)
    if (logprobs?.length) out.push({ type: 'text', choice: this.#choice, text, logprobs: logprobs.map(readLogprob) })
    else if (text !== '') out.push({ type: 'text', choice: this.#choice, text })
  }

  #pushReasoning(piece: string, out: GenerateEvent[]): void {
    const text = this.#reasoning.push(piece)
    if (text !== '') out.push({ type: 'reasoning', choice: this.#choice, text })
  }

  /** Mistral's reasoning models answer in parts. */
  #pushParts(parts: ContentPart[], out: GenerateEvent[]): void {
    for (const part of parts) {
      if (typeof part.text === 'string') this.#pushText(part.text, undefined, out)
      for (const thought of part.thinking ?? []) this.#pushReasoning(thought.text ?? '', out)
    }
  }

  /**
   * Finds the call a delta belongs to. Servers that send calls whole leave the index out, or give each call index 0: then
   * a name with another id means another call.
   */
  #call(wire: WireToolCall): CallState {
    const last = this.#calls.findLast((call) => wire.index === undefined || call.index === wire.index)
    if (last && !isOtherCall(wire, last)) return last
    if (this.#calls.length >= CALLS_MAX) throw answerError(this.#model, `called tools more than ${CALLS_MAX} times`)
    const call = new CallState(this.#choice, this.#calls.length, wire.index)
    this.#calls.push(call)
    return call
  }
}

function isOtherCall(wire: WireToolCall, last: CallState): boolean {
  if (!wire.function?.name) return false
  return wire.id && last.id ? wire.id !== last.id : wire.index === undefined
}

/** One tool call as it grows; told of once its name is known. */
class CallState {
  readonly #choice: number
  readonly #call: number
  readonly index: number | undefined
  id = ''
  #name = ''
  #hasArguments = false
  /** Arguments that wait for the name. */
  #held = ''
  readonly #text = new WholeCharacters()

  constructor(choice: number, call: number, index: number | undefined) {
    this.#choice = choice
    this.#call = call
    this.index = index
  }

  read(wire: WireToolCall, out: GenerateEvent[]): void {
    const { name, arguments: written } = wire.function ?? {}
    if (wire.id) this.id = wire.id
    if (name && this.#name === '') {
      this.#name = name
      out.push({ type: 'tool_call', choice: this.#choice, call: this.#call, id: this.id, name })
    }
    if (written) this.#held += typeof written === 'string' ? written : JSON.stringify(written)
    if (this.#name !== '') this.#push(out)
  }

  /** A call without arguments gets `{}`: what is written must be JSON (docs/protocol.md, Tools). */
  end(out: GenerateEvent[]): boolean {
    if (!this.#hasArguments) this.#held ||= '{}'
    this.#push(out)
    return this.#name !== ''
  }

  #push(out: GenerateEvent[]): void {
    const text = this.#text.push(this.#held)
    this.#held = ''
    if (text === '') return
    this.#hasArguments = true
    out.push({ type: 'tool_arguments', choice: this.#choice, call: this.#call, text })
  }
}

/** Only the fields of `Logprob`: servers add others, such as token ids. */
export function readLogprob(wire: WireLogprob): Logprob {
  const { token, logprob, bytes = null, top_logprobs } = wire
  const top = (top_logprobs ?? []).map((one) => ({
    token: one.token,
    logprob: one.logprob ?? null,
    bytes: one.bytes ?? null,
  }))
  return { token, logprob, bytes, top_logprobs: top }
}
