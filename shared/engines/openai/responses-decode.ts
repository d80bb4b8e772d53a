import type { FinishReason, GenerateEvent, GenerateRequest, NativeUsage, Usage } from '#schemas/kinds/generate.ts'
import type { AnswerDecoder } from '#shared/engines/upstream/answer.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { estimateInputTokens } from '#shared/engines/upstream/usage.ts'
import { nativeEvent } from '#shared/kinds/encode.ts'
import { SurrogateBuffer } from '#shared/lib/buffers.ts'
import type { ServiceError } from '#shared/lib/error.ts'
import { readLogprob, type WireLogprob } from './choice.ts'
import { signatureOf } from './responses-encode.ts'

interface WireUsage {
  input_tokens?: number
  output_tokens?: number
  input_tokens_details?: { cached_tokens?: number; cache_write_tokens?: number } | null
  output_tokens_details?: { reasoning_tokens?: number } | null
}

interface WirePart {
  type?: string
  text?: string
  refusal?: string
  annotations?: unknown[] | null
  logprobs?: WireLogprob[] | null
}

interface WireItem {
  type?: string
  id?: string
  call_id?: string
  name?: string
  arguments?: string | object | null
  input?: string | null
  content?: WirePart[] | string | null
  summary?: WirePart[] | null
  encrypted_content?: string | null
  [field: string]: unknown
}

interface WireResponse {
  status?: string
  output?: WireItem[]
  usage?: WireUsage | null
  incomplete_details?: { reason?: string } | null
  [field: string]: unknown
}

interface Frame {
  type: string
  response?: WireResponse
  item?: WireItem
  item_id?: string
  output_index?: number
  content_index?: number
  summary_index?: number
  delta?: string
  text?: string
  refusal?: string
  arguments?: string
  input?: string
  part?: WirePart
  annotation?: unknown
  logprobs?: WireLogprob[] | null
}

type TextType = 'text' | 'refusal' | 'reasoning'

/** Item types that become tool calls. All other items except messages and reasoning are passed on unchanged, as native parts. */
const CALLS: Readonly<Record<string, 'function' | 'custom'>> = { function_call: 'function', custom_tool_call: 'custom' }
const MESSAGE_CONSUMED: ReadonlySet<string> = new Set(['id', 'type', 'status', 'role', 'content'])
const CALL_CONSUMED: ReadonlySet<string> = new Set(['id', 'type', 'status', 'call_id', 'name', 'arguments', 'input'])
const RESPONSE_CONSUMED: ReadonlySet<string> = new Set([
  ...['id', 'object', 'created_at', 'completed_at', 'status', 'error', 'output', 'output_text', 'usage', 'model'],
  ...['background', 'conversation', 'frequency_penalty', 'incomplete_details', 'instructions', 'max_output_tokens'],
  ...['max_tool_calls', 'metadata', 'parallel_tool_calls', 'presence_penalty', 'previous_response_id', 'prompt'],
  ...['prompt_cache_key', 'reasoning', 'safety_identifier', 'store', 'temperature', 'text', 'tool_choice', 'tools'],
  ...['top_logprobs', 'top_p', 'truncation', 'user'],
])
const REASONS: Readonly<Record<string, FinishReason>> = {
  max_output_tokens: 'length',
  content_filter: 'content_filter',
}

/** Maximum items of one answer. The number is bounded because each new item is compared with all others. */
const ITEMS_MAX = 1_024
/** Maximum annotations of one answer. Each annotation becomes an event of the caller's stream. */
const ANNOTATIONS_MAX = 4_096
/** Maximum parts of all items of one answer. Each part causes four events of the caller's stream. */
const PARTS_MAX = 1_024

/** Separator of reasoning parts that are joined into one text. The encoder of the Responses API splits the text at this separator again. */
const THOUGHT_SEPARATOR = '\n\n'

interface OpenItem {
  wire: WireItem
  call: number | undefined
  isClosed: boolean
  /**
   * Number of characters of each part that were already sent to the caller. The end events of parts and items repeat the whole text, so only the rest
   * is sent.
   */
  readonly passed: Map<string, number>
  readonly texts: Map<string, SurrogateBuffer>
  annotations: number
}

