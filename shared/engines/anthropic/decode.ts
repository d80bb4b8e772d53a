import type { FinishReason, GenerateEvent, GenerateRequest, Usage } from '#schemas/generate.ts'
import type { AnswerDecoder } from '#shared/engines/upstream/answer.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { WholeCharacters } from '#shared/whole-characters.ts'

interface WireUsage {
  input_tokens?: number | null
  output_tokens?: number | null
  cache_creation_input_tokens?: number | null
  cache_read_input_tokens?: number | null
  output_tokens_details?: { thinking_tokens?: number | null } | null
}

interface Block {
  type: string
  text?: string
  thinking?: string
  signature?: string
  data?: string
  id?: string
  name?: string
  input?: unknown
}

interface BlockDelta {
  type: string
  text?: string
  thinking?: string
  signature?: string
  partial_json?: string
}

interface Message {
  content?: Block[]
  usage?: WireUsage | null
  stop_reason?: string | null
  stop_sequence?: string | null
}

interface Frame {
  type: string
  message?: Message
  index?: number
  content_block?: Block
  delta?: BlockDelta & Message
  usage?: WireUsage | null
}

/**
 * Reads messages, streamed or whole. A whole message is read as the stream it might have been.
 *
 * The answer is complete with `message_stop`. Blocks of server tools are skipped: there are no events for them.
 */
export class AnthropicDecoder implements AnswerDecoder {
  readonly #request: GenerateRequest
  #block: OpenBlock | undefined
  #calls = 0
  #usage: WireUsage = {}
  #stopReason: string | undefined
  #stopSequence: string | undefined
  #sawStop = false

  constructor(request: GenerateRequest) {
    this.#request = request
  }

  get isDone(): boolean {
    return this.#sawStop
  }

