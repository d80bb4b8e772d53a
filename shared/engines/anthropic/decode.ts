import type { FinishReason, GenerateEvent, GenerateRequest, NativeUsage, Usage } from '#schemas/kinds/generate.ts'
import type { AnswerDecoder } from '#shared/engines/upstream/answer.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { estimateInputTokens } from '#shared/engines/upstream/usage.ts'
import { nativeEvent } from '#shared/kinds/encode.ts'
import { type BlockFields, ContentBlocks } from './blocks.ts'

type Fields = Readonly<Record<string, unknown>>

interface Frame {
  type?: unknown
  message?: Fields | null
  index?: unknown
  content_block?: BlockFields | null
  delta?: Fields | null
  usage?: unknown
}

const KNOWN = new Set(['id', 'type', 'role', 'model', 'content', 'usage', 'stop_reason', 'stop_sequence'])
/** Message fields that an event `message_delta` has next to its `delta` instead of inside it. */
const BESIDE_DELTA = new Set(['context_management', 'input_transformations'])

/**
 * Stop reasons of the API and of compatible servers. A caller of the Messages API receives any other reason unchanged.
 */
const REASONS: Readonly<Record<string, FinishReason>> = {
  end_turn: 'stop',
  stop: 'stop',
  stop_sequence: 'stop',
  tool_use: 'tool_calls',
  tool_calls: 'tool_calls',
  max_tokens: 'length',
  length: 'length',
  model_context_window_exceeded: 'length',
  refusal: 'content_filter',
  content_filter: 'content_filter',
  safety: 'content_filter',
}

/** A valid answer without content may report up to this many output tokens, because some servers count end markers as tokens. */
const EMPTY_TOKENS_MAX = 4

/**
 * Converts the messages of an upstream into events. A message that is not streamed gives the same events as a streamed message.
 *
 * The answer is complete after `message_stop`, a stop reason, or `[DONE]`, which some servers add. If an answer reports output tokens but contains no
 * output, then it is an error. Otherwise an agent would accept the empty answer and stop.
 */
export class AnthropicDecoder implements AnswerDecoder {
  readonly #request: GenerateRequest
  readonly #blocks: ContentBlocks
  readonly #usage = new ReportedUsage()
  #hasStarted = false
  #stopReason: string | undefined
  #stopSequence: string | undefined
  #sawStop = false
  #sawDone = false

  constructor(request: GenerateRequest) {
    this.#request = request
    this.#blocks = new ContentBlocks(request)
  }

  get isDone(): boolean {
    return this.#sawStop
  }

  get isComplete(): boolean {
    return this.#sawStop || this.#sawDone || this.#stopReason !== undefined
  }

  get usage(): Partial<Usage> | undefined {
    return this.#usage.counts(this.#blocks.hasOutput)
  }

  get nativeUsage(): NativeUsage | undefined {
    return this.#keepsFields ? this.#usage.native : undefined
  }

  isEnd(data: string): boolean {
    const isEnd = data.trim() === '[DONE]'
    this.#sawDone ||= isEnd
    return isEnd
  }

  frame(data: Record<string, unknown>, out: GenerateEvent[]): void {
    const { type, message, content_block, delta, usage, ...rest } = data as Frame
    const index = Number.isInteger(rest.index) ? (rest.index as number) : undefined
    if (type === 'message') return this.whole(data, out)
    this.#usage.add(usage)
    this.#usage.add(message?.usage)
    this.#usage.add(delta?.usage)
    switch (type) {
      case 'message_start':
        return this.#readStart(message ?? {}, out)
      case 'content_block_start':
        this.#start(out)
        if (content_block) this.#blocks.start(index, content_block, out)
        return
      case 'content_block_delta':
        this.#start(out)
        if (delta) this.#blocks.read(index, delta, out)
        return
      case 'content_block_stop':
        return this.#blocks.stop(index, out)
      case 'message_delta':
        this.#start(out)
        this.#readEnd(delta ?? {}, out)
        return this.#pass(rest as Fields, 'message', out)
      case 'message_stop':
        this.#sawStop = true
    }
  }

