import type { FinishReason, GenerateEvent, GenerateRequest, Usage } from '#schemas/generate.ts'
import { readLogprob, type WireLogprob } from '#shared/engines/openai/choice.ts'
import type { AnswerDecoder } from '#shared/engines/upstream/answer.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { guessInputTokens } from '#shared/engines/upstream/usage.ts'
import type { ServiceError } from '#shared/error.ts'
import { WholeCharacters } from '#shared/whole-characters.ts'
import { signatureOf } from './thought.ts'

interface WireUsage {
  input_tokens?: number
  output_tokens?: number
  input_tokens_details?: { cached_tokens?: number } | null
  output_tokens_details?: { reasoning_tokens?: number } | null
}

interface WirePart {
  type?: string
  text?: string
  refusal?: string
  logprobs?: WireLogprob[] | null
}

interface WireItem {
  type?: string
  id?: string
  call_id?: string
  name?: string
  arguments?: string
  content?: WirePart[] | null
  summary?: WirePart[] | null
  encrypted_content?: string | null
}

interface WireResponse {
  status?: string
  output?: WireItem[]
  usage?: WireUsage | null
  incomplete_details?: { reason?: string } | null
}

interface Frame {
  type: string
  response?: WireResponse
  item?: WireItem
  output_index?: number
  summary_index?: number
  delta?: string
  logprobs?: WireLogprob[] | null
}

/** One item of the answer as it grows. */
interface OpenItem {
  /** Ordinal of the call that it is. */
  readonly call: number | undefined
  /** Something of it was told: what its end repeats is not told again. */
  isTold: boolean
  readonly text: WholeCharacters
}

/**
 * Reads a response, streamed or whole. What the items of a stream say at their end is told only where no piece of it came before.
 *
 * The answer is complete with `response.completed` or `response.incomplete`. Items of tools that the upstream runs itself are
 * skipped: there are no events for them.
 */
export class ResponsesDecoder implements AnswerDecoder {
  readonly #request: GenerateRequest
  readonly #items = new Map<number, OpenItem>()
  #hasStarted = false
  #calls = 0
  #usage: WireUsage | undefined
  #reason: FinishReason | undefined

  constructor(request: GenerateRequest) {
    this.#request = request
  }

  get isDone(): boolean {
    return this.#reason !== undefined
  }

  get usage(): Usage | undefined {
    return this.#usage && readUsage(this.#usage)
  }

  /** Some servers end their streams as chat completions do. */
  isEnd(data: string): boolean {
    return data === '[DONE]'
  }

  frame(data: Record<string, unknown>, out: GenerateEvent[]): void {
    const frame = data as unknown as Frame
    this.#start(out)
    switch (frame.type) {
      case 'response.output_item.added':
        this.#open(frame.output_index, frame.item, out)
        return
      case 'response.output_text.delta':
        return this.#say('text', frame, out)
      case 'response.refusal.delta':
        return this.#say('refusal', frame, out)
      case 'response.reasoning_text.delta':
      case 'response.reasoning_summary_text.delta':
        return this.#say('reasoning', frame, out)
      case 'response.reasoning_summary_part.added':
        if (frame.summary_index) this.#say('reasoning', { ...frame, delta: '\n\n' }, out)
        return
      case 'response.function_call_arguments.delta':
        return this.#argue(frame, out)
      case 'response.output_item.done':
        return this.#close(frame.output_index, frame.item, out)
      case 'response.completed':
      case 'response.incomplete':
        return this.#end(frame.response ?? {})
    }
  }

