import type { EncodeContext } from '#schemas/job.ts'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import type { OutputBlock } from '#schemas/messages.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { makeCallId, unfinished } from '#shared/kinds/encode.ts'
import { SurrogateBuffer } from '#shared/lib/buffers.ts'
import { runNowOrYielding } from '#shared/lib/yielding.ts'
import {
  type AnswerUsage,
  deltaUsage,
  encodeMessage,
  envelope,
  type FinishEvent,
  isNewer,
  NativeAnswer,
  parseInput,
  searchBlock,
  searchResultBlock,
  stopDetails,
  stopReason,
  stopSequence,
  textBlock,
  toolBlock,
} from './whole.ts'

type StartEvent = Extract<GenerateEvent, { type: 'start' }>

export const messagesAnswer: Answer<GenerateEvent> = {
  whole: (events, context) => runNowOrYielding(encodeMessage(events, context)),
  open: (context) => new MessagesStream(context),
}

/**
 * Encodes one stream of the Messages API (docs/internals/protocol.md, Messages streams).
 *
 * The first event produces `message_start`. The last frames wait for the usage event, because a single `message_delta` contains both the stop reason
 * and the final counts.
 */
class MessagesStream implements AnswerStream<GenerateEvent> {
  readonly #context: EncodeContext
  readonly #blocks = new BlockStream()
  readonly #opening: OutputBlock
  #hasStarted = false
  #hasCalls = false
  #hasRefusal = false
  readonly #native = new NativeAnswer()
  #searches = 0
  #atStart: AnswerUsage = { usage: { input_tokens: 0, output_tokens: 0 } }
  #usage: AnswerUsage | undefined
  #finish: FinishEvent | undefined

  constructor(context: EncodeContext) {
    this.#context = context
    this.#opening = textBlock(context, '')
  }

  push(event: GenerateEvent): Frame[] {
    const out: Frame[] = []
    if (event.type === 'start') this.#start(out, event)
    else {
      this.#start(out, { model: this.#context.model, input_tokens: 0 })
      this.#content(out, event)
    }
    return out
  }

  #start(out: Frame[], event: Omit<StartEvent, 'type'>): void {
    if (this.#hasStarted) return
    this.#hasStarted = true
    const usage = event.usage ?? { input_tokens: event.input_tokens, output_tokens: 1 }
    this.#atStart = { usage, native: event.native_usage }
    const empty = { content: [], stop_reason: null, stop_sequence: null }
    const start = { type: 'message_start', message: envelope(this.#context, event.model, empty, this.#atStart) }
    out.push(frame(start))
  }

  #content(out: Frame[], event: Exclude<GenerateEvent, { type: 'start' }>): void {
    switch (event.type) {
      case 'text':
        return this.#text(out, event.text)
      case 'refusal':
        this.#hasRefusal = true
        return this.#text(out, event.text)
      case 'reasoning':
        if (event.redacted !== undefined) {
          this.#blocks.whole(out, { type: 'redacted_thinking', data: event.redacted })
        }
        return this.#blocks.thinking(out, event.text, event.signature)
      case 'tool_call':
        return this.#toolCall(out, event)
      case 'native':
        return this.#nativeContent(out, event)
      case 'tool_arguments':
        return this.#blocks.argumentsOf(out, event.call, event.text)
      case 'hosted_call':
        this.#searches++
        return this.#blocks.whole(out, searchBlock(this.#context.call_id, event))
      case 'hosted_result':
        return this.#blocks.whole(out, searchResultBlock(this.#context.call_id, event))
      case 'cut':
        return this.#blocks.cut()
      case 'finish':
        this.#finish = event
        return this.#blocks.finish(out)
      case 'usage':
        this.#usage = { usage: event.usage, native: event.native_usage }
    }
  }

  #text(out: Frame[], text: string): void {
    this.#blocks.text(out, text, this.#opening)
  }

  #toolCall(out: Frame[], { call, id, name, extra }: Extract<GenerateEvent, { type: 'tool_call' }>): void {
    this.#hasCalls = true
    const callId = id || makeCallId('toolu_', this.#context.call_id, 0, call)
    this.#blocks.tool(out, call, toolBlock(this.#context, callId, name, {}, extra))
  }

