import type { OutputBlock } from '#schemas/messages.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { SurrogateBuffer } from '#shared/surrogate-buffer.ts'
import { parseInput } from './encode.ts'

/** What keeps a connection alive, and follows the first block's start as upstream does it. */
const PING: Frame = { event: 'ping', data: '{"type":"ping"}' }

/** One event of the messages format: its name is always its type (docs/protocol.md, Event streams). */
export function frame(data: { type: string }): Frame {
  return { event: data.type, data: JSON.stringify(data) }
}

/**
 * The content blocks of one messages stream: start, deltas, stop, strictly one after another (docs/protocol.md,
 * Messages streams).
 *
 * Engines may let blocks overlap, as the chat format allows for tool calls. Then one block is open, its deltas go out at
 * once, and the others wait with theirs. A text is over when anything else begins; a tool call when its arguments spell
 * a whole object. What waits is bounded by the answer's own length. Each call adds what it says to `out`.
 */
export class BlockStream {
  readonly #calls = new Map<number, Block>()
  readonly #waiting: Block[] = []
  #current: Block | undefined
  #isCut = false
  #index = 0

  /** A piece of text. @param opening Of the block, if it begins one. */
  text(out: Frame[], text: string, opening: OutputBlock): void {
    if (text !== '') this.#feed(out, this.#textBlock(out, opening), text)
  }

  /** Begins a block of text next to one that is open. */
  openText(out: Frame[], opening: OutputBlock): void {
    this.#append(out, new Block('text', opening))
  }

  /** A citation of the text that is open. @param opening Of the block, if it begins one. */
  citation(out: Frame[], citation: unknown, opening: OutputBlock): void {
    this.#feed(out, this.#textBlock(out, opening), { type: 'citations_delta', citation })
  }

  /** A piece of thought. A signature closes its block: thoughts after it begin another one. */
  thinking(out: Frame[], text: string, signature: string | undefined): void {
    if (text === '' && signature === undefined) return
    const last = this.#last()
    const isOpen = last?.kind === 'thinking' && last.signature === ''
    const block = isOpen ? last : new Block('thinking', { type: 'thinking', thinking: '', signature: '' })
    block.signature += signature ?? ''
    if (!isOpen) this.#append(out, block)
    if (text !== '') this.#feed(out, block, text)
  }

  /** The start of a tool call. */
  tool(out: Frame[], call: number, opening: OutputBlock): void {
    const block = new Block('tool', opening)
    this.#calls.set(call, block)
    this.#append(out, block)
  }

  /** A piece of a call's arguments; nothing is said for a call that never began. */
  argumentsOf(out: Frame[], call: number, text: string): void {
    const block = this.#calls.get(call)
    if (block) this.#feed(out, block, text)
  }

  /** A block that is known as a whole. The input of a tool is sent as a delta, since clients join it from deltas. */
  whole(out: Frame[], value: OutputBlock): void {
    const input = value.type.endsWith('tool_use') && 'input' in value ? value.input : undefined
    if (typeof input !== 'object' || input === null || Object.keys(input).length === 0) {
      return this.#append(out, new Block('whole', value))
    }
    const block = new Block('whole', { ...value, input: {} } as OutputBlock)
    this.#append(out, block)
    this.#feed(out, block, { type: 'input_json_delta', partial_json: JSON.stringify(input) })
  }

  /** Text that follows begins a block: what was sent before is sent anew. */
  cut(): void {
    this.#isCut = true
  }

  /** Ends all blocks. */
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

  /** Goes on to the blocks that wait, as far as the open one is over. */
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

/** A delta other than a piece of the text that the kind of a block is made of. */
interface Delta {
  readonly type: string
  readonly [field: string]: unknown
}

/** Delta type and the field that holds its text. */
const DELTAS = {
  text: ['text_delta', 'text'],
  thinking: ['thinking_delta', 'thinking'],
  tool: ['input_json_delta', 'partial_json'],
  whole: ['', ''],
} as const

/** One block and its frames. All of a delta but the text is made once, at the start. */
class Block {
  readonly kind: Kind
  signature = ''
  readonly #opening: OutputBlock
  readonly #characters = new SurrogateBuffer()
  /** Deltas that wait for the block to be opened. */
  readonly #pending: (string | Delta)[] = []
  #index = 0
  #prefix = ''
  #input = ''

  constructor(kind: Kind, opening: OutputBlock) {
    this.kind = kind
    this.#opening = opening
  }

  /** The part of a text that may go out now. */
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