  get usage(): Usage | undefined {
    return readUsage(this.#usage)
  }

  isEnd(): boolean {
    return false
  }

  frame(data: Record<string, unknown>, out: GenerateEvent[]): void {
    const frame = data as unknown as Frame
    switch (frame.type) {
      case 'message_start':
        return this.#start(frame.message, out)
      case 'content_block_start':
        this.#block = frame.content_block && this.#openBlock(frame.content_block, out)
        return
      case 'content_block_delta':
        if (frame.delta) this.#block?.read(frame.delta, out)
        return
      case 'content_block_stop':
        this.#block?.close(out)
        this.#block = undefined
        return
      case 'message_delta':
        return this.#change(frame.delta, frame.usage)
      case 'message_stop':
        this.#sawStop = true
    }
  }

  whole(body: Record<string, unknown>, out: GenerateEvent[]): undefined {
    const message = body as Message
    if (!Array.isArray(message.content)) throw answerError(this.#request.model, 'answered without content')
    this.#start(message, out)
    for (const block of message.content) this.#openBlock(block, out)?.close(out)
    this.#change(message, undefined)
    this.#sawStop = true
  }

  end(out: GenerateEvent[]): void {
    if (!this.#sawStop) throw answerError(this.#request.model, 'ended its answer before it was complete')
    out.push({
      type: 'finish',
      choice: 0,
      reason: finishReason(this.#stopReason, this.#calls),
      ...(this.#stopSequence === undefined ? {} : { stop_sequence: this.#stopSequence }),
      ...(this.#stopReason === 'model_context_window_exceeded' ? { context_full: true } : {}),
    })
  }

  #start(message: Message | undefined, out: GenerateEvent[]): void {
    if (message?.usage) this.#usage = message.usage
    out.push({ type: 'start', model: this.#request.model, input_tokens: inputTokens(this.#usage) })
  }

  #change(delta: Message | undefined, usage: WireUsage | null | undefined): void {
    this.#usage = { ...this.#usage, ...present(usage) }
    if (delta?.stop_reason) this.#stopReason = delta.stop_reason
    if (delta?.stop_sequence) this.#stopSequence = delta.stop_sequence
  }

  #openBlock(block: Block, out: GenerateEvent[]): OpenBlock | undefined {
    if (block.type === 'tool_use') return new ToolBlock(block, this.#calls++, out)
    if (block.type === 'text' || block.type === 'thinking') return new TextBlock(block, out)
    if (block.type === 'redacted_thinking') {
      out.push({ type: 'reasoning', choice: 0, text: '', redacted: block.data ?? '' })
    }
    return undefined
  }
}

/** A content block as it grows. What its start already holds is said at once. */
interface OpenBlock {
  read(delta: BlockDelta, out: GenerateEvent[]): void
  close(out: GenerateEvent[]): void
}

class TextBlock implements OpenBlock {
  readonly #type: 'text' | 'reasoning'
  readonly #text = new WholeCharacters()

  constructor(block: Block, out: GenerateEvent[]) {
    this.#type = block.type === 'text' ? 'text' : 'reasoning'
    this.#push(block.text ?? block.thinking ?? '', out)
    if (block.signature) this.#sign(block.signature, out)
  }

  read(delta: BlockDelta, out: GenerateEvent[]): void {
    const piece = delta.text ?? delta.thinking
    if (piece !== undefined) this.#push(piece, out)
    else if (delta.signature) this.#sign(delta.signature, out)
  }

  close(): void {}

  #push(piece: string, out: GenerateEvent[]): void {
    const text = this.#text.push(piece)
    if (text !== '') out.push({ type: this.#type, choice: 0, text })
  }

  #sign(signature: string, out: GenerateEvent[]): void {
    out.push({ type: 'reasoning', choice: 0, text: '', signature })
  }
}

class ToolBlock implements OpenBlock {
  readonly #call: number
  readonly #input: unknown
  readonly #text = new WholeCharacters()
  #hasArguments = false

  constructor(block: Block, call: number, out: GenerateEvent[]) {
    this.#call = call
    this.#input = block.input
    out.push({ type: 'tool_call', choice: 0, call, id: block.id ?? '', name: block.name ?? '' })
  }

  read(delta: BlockDelta, out: GenerateEvent[]): void {
    const text = this.#text.push(delta.partial_json ?? '')
    if (text === '') return
    this.#hasArguments = true
    out.push({ type: 'tool_arguments', choice: 0, call: this.#call, text })
  }

  /** A stream gives the input in deltas; a whole message, and a call without arguments, in the block itself. */
  close(out: GenerateEvent[]): void {
    if (this.#hasArguments) return
    out.push({ type: 'tool_arguments', choice: 0, call: this.#call, text: JSON.stringify(this.#input ?? {}) })
  }
}

function finishReason(stopReason: string | undefined, calls: number): FinishReason {
  switch (stopReason) {
    case 'max_tokens':
    case 'model_context_window_exceeded':
      return 'length'
    case 'refusal':
      return 'content_filter'
    default:
      return calls > 0 ? 'tool_calls' : 'stop'
  }
}

/** The dialect counts cached tokens apart; here they are part of the input. */
function inputTokens(usage: WireUsage): number {
  return count(usage.input_tokens) + count(usage.cache_read_input_tokens) + count(usage.cache_creation_input_tokens)
}

function readUsage(usage: WireUsage): Usage | undefined {
  if (typeof usage.input_tokens !== 'number' || typeof usage.output_tokens !== 'number') return undefined
  const { cache_read_input_tokens: read, cache_creation_input_tokens: written } = usage
  const thought = usage.output_tokens_details?.thinking_tokens
  return {
    input_tokens: inputTokens(usage),
    output_tokens: count(usage.output_tokens),
    ...(typeof read === 'number' ? { cached_tokens: count(read) } : {}),
    ...(typeof written === 'number' ? { cache_write_tokens: count(written) } : {}),
    ...(typeof thought === 'number' ? { reasoning_tokens: count(thought) } : {}),
  }
}

function count(value: unknown): number {
  return Number.isInteger(value) && (value as number) > 0 ? (value as number) : 0
}

/** Later usage adds to the earlier: only what it tells replaces what was told. */
function present(usage: WireUsage | null | undefined): WireUsage {
  return Object.fromEntries(Object.entries(usage ?? {}).filter(([, value]) => value !== null))
}
