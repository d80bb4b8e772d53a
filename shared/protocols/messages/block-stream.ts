import type { OutputBlock } from '#schemas/messages.ts'
import { WholeCharacters } from '#shared/whole-characters.ts'
import { parseInput } from './encode.ts'

/**
 * The content blocks of one messages stream: start, deltas, stop, strictly one after another (contract C.5).
 *
 * Engines may let blocks overlap, as the chat format allows for tool calls. Then one block is open, its deltas go out at
 * once, and the others wait with theirs. A text is over when anything else begins; a tool call when its arguments spell
 * a whole object. What waits is bounded by the answer's own length.
 */
export class BlockStream {
  readonly #onStart: () => string
  readonly #calls = new Map<number, Block>()
  readonly #waiting: Block[] = []
  #current: Block | undefined
  #index = 0

  /** @param onStart gives what to write right after each block's start */
  constructor(onStart: () => string) {
    this.#onStart = onStart
  }

  /** Frames for a piece of text; `open` makes the block if it begins one. */
  text(text: string, open: () => OutputBlock): string {
    if (text === '') return ''
    const last = this.#last()
    if (last?.kind === 'text') return this.#feed(last, text)
    return this.#appendAndFeed(new Block('text', open()), text)
  }

  /** Frames for a piece of thought. A signature closes its block: thoughts after it begin another one. */
  thinking(text: string, signature: string | undefined): string {
    if (text === '' && signature === undefined) return ''
    const last = this.#last()
    const isOpen = last?.kind === 'thinking' && (last.signature === '' || text === '')
    const block = isOpen ? last : new Block('thinking', { type: 'thinking', thinking: '', signature: '' })
    block.signature += signature ?? ''
    return isOpen ? this.#feed(block, text) : this.#appendAndFeed(block, text)
  }

  /** Frames for a thought that only its model can read. */
  redacted(data: string): string {
    return this.#append(new Block('redacted', { type: 'redacted_thinking', data }))
  }

  /** Frames for the start of a tool call. */
  tool(call: number, opening: OutputBlock): string {
    const block = new Block('tool', opening)
    this.#calls.set(call, block)
    return this.#append(block)
  }

  /** Frames for a piece of a call's arguments; none for a call that never began. */
  argumentsOf(call: number, text: string): string {
    const block = this.#calls.get(call)
    return block === undefined ? '' : this.#feed(block, text)
  }

  /** Frames that end all blocks. */
  finish(): string {
    const frames = this.#advance(true) + this.#closeCurrent()
    this.#current = undefined
    return frames
  }

  #last(): Block | undefined {
    return this.#waiting.at(-1) ?? this.#current
  }

  #appendAndFeed(block: Block, text: string): string {
    return this.#append(block) + this.#feed(block, text)
  }

  #append(block: Block): string {
    this.#waiting.push(block)
    return this.#advance(false)
  }

  #feed(block: Block, text: string): string {
    const whole = block.take(text)
    if (whole === '') return ''
    if (block !== this.#current) {
      block.pending += whole
      return ''
    }
    const frame = block.delta(whole)
    return this.#waiting.length === 0 ? frame : frame + this.#advance(false)
  }

  /** Goes on to the blocks that wait, as far as the open one is over. */
  #advance(isForced: boolean): string {
    let frames = ''
    while (this.#waiting.length > 0 && (isForced || this.#current === undefined || this.#current.isOver())) {
      frames += this.#closeCurrent()
      this.#current = this.#waiting.shift() as Block
      frames += this.#current.start(this.#index++) + this.#onStart()
      if (this.#current.pending !== '') frames += this.#current.delta(this.#current.pending)
      this.#current.pending = ''
    }
    return frames
  }

  #closeCurrent(): string {
    return this.#current?.stop() ?? ''
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

/** One block and its frames. All of a delta's frame but the text is made once, at the start. */
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

  start(index: number): string {
    this.#index = index
    const [type, field] = DELTAS[this.kind]
    const head = 'event: content_block_delta\ndata: {"type":"content_block_delta"'
    this.#prefix = `${head},"index":${index},"delta":{"type":"${type}","${field}":`
    const start = { type: 'content_block_start', index, content_block: this.#opening }
    return `event: content_block_start\ndata: ${JSON.stringify(start)}\n\n`
  }

  delta(text: string): string {
    return `${this.#prefix + JSON.stringify(text)}}}\n\n`
  }

  stop(): string {
    const rest = this.#characters.flush()
    const last = rest === '' ? '' : this.delta(rest)
    const end = `event: content_block_stop\ndata: {"type":"content_block_stop","index":${this.#index}}\n\n`
    return last + (this.kind === 'thinking' ? this.#signatureDelta() : '') + end
  }

  #signatureDelta(): string {
    const delta = { type: 'signature_delta', signature: this.signature }
    const data = { type: 'content_block_delta', index: this.#index, delta }
    return `event: content_block_delta\ndata: ${JSON.stringify(data)}\n\n`
  }
}
