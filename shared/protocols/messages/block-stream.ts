import type { OutputBlock } from '#schemas/messages.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { WholeCharacters } from '#shared/whole-characters.ts'
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
  #index = 0

  /** A piece of text. @param opening Of the block, if it begins one. */
  text(out: Frame[], text: string, opening: OutputBlock): void {
    if (text === '') return
    const last = this.#last()
    if (last?.kind === 'text') this.#feed(out, last, text)
    else this.#appendAndFeed(out, new Block('text', opening), text)
  }

  /** A piece of thought. A signature closes its block: thoughts after it begin another one. */
  thinking(out: Frame[], text: string, signature: string | undefined): void {
    if (text === '' && signature === undefined) return
    const last = this.#last()
    const isOpen = last?.kind === 'thinking' && (last.signature === '' || text === '')
    const block = isOpen ? last : new Block('thinking', { type: 'thinking', thinking: '', signature: '' })
    block.signature += signature ?? ''
    if (isOpen) this.#feed(out, block, text)
    else this.#appendAndFeed(out, block, text)
  }

  /** A thought that only its model can read. */
  redacted(out: Frame[], data: string): void {
    this.#append(out, new Block('redacted', { type: 'redacted_thinking', data }))
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

  /** Ends all blocks. */
  finish(out: Frame[]): void {
    this.#advance(out, true)
    this.#current?.stop(out)
    this.#current = undefined
  }

  #last(): Block | undefined {
    return this.#waiting.at(-1) ?? this.#current
  }

  #appendAndFeed(out: Frame[], block: Block, text: string): void {
    this.#append(out, block)
    this.#feed(out, block, text)
  }

  #append(out: Frame[], block: Block): void {
    this.#waiting.push(block)
    this.#advance(out, false)
  }

  #feed(out: Frame[], block: Block, text: string): void {
    const whole = block.take(text)
    if (whole === '') return
    if (block !== this.#current) {
      block.pending += whole
      return
    }
    block.delta(out, whole)
    if (this.#waiting.length > 0) this.#advance(out, false)
  }

  /** Goes on to the blocks that wait, as far as the open one is over. */
  #advance(out: Frame[], isForced: boolean): void {
    while (this.#waiting.length > 0 && (isForced || this.#current === undefined || this.#current.isOver())) {
      this.#current?.stop(out)
      this.#current = this.#waiting.shift() as Block
      this.#current.start(out, this.#index)
      if (this.#index++ === 0) out.push(PING)
      if (this.#current.pending !== '') this.#current.delta(out, this.#current.pending)
      this.#current.pending = ''
    }
  }
}

type Kind = 'text' | 'thinking' | 'redacted' | 'tool'

/** Delta type and the field that holds its text. */
const DELTAS = {
  text: ['text_delta', 'text'],
  thinking: ['thinking_delta', 'thinking'],
  redacted: ['', ''],
  tool: ['input_json_delta', 'partial_json'],
} as const

/** One block and its frames. All of a delta but the text is made once, at the start. */
class Block {
  readonly kind: Kind
  /** Deltas that wait for the block to be opened. */
  pending = ''
  signature = ''
  readonly #opening: OutputBlock
  readonly #characters = new WholeCharacters()
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

  isOver(): boolean {
    if (this.kind !== 'tool') return true
    return this.#input.trimEnd().endsWith('}') && parseInput(this.#input) !== undefined
  }

  start(out: Frame[], index: number): void {
    this.#index = index
    const [type, field] = DELTAS[this.kind]
    this.#prefix = `{"type":"content_block_delta","index":${index},"delta":{"type":"${type}","${field}":`
    const start = { type: 'content_block_start', index, content_block: this.#opening }
    out.push(frame(start))
  }

  delta(out: Frame[], text: string): void {
    out.push({ event: 'content_block_delta', data: `${this.#prefix + JSON.stringify(text)}}}` })
  }

  stop(out: Frame[]): void {
    const rest = this.#characters.flush()
    if (rest !== '') this.delta(out, rest)
    const index = this.#index
    const signed = { type: 'content_block_delta', index, delta: { type: 'signature_delta', signature: this.signature } }
    if (this.kind === 'thinking') out.push(frame(signed))
    const stop = { type: 'content_block_stop', index }
    out.push(frame(stop))
  }
}
