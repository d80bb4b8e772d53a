import type { GenerateEvent, GenerateRequest } from '#schemas/kinds/generate.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { objectIn } from '#shared/json/object.ts'
import { nativeEvent } from '#shared/kinds/encode.ts'
import { SurrogateBuffer } from '#shared/lib/buffers.ts'

/**
 * Converts the content blocks of one message into events.
 *
 * The API sends one block after another, but some servers open a block before they close the previous block. A text event does not name its block, so
 * the events of a block wait until all earlier blocks are closed. Blocks are ordered by their starts. If too many blocks are open or too many
 * characters wait, then the oldest block is closed early.
 *
 * A caller of the Messages API also gets `native` events, which carry unknown blocks and fields of a text, such as citations. A native field `type`
 * marks the start of a text block, so that two consecutive texts stay two blocks.
 */
export class ContentBlocks {
  readonly #request: GenerateRequest
  readonly #ids = new Set<string>()
  readonly #blocks: Slot[] = []
  #count = 0
  #waitingChars = 0
  #lastType: string | undefined
  calls = 0
  hasOutput = false

  constructor(request: GenerateRequest) {
    this.#request = request
  }

  start(index: number | undefined, fields: BlockFields, out: GenerateEvent[]): void {
    if (++this.#count > BLOCKS_MAX) {
      throw answerError(this.#request.model, `sent more than ${BLOCKS_MAX} content blocks`)
    }
    const key = index ?? this.#blocks.length
    this.stop(key, out)
    const slot: Slot = { index: key, events: [], block: undefined, isClosed: false }
    this.#blocks.push(slot)
    this.#into(slot, out, (events) => {
      slot.block = this.#open(fields, events)
    })
    if (this.#blocks.length > OPEN_BLOCKS_MAX) this.#closeFirst(out)
  }

  read(index: number | undefined, delta: BlockFields, out: GenerateEvent[]): void {
    const last = this.#blocks.findLast(({ isClosed }) => !isClosed)
    const slot = index === undefined ? last : this.#find(index)
    if (slot) return this.#into(slot, out, (events) => slot.block?.read(delta, events))
    if (typeof delta.text === 'string') this.start(index, { type: 'text', text: delta.text }, out)
    else if (typeof delta.thinking === 'string') {
      this.start(index, { type: 'thinking', thinking: delta.thinking }, out)
    }
  }

  stop(index: number | undefined, out: GenerateEvent[]): void {
    const slot = index === undefined ? this.#blocks.findLast(({ isClosed }) => !isClosed) : this.#find(index)
    if (slot) this.#close(slot, out)
  }

  stopAll(out: GenerateEvent[]): void {
    while (this.#blocks.length > 0) this.#closeFirst(out)
  }

  #find(index: number): Slot | undefined {
    return this.#blocks.find((slot) => slot.index === index && !slot.isClosed)
  }

  /** Collects the events of a content block. While an earlier block is open, the events are buffered. Otherwise they are emitted at once. */
  #into(slot: Slot, out: GenerateEvent[], step: (events: GenerateEvent[]) => void): void {
    const isFirst = slot === this.#blocks[0]
    const events = isFirst ? out : slot.events
    const from = events.length
    step(events)
    if (events.length > from) this.hasOutput ||= events.slice(from).some(isVisible)
    if (isFirst) return
    for (const event of events.slice(from)) this.#waitingChars += EVENT_CHARS + textLength(event)
    if (this.#waitingChars > WAITING_CHARS_MAX) this.#closeFirst(out)
  }