/**
 * Reads a response, streamed or whole.
 *
 * Servers send the text in different events: only in deltas, only at the ends of parts or items, or only in `response.completed`. The decoder
 * therefore reads the text of every event. A delta extends the text. From an end event, only the part that was not received before is added.
 *
 * An event belongs to the item with the same `output_index`. Without `output_index`, `item_id` decides. Without both, the event belongs to the item
 * that was opened last.
 *
 * The answer is complete with `response.completed` or `response.incomplete`, or with `[DONE]` after the ends of all items.
 */
export class ResponsesDecoder implements AnswerDecoder {
  readonly #request: GenerateRequest
  readonly #items: OpenItem[] = []
  readonly #byIndex = new Map<number, OpenItem>()
  readonly #byId = new Map<string, OpenItem>()
  readonly #callIds = new Set<string>()
  #hasStarted = false
  #hasOutput = false
  #calls = 0
  #annotations = 0
  #parts = 0
  #usage: WireUsage | undefined
  #reason: FinishReason | undefined
  #isDone = false

  constructor(request: GenerateRequest) {
    this.#request = request
  }

  get isDone(): boolean {
    return this.#reason !== undefined || this.#isDone
  }

  get isComplete(): boolean {
    return this.#reason !== undefined
  }

  get usage(): Partial<Usage> | undefined {
    return this.#usage && readUsage(this.#usage)
  }

  get nativeUsage(): NativeUsage | undefined {
    return this.#usage && { dialect: 'responses', value: this.#usage as Record<string, unknown> }
  }

  isEnd(data: string): boolean {
    if (data !== '[DONE]') return false
    this.#isDone = true
    if (this.#items.length > 0 && this.#items.every(({ isClosed }) => isClosed)) this.#reason ??= 'stop'
    return true
  }

  frame(data: Record<string, unknown>, out: GenerateEvent[]): void {
    const frame = data as unknown as Frame
    this.#start(out)
    switch (frame.type) {
      case 'response.output_item.added':
        if (frame.item) this.#open(frame.item, frame.output_index, out)
        return
      case 'response.output_text.delta':
        return this.#extend(frame, 'text', partKey('text', frame.content_index), out)
      case 'response.refusal.delta':
        return this.#extend(frame, 'refusal', partKey('refusal', frame.content_index), out)
      case 'response.reasoning_text.delta':
        return this.#extend(frame, 'reasoning', partKey('thought', frame.content_index), out)
      case 'response.reasoning_summary_text.delta':
        return this.#extend(frame, 'reasoning', partKey('summary', frame.summary_index), out)
      case 'response.function_call_arguments.delta':
      case 'response.custom_tool_call_input.delta':
        return this.#addArguments(this.#itemOf(frame, out), frame.delta ?? '', out)
      case 'response.output_text.done':
        return this.#complete(this.#itemOf(frame, out), 'text', partKey('text', frame.content_index), frame.text, out)
      case 'response.refusal.done':
        return this.#complete(
          this.#itemOf(frame, out),
          'refusal',
          partKey('refusal', frame.content_index),
          frame.refusal,
          out,
        )
      case 'response.function_call_arguments.done':
        return this.#completeCall(this.#itemOf(frame, out), frame.arguments, out)
      case 'response.custom_tool_call_input.done':
        return this.#completeCall(this.#itemOf(frame, out), frame.input, out)
      case 'response.output_text.annotation.added':
        return this.#annotate(this.#itemOf(frame, out), [frame.annotation], out)
      case 'response.content_part.done':
        if (frame.part) this.#completePart(this.#itemOf(frame, out), frame.part, frame.content_index ?? 0, out)
        return
      case 'response.output_item.done':
        if (frame.item) this.#close(frame.item, frame.output_index, out)
        return
      case 'response.completed':
      case 'response.incomplete':
        return this.#end(frame.response ?? {}, frame.type === 'response.completed' ? 'completed' : 'incomplete', out)
    }
  }