  whole(body: Record<string, unknown>, out: GenerateEvent[]): undefined {
    const response = body as WireResponse
    if (!Array.isArray(response.output)) throw answerError(this.#request.model, 'answered without output')
    this.#start(out)
    for (const [index, item] of response.output.entries()) this.#close(index, item, out)
    this.#end(response)
  }

  end(out: GenerateEvent[]): void {
    if (!this.#reason) throw this.#incomplete()
    const reason = this.#reason === 'stop' && this.#calls > 0 ? 'tool_calls' : this.#reason
    out.push({ type: 'finish', choice: 0, reason })
  }

  #start(out: GenerateEvent[]): void {
    if (this.#hasStarted) return
    this.#hasStarted = true
    out.push({ type: 'start', model: this.#request.model, input_tokens: guessInputTokens(this.#request) })
  }

  #open(index: number | undefined, item: WireItem | undefined, out: GenerateEvent[]): OpenItem {
    const isCall = item?.type === 'function_call'
    const call = isCall ? this.#calls++ : undefined
    const open: OpenItem = { call, isTold: false, text: new WholeCharacters() }
    if (index !== undefined) this.#items.set(index, open)
    if (call === undefined) return open
    if (!item?.name) throw answerError(this.#request.model, 'called a tool without a name')
    out.push({ type: 'tool_call', choice: 0, call, id: item.call_id ?? item.id ?? '', name: item.name })
    return open
  }

  #say(type: 'text' | 'refusal' | 'reasoning', frame: Frame, out: GenerateEvent[]): void {
    const item = this.#itemAt(frame.output_index, out)
    item.isTold = true
    const text = item.text.push(frame.delta ?? '')
    const logprobs = type === 'text' && frame.logprobs?.length ? frame.logprobs.map(readLogprob) : undefined
    if (logprobs) out.push({ type: 'text', choice: 0, text, logprobs })
    else if (text !== '') out.push({ type, choice: 0, text })
  }

  #argue({ output_index, delta = '' }: Frame, out: GenerateEvent[]): void {
    const item = this.#itemAt(output_index, out)
    if (item.call === undefined) throw answerError(this.#request.model, 'gave arguments of no call')
    const text = item.text.push(delta)
    if (text === '') return
    item.isTold = true
    out.push({ type: 'tool_arguments', choice: 0, call: item.call, text })
  }

  /** An item is whole: all of it is told, of which nothing was. */
  #close(index: number | undefined, item: WireItem | undefined, out: GenerateEvent[]): void {
    if (!item) return
    const open = this.#items.get(index ?? -1) ?? this.#open(index, item, out)
    if (index !== undefined) this.#items.delete(index)
    if (open.call !== undefined && !open.isTold) {
      out.push({ type: 'tool_arguments', choice: 0, call: open.call, text: item.arguments || '{}' })
    }
    if (item.type === 'message' && !open.isTold) this.#tellMessage(item.content ?? [], out)
    if (item.type === 'reasoning') this.#tellThought(item, open.isTold, out)
  }

  #tellMessage(parts: readonly WirePart[], out: GenerateEvent[]): void {
    if (!Array.isArray(parts)) throw answerError(this.#request.model, 'sent a message of an unknown shape')
    for (const { type, text = '', refusal = '', logprobs } of parts) {
      if (type === 'refusal') out.push({ type: 'refusal', choice: 0, text: refusal })
      else if (type === 'output_text' && logprobs?.length) {
        out.push({ type: 'text', choice: 0, text, logprobs: logprobs.map(readLogprob) })
      } else if (type === 'output_text' && text !== '') out.push({ type: 'text', choice: 0, text })
    }
  }

  #tellThought(item: WireItem, isTold: boolean, out: GenerateEvent[]): void {
    const { id = '', content, summary, encrypted_content: sealed } = item
    const parts = content?.length ? content : (summary ?? [])
    const text = isTold ? '' : parts.map((part) => part.text ?? '').join('\n\n')
    const signature = sealed ? signatureOf(id, sealed) : undefined
    if (text === '' && signature === undefined) return
    out.push({ type: 'reasoning', choice: 0, text, ...(signature === undefined ? {} : { signature }) })
  }

  #end({ status, usage, incomplete_details: details }: WireResponse): void {
    if (usage) this.#usage = usage
    if (status === 'completed') this.#reason = 'stop'
    else if (status === 'incomplete') this.#reason = details?.reason === 'content_filter' ? 'content_filter' : 'length'
    else throw this.#incomplete()
  }

  #itemAt(index: number | undefined, out: GenerateEvent[]): OpenItem {
    return this.#items.get(index ?? -1) ?? this.#open(index ?? -1, undefined, out)
  }

  #incomplete(): ServiceError {
    return answerError(this.#request.model, 'ended its answer before it was complete')
  }
}

function readUsage(wire: WireUsage): Usage | undefined {
  const { input_tokens, output_tokens } = wire
  const { cached_tokens } = wire.input_tokens_details ?? {}
  const { reasoning_tokens } = wire.output_tokens_details ?? {}
  if (!isCount(input_tokens) || !isCount(output_tokens)) return undefined
  return {
    ...{ input_tokens, output_tokens },
    ...(isCount(cached_tokens) ? { cached_tokens } : {}),
    ...(isCount(reasoning_tokens) ? { reasoning_tokens } : {}),
  }
}

function isCount(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0
}
