import type { GenerateEvent, Logprob } from '#schemas/generate.ts'
import type { FunctionCallItem, OutputContent, OutputItem, ReasoningItem } from '#schemas/responses/response.ts'
import { WholeCharacters } from '#shared/whole-characters.ts'
import { sealReasoning } from './sealed.ts'

/** An event of the stream, but for its number. */
export interface ItemEvent {
  readonly type: string
  readonly [field: string]: unknown
}

/** What an open item says of itself; each call adds its events to `out`. */
export interface OpenItem {
  readonly item: OutputItem
  /** Ends it. @param isCut The answer ended by a limit. */
  close(out: ItemEvent[], isCut: boolean): void
}

/** Opens the message that what the model says goes into: parts of text and of refusal, one after another. */
export class OpenMessage implements OpenItem {
  readonly item: Extract<OutputItem, { type: 'message' }>
  readonly #index: number
  readonly #characters = new WholeCharacters()

  constructor(out: ItemEvent[], id: string, index: number) {
    this.item = { id, type: 'message', status: 'in_progress', role: 'assistant', content: [] }
    this.#index = index
    out.push({ type: 'response.output_item.added', output_index: index, item: { ...this.item, content: [] } })
  }

  text(out: ItemEvent[], text: string, logprobs: readonly Logprob[] = []): void {
    const whole = this.#characters.push(text)
    if (whole === '' && logprobs.length === 0) return
    const part = this.#part(out, 'output_text')
    if (part.type !== 'output_text') return
    part.text += whole
    for (const logprob of logprobs) part.logprobs.push(logprob)
    out.push({ type: 'response.output_text.delta', ...this.#place(), delta: whole, logprobs })
  }

  refusal(out: ItemEvent[], text: string): void {
    const whole = this.#characters.push(text)
    if (whole === '') return
    const part = this.#part(out, 'refusal')
    if (part.type !== 'refusal') return
    part.refusal += whole
    out.push({ type: 'response.refusal.delta', ...this.#place(), delta: whole })
  }

  close(out: ItemEvent[], isCut: boolean): void {
    this.#closePart(out)
    this.item.status = isCut ? 'incomplete' : 'completed'
    out.push({ type: 'response.output_item.done', output_index: this.#index, item: this.item })
  }

  #part(out: ItemEvent[], type: OutputContent['type']): OutputContent {
    const last = this.item.content.at(-1)
    if (last?.type === type) return last
    this.#closePart(out)
    const part: OutputContent =
      type === 'refusal' ? { type, refusal: '' } : { type, text: '', annotations: [], logprobs: [] }
    this.item.content.push(part)
    out.push({ type: 'response.content_part.added', ...this.#place(), part: structuredClone(part) })
    return part
  }

  #closePart(out: ItemEvent[]): void {
    const part = this.item.content.at(-1)
    if (!part) return
    const rest = this.#characters.flush()
    if (part.type === 'refusal') {
      part.refusal += rest
      out.push({ type: 'response.refusal.done', ...this.#place(), refusal: part.refusal })
    } else {
      part.text += rest
      const { text, logprobs } = part
      out.push({ type: 'response.output_text.done', ...this.#place(), text, logprobs })
    }
    out.push({ type: 'response.content_part.done', ...this.#place(), part })
  }

  #place() {
    return { item_id: this.item.id, output_index: this.#index, content_index: this.item.content.length - 1 }
  }
}

/** What the words of a thought are called, where they stand as they came and where as a summary. */
const THOUGHT = {
  content: { event: 'response.reasoning_text', part: 'response.content_part', type: 'reasoning_text' },
  summary: {
    event: 'response.reasoning_summary_text',
    part: 'response.reasoning_summary_part',
    type: 'summary_text',
  },
} as const

/** A thought. A signature closes it: what is thought after it is another one. */
export class OpenReasoning implements OpenItem {
  readonly item: ReasoningItem
  readonly #index: number
  readonly #place: keyof typeof THOUGHT
  readonly #characters = new WholeCharacters()
  #text = ''
  #signature: string | undefined
  #redacted: string | undefined

  constructor(out: ItemEvent[], id: string, index: number, summarizes: boolean) {
    this.#index = index
    this.#place = summarizes ? 'summary' : 'content'
    this.item = { id, type: 'reasoning', status: 'in_progress', summary: [] }
    out.push({ type: 'response.output_item.added', output_index: index, item: { ...this.item, summary: [] } })
  }

  /** Whether a further piece belongs to it. */
  takes({ text, redacted }: Extract<GenerateEvent, { type: 'reasoning' }>): boolean {
    if (redacted !== undefined || this.#redacted !== undefined) return false
    return this.#signature === undefined || text === ''
  }

  push(out: ItemEvent[], event: Extract<GenerateEvent, { type: 'reasoning' }>): void {
    if (event.signature !== undefined) this.#signature = (this.#signature ?? '') + event.signature
    this.#redacted = event.redacted
    const delta = this.#characters.push(event.text)
    if (delta === '') return
    const { event: name, part } = THOUGHT[this.#place]
    if (this.#text === '') out.push({ type: `${part}.added`, ...this.#at, part: this.#part('') })
    this.#text += delta
    out.push({ type: `${name}.delta`, ...this.#at, delta })
  }

  close(out: ItemEvent[], isCut: boolean): void {
    this.#text += this.#characters.flush()
    const { event: name, part } = THOUGHT[this.#place]
    if (this.#text !== '') {
      const whole = this.#part(this.#text)
      out.push(
        { type: `${name}.done`, ...this.#at, text: this.#text },
        { type: `${part}.done`, ...this.#at, part: whole },
      )
      Object.assign(this.item, { [this.#place]: [whole] })
    }
    const sealed = sealReasoning(this.#signature, this.#redacted)
    if (sealed !== undefined) this.item.encrypted_content = sealed
    this.item.status = isCut ? 'incomplete' : 'completed'
    out.push({ type: 'response.output_item.done', output_index: this.#index, item: this.item })
  }

  #part(text: string) {
    return { type: THOUGHT[this.#place].type, text }
  }

  get #at() {
    const at = { item_id: this.item.id, output_index: this.#index }
    return this.#place === 'summary' ? { ...at, summary_index: 0 } : { ...at, content_index: 0 }
  }
}

/** A call of a function; its arguments may come in between those of others. */
export class OpenCall implements OpenItem {
  readonly item: FunctionCallItem
  readonly #index: number
  readonly #characters = new WholeCharacters()

  constructor(out: ItemEvent[], item: Pick<FunctionCallItem, 'id' | 'call_id' | 'name'>, index: number) {
    this.#index = index
    const { id, call_id, name } = item
    this.item = { id, type: 'function_call', status: 'in_progress', call_id, name: name.toWellFormed(), arguments: '' }
    out.push({ type: 'response.output_item.added', output_index: index, item: { ...this.item } })
  }

  push(out: ItemEvent[], text: string): void {
    const delta = this.#characters.push(text)
    if (delta === '') return
    this.item.arguments += delta
    out.push({ type: 'response.function_call_arguments.delta', ...this.#at, delta })
  }

  /** An engine may give no text for a call without arguments; what clients get must parse. */
  close(out: ItemEvent[], isCut: boolean): void {
    this.item.arguments += this.#characters.flush()
    if (this.item.arguments === '' && !isCut) this.push(out, '{}')
    const { arguments: whole, name } = this.item
    this.item.status = isCut ? 'incomplete' : 'completed'
    out.push(
      { type: 'response.function_call_arguments.done', ...this.#at, name, arguments: whole },
      { type: 'response.output_item.done', output_index: this.#index, item: this.item },
    )
  }

  get #at() {
    return { item_id: this.item.id, output_index: this.#index }
  }
}