  whole(body: Record<string, unknown>, out: GenerateEvent[]): undefined {
    const response = body as WireResponse
    if (!Array.isArray(response.output)) throw answerError(this.#request.model, 'returned a response without output')
    this.#start(out)
    this.#end(response, 'completed', out)
  }

  end(out: GenerateEvent[]): undefined {
    if (!this.#reason) throw this.#incomplete()
    const { output_tokens = 0, output_tokens_details: details } = this.#usage ?? {}
    if (!this.#hasOutput && this.#reason === 'stop' && output_tokens > Math.max(1, details?.reasoning_tokens ?? 0)) {
      throw answerError(this.#request.model, 'reported output tokens, but sent no readable output')
    }
    const reason = this.#reason === 'stop' && this.#calls > 0 ? 'tool_calls' : this.#reason
    out.push({ type: 'finish', choice: 0, reason })
  }

  #start(out: GenerateEvent[]): void {
    if (this.#hasStarted) return
    this.#hasStarted = true
    out.push({ type: 'start', model: this.#request.model, input_tokens: estimateInputTokens(this.#request) })
  }

  #open(wire: WireItem, index: number | undefined, out: GenerateEvent[]): OpenItem {
    if (this.#items.length >= ITEMS_MAX) throw answerError(this.#request.model, `sent more than ${ITEMS_MAX} items`)
    const isNext = wire.type === 'message' && this.#items.at(-1)?.wire.type === 'message'
    const { passed, texts } = { passed: new Map<string, number>(), texts: new Map<string, SurrogateBuffer>() }
    const item: OpenItem = { wire, call: undefined, isClosed: false, passed, texts, annotations: 0 }
    this.#byIndex.set(index ?? this.#items.length, item)
    if (wire.id) this.#byId.set(wire.id, item)
    this.#items.push(item)
    if (wire.type === 'message') {
      const fields = fieldsOf(wire, MESSAGE_CONSUMED)
      if (isNext || fields) out.push(nativeEvent('responses', 'message', fields ?? {}))
    }
    this.#openCall(item, out)
    return item
  }

  #openCall(item: OpenItem, out: GenerateEvent[]): void {
    const { wire } = item
    const kind = CALLS[wire.type ?? '']
    const name = stringOf(wire.name)
    if (!kind || item.call !== undefined || name === '') return
    item.call = this.#calls++
    this.#hasOutput = true
    const given = stringOf(wire.call_id ?? wire.id)
    const id = this.#callIds.has(given) ? '' : given
    this.#callIds.add(given)
    const extra = fieldsOf(wire, CALL_CONSUMED)
    const custom = kind === 'custom' ? { custom: true } : {}
    out.push({ type: 'tool_call', choice: 0, call: item.call, id, name, ...custom, ...(extra && { extra }) })
  }

  #extend(frame: Frame, type: TextType, key: string, out: GenerateEvent[]): void {
    this.#pass(this.#itemOf(frame, out), type, key, frame.delta ?? '', out, frame.logprobs)
  }

  #complete(
    item: OpenItem,
    type: TextType,
    key: string,
    text: unknown,
    out: GenerateEvent[],
    logprobs?: WireLogprob[] | null,
  ): void {
    if (typeof text !== 'string') return
    const passed = item.passed.get(key) ?? 0
    if (passed < text.length) this.#pass(item, type, key, text.slice(passed), out, passed === 0 ? logprobs : undefined)
  }

  #pass(
    item: OpenItem,
    type: TextType,
    key: string,
    piece: string,
    out: GenerateEvent[],
    logprobs?: WireLogprob[] | null,
  ): void {
    const isNextThought = type === 'reasoning' && !item.passed.has(key) && item.passed.size > 0 && piece !== ''
    if (!item.passed.has(key)) this.#parts += 1
    if (this.#parts > PARTS_MAX) throw answerError(this.#request.model, `sent more than ${PARTS_MAX} parts`)
    item.passed.set(key, (item.passed.get(key) ?? 0) + piece.length)
    const whole = textOf(item, key).push(piece)
    const text = isNextThought ? THOUGHT_SEPARATOR + whole : whole
    const isLogged = type === 'text' && logprobs?.length
    if (text === '' && !isLogged) return
    this.#hasOutput = true
    if (type === 'reasoning') {
      const part = key.startsWith('summary') ? { summary: Number(key.slice('summary'.length)) } : {}
      out.push({ type, choice: 0, text, ...part })
    } else out.push({ type, choice: 0, text, ...(isLogged && { logprobs: logprobs.map(readLogprob) }) })
  }

  #addArguments(item: OpenItem, piece: string, out: GenerateEvent[]): void {
    // If the tool's name is still unknown, then nothing is emitted yet. The end of the item repeats all arguments.
    if (item.call === undefined) return
    item.passed.set(ARGUMENTS, (item.passed.get(ARGUMENTS) ?? 0) + piece.length)
    const text = textOf(item, ARGUMENTS).push(piece)
    if (text !== '') out.push({ type: 'tool_arguments', choice: 0, call: item.call, text })
  }

  #completeCall(item: OpenItem, written: unknown, out: GenerateEvent[]): void {
    const whole = typeof written === 'object' && written !== null ? JSON.stringify(written) : written
    if (typeof whole !== 'string') return
    const passed = item.passed.get(ARGUMENTS) ?? 0
    if (passed < whole.length) this.#addArguments(item, whole.slice(passed), out)
  }