  #close(slot: Slot, out: GenerateEvent[]): void {
    this.#into(slot, out, (events) => slot.block?.close(events))
    slot.isClosed = true
    while (this.#blocks[0]?.isClosed) {
      this.#blocks.shift()
      this.#release(this.#blocks[0], out)
    }
  }

  #closeFirst(out: GenerateEvent[]): void {
    const [first] = this.#blocks
    if (first) this.#close(first, out)
  }

  #release(slot: Slot | undefined, out: GenerateEvent[]): void {
    for (const event of slot?.events.splice(0) ?? []) {
      this.#waitingChars -= EVENT_CHARS + textLength(event)
      out.push(event)
    }
  }

  #open(fields: BlockFields, events: GenerateEvent[]): OpenBlock {
    const keepsFields = this.#request.dialect === 'anthropic'
    const before = this.#lastType
    this.#lastType = typeof fields.type === 'string' ? fields.type : undefined
    switch (fields.type) {
      case 'text':
        return new TextBlock(fields, before === 'text', keepsFields, events)
      case 'thinking':
        return new ThinkingBlock(fields, events)
      case 'redacted_thinking':
        events.push({ type: 'reasoning', choice: 0, text: '', redacted: stringOf(fields.data) })
        return NOTHING
      case 'tool_use':
        return new ToolBlock(this.#call(fields), keepsFields, events)
      default:
        this.hasOutput = true
        return new NativeBlock(fields, keepsFields, this.#request.model)
    }
  }

  /**
   * Returns the fields of a tool call. In the next request, the API would reject a repeated id or a call without a name. A repeated id is therefore
   * cleared, so that the encoder generates one, and a call without a name is an error.
   */
  #call(fields: BlockFields): CallFields {
    const { id, name } = fields
    if (typeof name !== 'string' || name === '') {
      throw answerError(this.#request.model, 'called a tool without a name')
    }
    const isNew = typeof id === 'string' && !this.#ids.has(id)
    if (isNew) this.#ids.add(id)
    return { ...fields, id: isNew ? id : '', name, call: this.calls++ }
  }
}

/** Maximum blocks per message, and maximum blocks that are open at the same time. */
const BLOCKS_MAX = 4_096
const OPEN_BLOCKS_MAX = 1_000
const WAITING_CHARS_MAX = 4 * 1024 * 1024
const EVENT_CHARS = 100
/** Maximum characters of a native block, which is a block of an unknown type. Such a block is buffered until it is complete. */
const NATIVE_CHARS_MAX = 16 * 1024 * 1024

export type BlockFields = Readonly<Record<string, unknown>>
type CallFields = BlockFields & { readonly id: string; readonly name: string; readonly call: number }

interface Slot {
  readonly index: number
  readonly events: GenerateEvent[]
  block: OpenBlock | undefined
  isClosed: boolean
}

interface OpenBlock {
  read(delta: BlockFields, out: GenerateEvent[]): void
  close(out: GenerateEvent[]): void
}

const NOTHING: OpenBlock = { read: () => {}, close: () => {} }

function textLength(event: GenerateEvent): number {
  return 'text' in event ? event.text.length : 0
}

function isVisible(event: GenerateEvent): boolean {
  if (event.type === 'reasoning') return event.text !== '' || (event.signature ?? event.redacted) !== undefined
  return event.type === 'tool_call' || (event.type === 'text' && event.text !== '')
}

class TextBlock implements OpenBlock {
  readonly #text = new SurrogateBuffer()
  readonly #keepsFields: boolean
  /** Fields of the block's `content_block_start` event, buffered until the block has content. */
  #opening: Record<string, unknown> | undefined
  #isBegun = false

  constructor(fields: BlockFields, isBoundary: boolean, keepsFields: boolean, out: GenerateEvent[]) {
    this.#keepsFields = keepsFields
    const { type: _, text, ...rest } = fields
    const { citations, ...others } = nonNull(rest)
    if (isBoundary || Array.isArray(citations)) {
      this.#opening = { ...others, ...(Array.isArray(citations) && { citations: [] }) }
    } else if (Object.keys(others).length > 0) this.#opening = others
    this.#push(stringOf(text), out)
    if (Array.isArray(citations)) for (const citation of citations) this.#field({ citations: [citation] }, out)
  }

  read(delta: BlockFields, out: GenerateEvent[]): void {
    const { type: _, text, citation, citations, ...rest } = delta
    if (text !== undefined) this.#push(stringOf(text), out)
    if (citation !== undefined && citation !== null) this.#field({ citations: [citation] }, out)
    if (Array.isArray(citations)) this.#field({ citations }, out)
    const others = nonNull(rest)
    if (Object.keys(others).length > 0) this.#field(others, out)
  }

  close(): void {}