  whole(body: Record<string, unknown>, out: GenerateEvent[]): undefined {
    const { content } = body
    if (!Array.isArray(content) && typeof content !== 'string') {
      throw answerError(this.#request.model, 'returned a response without content')
    }
    this.#usage.add(body.usage)
    this.#readStart(body, out)
    this.#readEnd(body, out)
    this.#sawStop = true
  }

  end(out: GenerateEvent[]): undefined {
    this.#start(out)
    this.#blocks.stopAll(out)
    if (!this.isComplete) throw answerError(this.#request.model, 'ended its response before it was complete')
    const reason = this.#reason
    if (this.#hasLostOutput(reason)) throw answerError(this.#request.model, 'reported output that it did not send')
    const isContextFull = this.#stopReason === 'model_context_window_exceeded'
    out.push({
      type: 'finish',
      choice: 0,
      reason: reason === 'stop' && this.#blocks.calls > 0 ? 'tool_calls' : reason,
      ...(this.#stopSequence === undefined ? {} : { stop_sequence: this.#stopSequence }),
      ...(isContextFull ? { context_full: true } : {}),
    })
  }

  get #keepsFields(): boolean {
    return this.#request.dialect === 'anthropic'
  }

  get #reason(): FinishReason {
    const reason = REASONS[this.#stopReason?.toLowerCase() ?? 'stop'] ?? 'stop'
    return reason === 'tool_calls' && this.#blocks.calls === 0 && this.#blocks.hasOutput ? 'stop' : reason
  }

  /** Whether the usage reports output tokens that the server did not send. Tokens of hidden thinking are never sent, so they are subtracted. */
  #hasLostOutput(reason: FinishReason): boolean {
    if (this.#blocks.hasOutput || reason === 'content_filter') return false
    if (reason === 'tool_calls') return true
    return this.#usage.outputTokens - (this.#usage.thinkingTokens ?? 0) > EMPTY_TOKENS_MAX
  }

  #start(out: GenerateEvent[]): void {
    if (this.#hasStarted) return
    this.#hasStarted = true
    const counted = this.#usage.counts(false)
    const { input_tokens, output_tokens = 0 } = counted ?? {}
    const native_usage = this.nativeUsage
    out.push({
      type: 'start',
      model: this.#request.model,
      input_tokens: input_tokens ?? estimateInputTokens(this.#request),
      ...(this.#keepsFields && input_tokens !== undefined && { usage: { ...counted, input_tokens, output_tokens } }),
      ...(native_usage && { native_usage }),
    })
  }

  #readStart(message: Fields, out: GenerateEvent[]): void {
    this.#start(out)
    const { content } = message
    const blocks = typeof content === 'string' ? [{ type: 'text', text: content }] : content
    if (Array.isArray(blocks)) {
      for (const block of blocks) {
        this.#blocks.start(undefined, block, out)
        this.#blocks.stopAll(out)
      }
    }
    this.#pass(message, 'answer', out)
  }

  #readEnd(end: Fields, out: GenerateEvent[]): void {
    const { stop_reason, stop_sequence, type } = end
    if (typeof stop_sequence === 'string') this.#stopSequence = stop_sequence
    if (typeof stop_reason === 'string' && stop_reason !== '') {
      this.#stopReason = stop_reason
      if (this.#keepsFields && !Object.hasOwn(REASONS, stop_reason.toLowerCase())) {
        out.push(nativeEvent('anthropic', 'answer', { stop_reason }))
      }
    }
    // If the message is not streamed, then its unknown fields were emitted when its start was read. Only the end event of a stream has new ones.
    if (type !== 'message') this.#pass(end, 'answer', out)
  }

  #pass(fields: Fields, scope: 'answer' | 'message', out: GenerateEvent[]): void {
    if (!this.#keepsFields) return
    const passed = Object.entries(fields).filter(
      ([name, value]) => value !== null && !KNOWN.has(name) && name !== 'index',
    )
    const beside = passed.filter(([name]) => scope === 'message' || BESIDE_DELTA.has(name))
    const others = passed.filter((entry) => !beside.includes(entry))
    if (others.length > 0) out.push(nativeEvent('anthropic', 'answer', Object.fromEntries(others)))
    if (beside.length > 0) out.push(nativeEvent('anthropic', 'message', Object.fromEntries(beside)))
  }
}

/**
 * Usage of one message. Servers report usage at the start of the message, at its end, or at both.
 *
 * Reports are cumulative, so a later count replaces an earlier count. A later zero or null is ignored, because several servers end a message with a
 * template of zeros. Details of the API, such as `cache_creation`, are returned unchanged.
 */
class ReportedUsage {
  #fields: Fields | undefined

  add(report: unknown): void {
    if (isFields(report)) this.#fields = merged(this.#fields ?? {}, report)
  }

  /** Tokens of the prompt, or 0 if not reported. The API counts cached tokens separately, but the internal form includes them. */
  get inputTokens(): number {
    const { input_tokens, cache_read_input_tokens, cache_creation_input_tokens } = this.#fields ?? {}
    return countOf(input_tokens) + countOf(cache_read_input_tokens) + countOf(cache_creation_input_tokens)
  }

  get outputTokens(): number {
    return countOf(this.#fields?.output_tokens)
  }

  get thinkingTokens(): number | undefined {
    const { thinking_tokens } = (this.#fields?.output_tokens_details ?? {}) as Fields
    return typeof thinking_tokens === 'number' ? countOf(thinking_tokens) : undefined
  }

  get native(): NativeUsage | undefined {
    return this.#fields && { dialect: 'anthropic', value: this.#fields }
  }

  /**
   * Returns the token counts that the server reported.
   *
   * @param hasOutput If true, then a reported output count of zero is ignored
   */
  counts(hasOutput: boolean): Partial<Usage> | undefined {
    if (!this.#fields) return undefined
    const { cache_read_input_tokens: read, cache_creation_input_tokens: written, output_tokens } = this.#fields
    const isOutputCounted = typeof output_tokens === 'number' && (!hasOutput || this.outputTokens > 0)
    return {
      ...(this.inputTokens > 0 && { input_tokens: this.inputTokens }),
      ...(isOutputCounted && { output_tokens: this.outputTokens }),
      ...(typeof read === 'number' && { cached_tokens: countOf(read) }),
      ...(typeof written === 'number' && { cache_write_tokens: countOf(written) }),
      ...(this.thinkingTokens !== undefined && { reasoning_tokens: this.thinkingTokens }),
    }
  }
}

function merged(known: Fields, later: Fields): Fields {
  const fields = new Map(Object.entries(known))
  for (const [name, value] of Object.entries(later)) {
    const before = fields.get(name)
    if (isFields(before) && isFields(value)) fields.set(name, merged(before, value))
    else if (before === undefined || (value !== null && value !== 0) || before === null) fields.set(name, value)
  }
  return Object.fromEntries(fields)
}

function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function countOf(value: unknown): number {
  return Number.isSafeInteger(value) && (value as number) > 0 ? (value as number) : 0
}