  #completePart(item: OpenItem, part: WirePart, index: number, out: GenerateEvent[]): void {
    if (part.type === 'refusal') this.#complete(item, 'refusal', partKey('refusal', index), part.refusal, out)
    else this.#complete(item, 'text', partKey('text', index), part.text, out, part.logprobs)
    if (Array.isArray(part.annotations)) this.#annotate(item, part.annotations.slice(item.annotations), out)
  }

  #annotate(item: OpenItem, annotations: readonly unknown[], out: GenerateEvent[]): void {
    if (annotations.length === 0) return
    item.annotations += annotations.length
    this.#annotations += annotations.length
    if (this.#annotations > ANNOTATIONS_MAX) {
      throw answerError(this.#request.model, `sent more than ${ANNOTATIONS_MAX} annotations`)
    }
    out.push(nativeEvent('responses', 'text', { annotations }))
  }

  #close(wire: WireItem, index: number | undefined, out: GenerateEvent[]): void {
    const isNameless = index === undefined && wire.id === undefined
    const open = isNameless ? this.#items.findLast((item) => !item.isClosed && item.wire.type === wire.type) : undefined
    const item = open ?? this.#find(index, wire.id) ?? this.#open(wire, index, out)
    if (!item.isClosed) this.#closeItem(item, wire, out)
  }

  #closeItem(item: OpenItem, wire: WireItem, out: GenerateEvent[]): void {
    item.isClosed = true
    item.wire = wire
    if (wire.type === 'message') this.#closeMessage(item, wire.content, out)
    else if (wire.type === 'reasoning') this.#closeThought(item, wire, out)
    else if (CALLS[wire.type ?? '']) this.#closeCall(item, wire, out)
    else {
      this.#hasOutput = true
      out.push(nativeEvent('responses', 'item', wire))
    }
  }

  #closeMessage(item: OpenItem, content: WireItem['content'], out: GenerateEvent[]): void {
    if (typeof content === 'string') return this.#complete(item, 'text', partKey('text', 0), content, out)
    if (content && !Array.isArray(content)) {
      throw answerError(this.#request.model, 'sent a message in an unknown format')
    }
    let annotations = 0
    for (const [index, part] of (content ?? []).entries()) {
      this.#completePart(item, { ...part, annotations: null }, index, out)
      if (!Array.isArray(part.annotations)) continue
      const passed = Math.min(part.annotations.length, Math.max(0, item.annotations - annotations))
      annotations += part.annotations.length
      this.#annotate(item, part.annotations.slice(passed), out)
    }
  }

  #closeThought(item: OpenItem, wire: WireItem, out: GenerateEvent[]): void {
    const { id, content, summary, encrypted_content: sealed } = wire
    for (const [index, { text }] of (summary ?? []).entries()) {
      this.#complete(item, 'reasoning', partKey('summary', index), text, out)
    }
    for (const [index, { text }] of (Array.isArray(content) ? content : []).entries()) {
      this.#complete(item, 'reasoning', partKey('thought', index), text, out)
    }
    if (typeof sealed !== 'string' || sealed === '') return
    out.push({ type: 'reasoning', choice: 0, text: '', signature: signatureOf(stringOf(id), sealed) })
  }

  #closeCall(item: OpenItem, wire: WireItem, out: GenerateEvent[]): void {
    this.#openCall(item, out)
    if (item.call === undefined) throw answerError(this.#request.model, 'called a tool without a name')
    const isCustom = wire.type === 'custom_tool_call'
    this.#completeCall(item, isCustom ? wire.input : wire.arguments, out)
    if (!isCustom && !item.passed.get(ARGUMENTS)) this.#addArguments(item, '{}', out)
  }

  #end(response: WireResponse, type: 'completed' | 'incomplete', out: GenerateEvent[]): void {
    const { status = type, usage, incomplete_details: details } = response
    if (typeof usage === 'object' && usage !== null && !Array.isArray(usage)) this.#usage = usage
    for (const [index, item] of (Array.isArray(response.output) ? response.output : []).entries()) {
      this.#close(item, index, out)
    }
    // Some servers never send the end event of a call, so open items are closed here. At the end of the response, each
    // call is complete.
    for (const item of this.#items) if (!item.isClosed) this.#closeItem(item, item.wire, out)
    const why = details?.reason ?? ''
    if (status === 'completed') this.#reason = 'stop'
    else if (status === 'incomplete') this.#reason = REASONS[why] ?? 'length'
    else throw this.#incomplete()
    const fields = {
      ...fieldsOf(response, RESPONSE_CONSUMED),
      ...(why !== '' && !REASONS[why] && { incomplete_details: details }),
    }
    if (Object.keys(fields).length > 0) out.push(nativeEvent('responses', 'answer', fields))
  }

  #find(index: number | undefined, id: string | undefined): OpenItem | undefined {
    const byId = id === undefined ? undefined : this.#byId.get(id)
    return byId ?? (index === undefined ? undefined : this.#byIndex.get(index))
  }

  #itemOf({ output_index, item_id, type }: Frame, out: GenerateEvent[]): OpenItem {
    const found = this.#find(output_index, item_id)
    if (found) return found
    const last = this.#items.at(-1)
    if (last && output_index === undefined && item_id === undefined) return last
    if (type.includes('call')) throw answerError(this.#request.model, 'sent arguments without a tool call')
    const wire = { type: type.includes('reasoning') ? 'reasoning' : 'message', ...(item_id && { id: item_id }) }
    return this.#open(wire, output_index, out)
  }

  #incomplete(): ServiceError {
    return answerError(this.#request.model, 'ended its response before it was complete')
  }
}