  #push(piece: string, out: GenerateEvent[]): void {
    const text = this.#text.push(piece)
    if (text === '') return
    this.#begin(out, false)
    out.push({ type: 'text', choice: 0, text })
  }

  #field(fields: Record<string, unknown>, out: GenerateEvent[]): void {
    this.#begin(out, true)
    if (this.#keepsFields) out.push(nativeEvent('anthropic', 'text', fields))
  }

  #begin(out: GenerateEvent[], isForced: boolean): void {
    if (this.#isBegun) return
    this.#isBegun = true
    if (!this.#keepsFields || (this.#opening === undefined && !isForced)) return
    out.push(nativeEvent('anthropic', 'text', { type: 'text', ...this.#opening }))
  }
}

class ThinkingBlock implements OpenBlock {
  readonly #text = new SurrogateBuffer()
  #signature = ''

  constructor(fields: BlockFields, out: GenerateEvent[]) {
    this.read(fields, out)
  }

  read({ thinking, text, signature }: BlockFields, out: GenerateEvent[]): void {
    const whole = this.#text.push(stringOf(thinking ?? text))
    if (whole !== '') out.push({ type: 'reasoning', choice: 0, text: whole })
    this.#signature += stringOf(signature)
  }

  close(out: GenerateEvent[]): void {
    if (this.#signature !== '') out.push({ type: 'reasoning', choice: 0, text: '', signature: this.#signature })
  }
}

class ToolBlock implements OpenBlock {
  readonly #call: number
  readonly #input: unknown
  readonly #text = new SurrogateBuffer()
  #hasArguments = false

  constructor(fields: CallFields, keepsFields: boolean, out: GenerateEvent[]) {
    const { type: _, id, name, call, input, ...rest } = fields
    const extra = nonNull(rest)
    const hasExtra = keepsFields && Object.keys(extra).length > 0
    this.#call = call
    this.#input = input
    out.push({ type: 'tool_call', choice: 0, call, id, name, ...(hasExtra && { extra }) })
  }

  read({ partial_json }: BlockFields, out: GenerateEvent[]): void {
    const piece =
      typeof partial_json === 'object' && partial_json !== null ? JSON.stringify(partial_json) : partial_json
    const text = this.#text.push(stringOf(piece))
    if (text === '') return
    this.#hasArguments = true
    out.push({ type: 'tool_arguments', choice: 0, call: this.#call, text })
  }

  /**
   * Emits the arguments of a tool call that had no argument deltas. In this case the block itself contains the arguments, for example in an answer
   * that is not streamed.
   */
  close(out: GenerateEvent[]): void {
    if (this.#hasArguments) return
    const input = this.#input ?? {}
    const text = typeof input === 'string' ? input.trim() || '{}' : JSON.stringify(input)
    out.push({ type: 'tool_arguments', choice: 0, call: this.#call, text })
  }
}

/** A block of a type that the internal form does not represent. The deltas are merged, and a caller of the same API receives the whole block. */
class NativeBlock implements OpenBlock {
  readonly #keeps: boolean
  readonly #model: string
  readonly #value: Record<string, unknown>
  #input: string[] = []
  #chars = 0

  constructor(fields: BlockFields, keeps: boolean, model: string) {
    this.#keeps = keeps
    this.#model = model
    this.#value = { ...fields }
  }

  read({ type: _, partial_json, ...fields }: BlockFields): void {
    if (!this.#keeps) return
    this.#chars += stringOf(partial_json).length + (Object.keys(fields).length > 0 ? JSON.stringify(fields).length : 0)
    if (this.#chars > NATIVE_CHARS_MAX) throw answerError(this.#model, 'sent a content block that is too long')
    if (typeof partial_json === 'string') this.#input.push(partial_json)
    for (const [name, value] of Object.entries(fields)) {
      const known = this.#value[name]
      if (Array.isArray(known) && Array.isArray(value)) for (const each of value) known.push(each)
      else if (typeof known === 'string' && typeof value === 'string') this.#value[name] = known + value
      else if (value !== null || known === undefined) this.#value[name] = value
    }
  }

  close(out: GenerateEvent[]): void {
    if (!this.#keeps) return
    const json = this.#input.join('')
    const value = json === '' ? this.#value : { ...this.#value, input: objectIn(json) ?? json }
    out.push(nativeEvent('anthropic', 'item', value))
  }
}

function nonNull(fields: BlockFields): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null && value !== undefined))
}

function stringOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}
