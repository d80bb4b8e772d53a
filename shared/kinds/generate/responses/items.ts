import type { GenerateEvent, Logprob } from '#schemas/kinds/generate.ts'
import type {
  CustomCallItem,
  FunctionCallItem,
  NativeItem,
  OutputContent,
  OutputItem,
  ReasoningItem,
} from '#schemas/responses/response.ts'
import { objectIn } from '#shared/json/object.ts'
import { SurrogateBuffer } from '#shared/lib/buffers.ts'

export interface ItemEvent {
  readonly type: string
  readonly [field: string]: unknown
}

/** An output item that is still being written. Each method appends the stream events of its change to `out`. */
export interface OpenItem {
  readonly item: OutputItem
  close(out: ItemEvent[], isCut: boolean): void
}

/** The message item with the text of the answer. Parts of text and parts of refusal alternate. */
export class OpenMessage implements OpenItem {
  readonly item: Extract<OutputItem, { type: 'message' }>
  readonly #index: number
  readonly #characters = new SurrogateBuffer()

  constructor(out: ItemEvent[], id: string, index: number, fields: Readonly<Record<string, unknown>> = {}) {
    this.item = { ...fields, id, type: 'message', status: 'in_progress', role: 'assistant', content: [] }
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

  annotate(out: ItemEvent[], annotations: readonly unknown[]): void {
    const part = this.#part(out, 'output_text')
    if (part.type !== 'output_text') return
    for (const annotation of annotations) {
      const annotation_index = part.annotations.push(annotation) - 1
      out.push({ type: 'response.output_text.annotation.added', ...this.#place(), annotation_index, annotation })
    }
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

/** Names of the stream events and parts of reasoning. `content` is the full reasoning, and `summary` is a summary. */
const REASONING = {
  content: { event: 'response.reasoning_text', part: 'response.content_part', type: 'reasoning_text' },
  summary: {
    event: 'response.reasoning_summary_text',
    part: 'response.reasoning_summary_part',
    type: 'summary_text',
  },
} as const

type ReasoningEvent = Extract<GenerateEvent, { type: 'reasoning' }>

/** Text that other APIs put between the parts of a summary. The Responses API has separate parts, so the text is removed. */
const SUMMARY_SEPARATOR = '\n\n'

/**
 * A reasoning item. A signature ends the item, so later reasoning begins another item.
 *
 * An upstream with the Responses API states the summary part to which each text belongs. Text of any other engine forms a single part. This part is a
 * summary if the caller requested one, and otherwise the full reasoning.
 */
export class OpenReasoning implements OpenItem {
  readonly item: ReasoningItem
  readonly #index: number
  #place: keyof typeof REASONING
  readonly #characters = new SurrogateBuffer()
  #text = ''
  readonly #seals: boolean
  #summary: number | undefined
  #signature: string | undefined
  #redacted: string | undefined

  /**
   * @param summarizes Whether the caller requested a summary
   * @param seals Whether the caller requested `encrypted_content`
   */
  constructor(out: ItemEvent[], id: string, index: number, summarizes: boolean, seals: boolean) {
    this.#index = index
    this.#seals = seals
    this.#place = summarizes ? 'summary' : 'content'
    this.item = { id, type: 'reasoning', status: 'in_progress', summary: [] }
    out.push({ type: 'response.output_item.added', output_index: index, item: { ...this.item, summary: [] } })
  }

  takes({ text, redacted }: ReasoningEvent): boolean {
    if (redacted !== undefined || this.#redacted !== undefined) return false
    return this.#signature === undefined || text === ''
  }

  push(out: ItemEvent[], event: ReasoningEvent): void {
    if (event.signature !== undefined) this.#signature = (this.#signature ?? '') + event.signature
    this.#redacted = event.redacted
    const isNext = event.text !== '' && event.summary !== this.#summary
    if (isNext) this.#enterPart(out, event.summary)
    const text =
      isNext && event.text.startsWith(SUMMARY_SEPARATOR) ? event.text.slice(SUMMARY_SEPARATOR.length) : event.text
    const delta = this.#characters.push(text)
    if (delta === '') return
    const { event: name, part } = REASONING[this.#place]
    if (this.#text === '') out.push({ type: `${part}.added`, ...this.#at, part: this.#part('') })
    this.#text += delta
    out.push({ type: `${name}.delta`, ...this.#at, delta })
  }

  close(out: ItemEvent[], isCut: boolean): void {
    this.#closePart(out)
    const sealed = sealReasoning({ signature: this.#signature, redacted: this.#redacted, ...this.#ownSeal() })
    if (sealed !== undefined) this.item.encrypted_content = sealed
    this.item.status = isCut ? 'incomplete' : 'completed'
    out.push({ type: 'response.output_item.done', output_index: this.#index, item: this.item })
  }

  #ownSeal(): { text?: string } {
    const { summary, content = [] } = this.item
    const text = [...summary, ...content].map((part) => part.text).join(SUMMARY_SEPARATOR)
    const isSigned = this.#signature !== undefined || this.#redacted !== undefined
    return this.#seals && !isSigned && text !== '' ? { text } : {}
  }

  /**
   * Begins a part, and ends the part before it.
   *
   * @param summary Ordinal of the summary part. Undefined for full reasoning
   */
  #enterPart(out: ItemEvent[], summary: number | undefined): void {
    this.#closePart(out)
    this.#place = summary === undefined ? 'content' : 'summary'
    this.#summary = summary
  }

  #closePart(out: ItemEvent[]): void {
    this.#text += this.#characters.flush()
    if (this.#text === '') return
    const { event: name, part } = REASONING[this.#place]
    const whole = this.#part(this.#text)
    out.push(
      { type: `${name}.done`, ...this.#at, text: this.#text },
      { type: `${part}.done`, ...this.#at, part: whole },
    )
    // The array is extended in place, because copying it for each of many parts would take quadratic time.
    const parts: object[] = this.item[this.#place] ?? []
    parts.push(whole)
    Object.assign(this.item, { [this.#place]: parts })
    this.#text = ''
  }

  #part(text: string) {
    return { type: REASONING[this.#place].type, text }
  }

  get #at() {
    const at = { item_id: this.item.id, output_index: this.#index }
    const index = this.item[this.#place]?.length ?? 0
    return this.#place === 'summary' ? { ...at, summary_index: index } : { ...at, content_index: index }
  }
}

type CallFields = Readonly<Record<string, unknown>>

export class OpenCall implements OpenItem {
  readonly item: FunctionCallItem
  readonly #index: number
  readonly #characters = new SurrogateBuffer()

  constructor(
    out: ItemEvent[],
    item: Pick<FunctionCallItem, 'id' | 'call_id' | 'name'>,
    index: number,
    fields: CallFields = {},
  ) {
    this.#index = index
    const { id, call_id, name } = item
    const known = { id, type: 'function_call' as const, status: 'in_progress' as const, call_id, arguments: '' }
    this.item = { ...fields, ...known, name: name.toWellFormed() }
    out.push({ type: 'response.output_item.added', output_index: index, item: { ...this.item } })
  }

  push(out: ItemEvent[], text: string): void {
    const delta = this.#characters.push(text)
    if (delta === '') return
    this.item.arguments += delta
    out.push({ type: 'response.function_call_arguments.delta', ...this.#at, delta })
  }

  /** Ends the call. Clients parse the arguments of every call, so a call for which the engine sent no arguments gets `{}`. */
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

export class OpenCustomCall implements OpenItem {
  readonly item: CustomCallItem
  readonly #index: number
  readonly #characters = new SurrogateBuffer()

  constructor(
    out: ItemEvent[],
    item: Pick<CustomCallItem, 'id' | 'call_id' | 'name'>,
    index: number,
    fields: CallFields = {},
  ) {
    this.#index = index
    const { id, call_id, name } = item
    const known = { id, type: 'custom_tool_call' as const, status: 'in_progress' as const, call_id, input: '' }
    this.item = { ...fields, ...known, name: name.toWellFormed() }
    out.push({ type: 'response.output_item.added', output_index: index, item: { ...this.item } })
  }

  push(out: ItemEvent[], text: string): void {
    const delta = this.#characters.push(text)
    if (delta === '') return
    this.item.input += delta
    out.push({ type: 'response.custom_tool_call_input.delta', ...this.#at, delta })
  }

  close(out: ItemEvent[], isCut: boolean): void {
    this.item.input += this.#characters.flush()
    this.item.status = isCut ? 'incomplete' : 'completed'
    out.push(
      { type: 'response.custom_tool_call_input.done', ...this.#at, input: this.item.input },
      { type: 'response.output_item.done', output_index: this.#index, item: this.item },
    )
  }

  get #at() {
    return { item_id: this.item.id, output_index: this.#index }
  }
}

/**
 * An item that has no internal form, such as the call of an upstream's own tool. The stream events of the item are sent at once, and the item stays
 * as the upstream sent it.
 */
export class NativeOutput implements OpenItem {
  readonly item: NativeItem

  constructor(out: ItemEvent[], value: Readonly<Record<string, unknown>>, id: string, index: number) {
    this.item = { ...value, id: typeof value.id === 'string' ? value.id : id } as NativeItem
    out.push(
      { type: 'response.output_item.added', output_index: index, item: this.item },
      { type: 'response.output_item.done', output_index: index, item: this.item },
    )
  }

  close(): void {}
}

/*
 * The field `encrypted_content` of a reasoning item contains data from which the model restores its reasoning, such as a signature. Clients send the
 * content back with the item in the next request.
 *
 * Some clients (the AI SDK with `store: false`) drop reasoning items without this field. If the caller requests `reasoning.encrypted_content` and the
 * reasoning has no signature, then the field contains the text of the reasoning. The content is encoded but not encrypted.
 */

const PREFIX = 'sluice1.'

interface SealedThought {
  readonly signature?: string | undefined
  readonly redacted?: string | undefined
  readonly text?: string | undefined
}

export function sealReasoning({ signature, redacted, text }: SealedThought): string | undefined {
  if (signature === undefined && redacted === undefined && text === undefined) return undefined
  return PREFIX + Buffer.from(JSON.stringify({ signature, redacted, text })).toString('base64url')
}

export function isSealed(content: string): boolean {
  return content.startsWith(PREFIX)
}

/** Decodes `encrypted_content`. The result is empty if Sluice did not create the content, or if the content was changed. */
export function unsealReasoning(sealed: string | null | undefined): SealedThought {
  if (!sealed || !isSealed(sealed)) return {}
  const { signature, redacted, text } = objectIn(Buffer.from(sealed.slice(PREFIX.length), 'base64url').toString()) ?? {}
  return {
    ...(typeof signature === 'string' && { signature }),
    ...(typeof redacted === 'string' && { redacted }),
    ...(typeof text === 'string' && { text }),
  }
}