const ARGUMENTS = 'arguments'

function partKey(name: 'text' | 'refusal' | 'thought' | 'summary', index = 0): string {
  return `${name}${index}`
}

function textOf({ texts }: OpenItem, key: string): SurrogateBuffer {
  const known = texts.get(key)
  if (known) return known
  const made = new SurrogateBuffer()
  texts.set(key, made)
  return made
}

function stringOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

function fieldsOf(object: object, consumed: ReadonlySet<string>): Record<string, unknown> | undefined {
  const fields = Object.entries(object).filter(([name, value]) => value !== null && !consumed.has(name))
  return fields.length > 0 ? Object.fromEntries(fields) : undefined
}

function readUsage(wire: WireUsage): Partial<Usage> {
  const { prompt_tokens, completion_tokens } = wire as { prompt_tokens?: number; completion_tokens?: number }
  const input_tokens = wire.input_tokens ?? prompt_tokens
  const output_tokens = wire.output_tokens ?? completion_tokens
  const { cached_tokens, cache_write_tokens } = wire.input_tokens_details ?? {}
  const { reasoning_tokens } = wire.output_tokens_details ?? {}
  return {
    ...(isCount(input_tokens) && { input_tokens }),
    ...(isCount(output_tokens) && { output_tokens }),
    ...(isCount(cached_tokens) && { cached_tokens }),
    ...(isCount(cache_write_tokens) && { cache_write_tokens }),
    ...(isCount(reasoning_tokens) && { reasoning_tokens }),
  }
}

function isCount(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0
}