  #nativeContent(out: Frame[], event: Extract<GenerateEvent, { type: 'native' }>): void {
    const content = this.#native.read(event)
    if (content?.type === 'block') this.#blocks.whole(out, content.block)
    else if (content?.type === 'text') this.#blocks.openText(out, { ...this.#opening, ...content.fields, text: '' })
    else if (content) for (const each of content.citations) this.#blocks.citation(out, each, this.#opening)
  }

  end(): Frame[] {
    const finish = this.#finish
    if (finish === undefined) throw unfinished()
    const reason = stopReason(finish, this.#hasCalls, this.#hasRefusal)
    const delta = {
      stop_reason: reason,
      stop_sequence: stopSequence(finish, reason),
      ...(isNewer(this.#context) ? { stop_details: stopDetails(reason), container: null } : {}),
      ...this.#native.delta,
    }
    const { usage } = this.#atStart
    const all = { ...(this.#usage ?? { usage: { ...usage, output_tokens: 0 } }), searches: this.#searches }
    const ended = {
      type: 'message_delta',
      delta,
      usage: deltaUsage(this.#context, all, this.#atStart),
      ...this.#native.beside,
    }
    return [frame(ended), frame({ type: 'message_stop' })]
  }
}

/** A ping, which keeps the connection alive. As in Anthropic's API, one ping follows the start of the first block. */
const PING: Frame = { event: 'ping', data: '{"type":"ping"}' }

function frame(data: { type: string }): Frame {
  return { event: data.type, data: JSON.stringify(data) }
}

/**
 * The content blocks of one stream of the Messages API. Blocks follow each other, each with a start, deltas and a stop (docs/internals/protocol.md,
 * Messages streams).
 *
 * Engines may interleave blocks, as the chat format permits for tool calls. This stream has only one open block. Deltas of the open block are sent at
 * once, and deltas of other blocks are buffered until their block is opened. A text block ends when another block begins. A tool call ends when its
 * arguments are a complete JSON object.
 *
 * The length of the answer limits the size of the buffer. Each method appends its frames to `out`.
 */
class BlockStream {
  readonly #calls = new Map<number, Block>()
  readonly #waiting: Block[] = []
  #current: Block | undefined
  #isCut = false
  #index = 0

  /**
   * Adds a piece of text.
   *
   * @param opening The block to open if the last block is no text
   */
  text(out: Frame[], text: string, opening: OutputBlock): void {
    if (text !== '') this.#feed(out, this.#textBlock(out, opening), text)
  }

  openText(out: Frame[], opening: OutputBlock): void {
    this.#append(out, new Block('text', opening))
  }

  citation(out: Frame[], citation: unknown, opening: OutputBlock): void {
    this.#feed(out, this.#textBlock(out, opening), { type: 'citations_delta', citation })
  }

  /** Adds a piece of reasoning. A signature ends its block, so later reasoning begins another block. */
  thinking(out: Frame[], text: string, signature: string | undefined): void {
    if (text === '' && signature === undefined) return
    const last = this.#last()
    const isOpen = last?.kind === 'thinking' && last.signature === ''
    const block = isOpen ? last : new Block('thinking', { type: 'thinking', thinking: '', signature: '' })
    block.signature += signature ?? ''
    if (!isOpen) this.#append(out, block)
    if (text !== '') this.#feed(out, block, text)
  }

  tool(out: Frame[], call: number, opening: OutputBlock): void {
    const block = new Block('tool', opening)
    this.#calls.set(call, block)
    this.#append(out, block)
  }

  argumentsOf(out: Frame[], call: number, text: string): void {
    const block = this.#calls.get(call)
    if (block) this.#feed(out, block, text)
  }

  /** Adds a complete block. The input of a tool is sent as a delta, because clients read the input only from deltas. */
  whole(out: Frame[], value: OutputBlock): void {
    const input = value.type.endsWith('tool_use') && 'input' in value ? value.input : undefined
    if (typeof input !== 'object' || input === null || Object.keys(input).length === 0) {
      return this.#append(out, new Block('whole', value))
    }
    const block = new Block('whole', { ...value, input: {} } as OutputBlock)
    this.#append(out, block)
    this.#feed(out, block, { type: 'input_json_delta', partial_json: JSON.stringify(input) })
  }

  /** Makes the next text begin a new block. After a `cut` event, the engine starts the interrupted output again from its beginning. */
  cut(): void {
    this.#isCut = true
  }

  finish(out: Frame[]): void {
    this.#advance(out, true)
    this.#current?.stop(out)
    this.#current = undefined
  }

  #textBlock(out: Frame[], opening: OutputBlock): Block {
    const last = this.#last()
    if (last?.kind === 'text') return last
    const block = new Block('text', opening)
    this.#append(out, block)
    return block
  }

  #last(): Block | undefined {
    return this.#isCut ? undefined : (this.#waiting.at(-1) ?? this.#current)
  }

  #append(out: Frame[], block: Block): void {
    this.#isCut = false
    this.#waiting.push(block)
    this.#advance(out, false)
  }

  #feed(out: Frame[], block: Block, piece: string | Delta): void {
    const delta = typeof piece === 'string' ? block.take(piece) : piece
    if (delta === '') return
    if (block !== this.#current) return block.wait(delta)
    block.delta(out, delta)
    if (this.#waiting.length > 0) this.#advance(out, false)
  }

  /** If the open block is complete, closes it and opens the next buffered block. Repeats this until an open block is incomplete. */
  #advance(out: Frame[], isForced: boolean): void {
    while (this.#waiting.length > 0 && (isForced || this.#current === undefined || this.#current.isOver())) {
      this.#current?.stop(out)
      this.#current = this.#waiting.shift() as Block
      this.#current.start(out, this.#index, this.#index === 0)
      this.#index++
    }
  }
}

type Kind = 'text' | 'thinking' | 'tool' | 'whole'

interface Delta {
  readonly type: string
  readonly [field: string]: unknown
}

const DELTAS = {
  text: ['text_delta', 'text'],
  thinking: ['thinking_delta', 'thinking'],
  tool: ['input_json_delta', 'partial_json'],
  whole: ['', ''],
} as const

/** One block and its frames. The constant part of a delta is serialized once per block. */
class Block {
  readonly kind: Kind
  signature = ''
  readonly #opening: OutputBlock
  readonly #characters = new SurrogateBuffer()
  readonly #pending: (string | Delta)[] = []
  #index = 0
  #prefix = ''
  #input = ''

  constructor(kind: Kind, opening: OutputBlock) {
    this.kind = kind
    this.#opening = opening
  }

  /** Returns the part of the text that may be sent now. The first half of a surrogate pair at the end waits for the second half. */
  take(text: string): string {
    const whole = this.#characters.push(text)
    if (this.kind === 'tool') this.#input += whole
    return whole
  }

  wait(delta: string | Delta): void {
    const last = this.#pending.at(-1)
    if (typeof delta === 'string' && typeof last === 'string') this.#pending[this.#pending.length - 1] = last + delta
    else this.#pending.push(delta)
  }

  isOver(): boolean {
    if (this.kind !== 'tool') return true
    return this.#input.trimEnd().endsWith('}') && parseInput(this.#input) !== undefined
  }

  start(out: Frame[], index: number, hasPing: boolean): void {
    this.#index = index
    const [type, field] = DELTAS[this.kind]
    this.#prefix = `{"type":"content_block_delta","index":${index},"delta":{"type":"${type}","${field}":`
    const start = { type: 'content_block_start', index, content_block: this.#opening }
    out.push(frame(start))
    if (hasPing) out.push(PING)
    for (const delta of this.#pending.splice(0)) this.delta(out, delta)
  }

  delta(out: Frame[], delta: string | Delta): void {
    if (typeof delta !== 'string') out.push(this.#frame(delta))
    else out.push({ event: 'content_block_delta', data: `${this.#prefix + JSON.stringify(delta)}}}` })
  }

  stop(out: Frame[]): void {
    const rest = this.#characters.flush()
    if (rest !== '') this.delta(out, rest)
    if (this.kind === 'thinking') out.push(this.#frame({ type: 'signature_delta', signature: this.signature }))
    const stop = { type: 'content_block_stop', index: this.#index }
    out.push(frame(stop))
  }

  #frame(delta: Delta): Frame {
    const data = { type: 'content_block_delta', index: this.#index, delta }
    return frame(data)
  }
}
