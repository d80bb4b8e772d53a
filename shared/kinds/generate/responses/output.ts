import type { EncodeContext } from '#schemas/job.ts'
import type { GenerateEvent, HostedTool, NativeUsage, Usage } from '#schemas/kinds/generate.ts'
import type {
  FoundItem,
  HostedItem,
  OutputItem,
  ResponseObject,
  ResponsesError,
  ResponsesUsage,
} from '#schemas/responses/response.ts'
import { makeCallId, type NativeEvent, NativeReader, unfinished } from '#shared/kinds/encode.ts'
import { answerTooLarge, type ServiceError } from '#shared/lib/error.ts'
import {
  type ItemEvent,
  NativeOutput,
  OpenCall,
  OpenCustomCall,
  type OpenItem,
  OpenMessage,
  OpenReasoning,
} from './items.ts'

/**
 * Maximum characters of one answer. The last events of a stream contain the whole text four times and are encoded in one step, which blocks the event
 * loop.
 */
const ANSWER_CHARS_MAX = 2 * 1024 * 1024

type FinishEvent = Extract<GenerateEvent, { type: 'finish' }>

/**
 * The output of one response, for the whole answer and for the stream (docs/guides/responses.md, Streams).
 *
 * Only one text item is open at a time. Tool calls stay open until the end, because engines may interleave their arguments. The id of an item
 * consists of the id of its response and its position. A later request can therefore refer to the item.
 */
export class ResponseOutput {
  readonly #context: EncodeContext
  readonly #open: OpenItem[] = []
  readonly #calls = new Map<number, OpenCall | OpenCustomCall>()
  readonly #runs = new Map<number, OpenHosted>()
  #text: OpenMessage | OpenReasoning | undefined
  #model: string
  #inputTokens = 0
  #chars = 0
  #finish: FinishEvent | undefined
  #usage: Extract<GenerateEvent, { type: 'usage' }> | undefined
  readonly #native = new NativeReader('responses')
  #fields: Readonly<Record<string, unknown>> = {}
  #nextMessage: Readonly<Record<string, unknown>> = {}

  constructor(context: EncodeContext) {
    this.#context = context
    this.#model = context.model
  }

  /**
   * Adds the next event of the engine and appends its stream events to `out`. If the answer becomes too large, then nothing is appended, and
   * {@link ended} throws.
   */
  push(out: ItemEvent[], event: GenerateEvent): void {
    if ('text' in event) this.#chars += event.text.length
    if (this.#chars > ANSWER_CHARS_MAX && event.type !== 'finish') return
    switch (event.type) {
      case 'start':
        this.#model = event.model
        this.#inputTokens = event.input_tokens
        break
      case 'text':
        if (event.text !== '' || event.logprobs) this.#message(out).text(out, event.text, event.logprobs)
        break
      case 'refusal':
        if (event.text !== '') this.#message(out).refusal(out, event.text)
        break
      case 'reasoning':
        this.#reasoning(out, event).push(out, event)
        break
      case 'cut':
        this.#closeText(out, true)
        break
      case 'tool_call':
        this.#call(out, event)
        break
      case 'tool_arguments':
        this.#calls.get(event.call)?.push(out, event.text)
        break
      case 'hosted_call':
        this.#run(out, event)
        break
      case 'hosted_result':
        this.#runs.get(event.run)?.result(out, event.status, event.output)
        this.#runs.delete(event.run)
        break
      case 'finish':
        this.#finish = event
        this.#closeAll(out)
        break
      case 'usage':
        this.#usage = event
        break
      case 'native':
        this.#takeNative(out, event)
    }
  }

  get inProgress(): ResponseObject {
    return responseObject(this.#context, { status: 'in_progress', model: this.#model })
  }

  /**
   * Returns the response at its end.
   *
   * @throws ServiceError `upstream_error` if the engine did not finish, or `answer_too_large`
   */
  ended(): ResponseObject {
    if (this.#chars > ANSWER_CHARS_MAX) throw answerTooLarge(ANSWER_CHARS_MAX)
    const finish = this.#finish
    if (finish === undefined) throw unfinished()
    const { usage, native_usage } = this.#usage ?? { usage: { input_tokens: this.#inputTokens, output_tokens: 0 } }
    const reason = finish.calls_full ? 'max_tool_calls' : INCOMPLETE[finish.reason]
    return responseObject(this.#context, {
      ...this.#fields,
      status: reason ? 'incomplete' : 'completed',
      incomplete_details: reason ? { reason, ...(this.#fields.incomplete_details as object | undefined) } : null,
      completed_at: Math.floor(Date.now() / 1_000),
      model: this.#model,
      output: this.items,
      usage: responsesUsage(usage, native_usage),
    })
  }

  get items(): OutputItem[] {
    return this.#open.map(({ item }) => item)
  }

  #id(prefix: string): string {
    return `${prefix}_${this.#context.call_id}_${this.#open.length}`
  }

  #message(out: ItemEvent[]): OpenMessage {
    if (this.#text instanceof OpenMessage) return this.#text
    this.#closeText(out)
    const message = new OpenMessage(out, this.#id('msg'), this.#open.length, this.#nextMessage)
    this.#nextMessage = {}
    this.#text = message
    this.#open.push(message)
    return message
  }

  #reasoning(out: ItemEvent[], event: Extract<GenerateEvent, { type: 'reasoning' }>): OpenReasoning {
    if (this.#text instanceof OpenReasoning && this.#text.takes(event)) return this.#text
    this.#closeText(out)
    const { summarizes = false, includes } = this.#context.responses ?? {}
    const seals = includes?.includes('reasoning.encrypted_content') ?? false
    const reasoning = new OpenReasoning(out, this.#id('rs'), this.#open.length, summarizes, seals)
    this.#text = reasoning
    this.#open.push(reasoning)
    return reasoning
  }

  #call(out: ItemEvent[], event: Extract<GenerateEvent, { type: 'tool_call' }>): void {
    this.#closeText(out)
    const { call, id, name, custom, extra } = event
    const call_id = id || makeCallId('call_', this.#context.call_id, 0, call)
    const known = { id: this.#id(custom ? 'ctc' : 'fc'), call_id, name }
    const Call = custom ? OpenCustomCall : OpenCall
    const opened = new Call(out, known, this.#open.length, extra)
    this.#calls.set(call, opened)
    this.#open.push(opened)
  }

  #run(out: ItemEvent[], { run, tool, input }: Extract<GenerateEvent, { type: 'hosted_call' }>): void {
    this.#closeText(out)
    const { call_id, responses } = this.#context
    const id = `${call_id}_${this.#open.length}`
    const start = { tool, id, container: `cntr_${call_id}`, input, includes: responses?.includes ?? [] }
    const opened = new OpenHosted(out, start, this.#open.length)
    this.#runs.set(run, opened)
    this.#open.push(opened)
  }

  #takeNative(out: ItemEvent[], event: NativeEvent): void {
    const value = this.#native.read(event)
    if (!value) return
    switch (event.scope) {
      case 'answer':
        this.#fields = { ...this.#fields, ...value }
        break
      case 'message':
        this.#closeText(out)
        this.#nextMessage = value
        break
      case 'text':
        if (Array.isArray(value.annotations)) this.#message(out).annotate(out, value.annotations)
        break
      case 'item':
        this.#closeText(out)
        this.#open.push(new NativeOutput(out, value, this.#id('item'), this.#open.length))
    }
  }

  #closeText(out: ItemEvent[], isCut = false): void {
    this.#text?.close(out, isCut)
    this.#text = undefined
  }

  #closeAll(out: ItemEvent[]): void {
    const isCut = this.#finish?.reason === 'length'
    this.#closeText(out, isCut)
    for (const call of this.#calls.values()) call.close(out, isCut)
    this.#calls.clear()
    for (const run of this.#runs.values()) run.close(out)
    this.#runs.clear()
  }
}

const INCOMPLETE: Partial<Record<FinishEvent['reason'], 'max_output_tokens' | 'content_filter'>> = {
  length: 'max_output_tokens',
  content_filter: 'content_filter',
}

interface HostedStart {
  readonly tool: HostedTool
  readonly id: string
  readonly container: string
  readonly input: string
  readonly includes: readonly string[]
}

/** A call of a tool that Sluice runs itself, such as web search. The input is complete when the call starts, and the result is added at the end. */
class OpenHosted implements OpenItem {
  readonly item: HostedItem
  readonly #index: number
  readonly #includes: readonly string[]

  constructor(out: ItemEvent[], start: HostedStart, index: number) {
    this.#index = index
    this.#includes = start.includes
    this.item = itemOf(start)
    const { type } = this.item
    out.push(
      { type: 'response.output_item.added', output_index: index, item: visibleItem(this.item, this.#includes) },
      { type: `response.${type}.in_progress`, ...this.#at },
    )
    if (this.item.type === 'code_interpreter_call') this.#code(out, start.input.toWellFormed())
    else {
      this.item.status = 'searching'
      out.push({ type: `response.${type}.searching`, ...this.#at })
    }
  }

  result(out: ItemEvent[], status: 'completed' | 'failed' | 'incomplete', output: Record<string, unknown>[]): void {
    this.item.status = status
    addOutput(this.item, output)
    if (status === 'completed') out.push({ type: `response.${this.item.type}.completed`, ...this.#at })
    const item = visibleItem(this.item, this.#includes)
    out.push({ type: 'response.output_item.done', output_index: this.#index, item })
  }

  close(out: ItemEvent[]): void {
    this.result(out, 'incomplete', [])
  }

  #code(out: ItemEvent[], code: string): void {
    Object.assign(this.item, { code, status: 'interpreting' })
    if (code !== '') out.push({ type: 'response.code_interpreter_call_code.delta', ...this.#at, delta: code })
    out.push(
      { type: 'response.code_interpreter_call_code.done', ...this.#at, code },
      { type: 'response.code_interpreter_call.interpreting', ...this.#at },
    )
  }

  get #at() {
    return { item_id: this.item.id, output_index: this.#index }
  }
}

function itemOf({ tool, id, container, input }: HostedStart): HostedItem {
  const status = 'in_progress'
  const query = input.toWellFormed()
  switch (tool) {
    case 'code_interpreter':
      return { id: `ci_${id}`, type: `${tool}_call`, status, code: '', container_id: container, outputs: null }
    case 'web_search':
      return { id: `ws_${id}`, type: `${tool}_call`, status, action: { type: 'search', query, queries: [query] } }
    case 'file_search':
      return { id: `fs_${id}`, type: `${tool}_call`, status, queries: [query], results: null }
  }
}

function addOutput(item: HostedItem, output: Record<string, unknown>[]): void {
  if (item.type === 'code_interpreter_call') {
    item.outputs = output
    return
  }
  const found = item.status === 'completed' ? (output as unknown as FoundItem[]) : []
  if (item.type === 'web_search_call') {
    item.action.sources = found.map(({ url }) => ({ type: 'url', url }))
    item.results = found
    return
  }
  item.results = found.map(({ url, excerpt: text }, at) => {
    return { file_id: url, filename: url, score: 1 / (at + 1), text, attributes: {} }
  })
}

/**
 * Removes the fields of an item that the caller did not request. The stored item keeps all fields, because a later response may continue the
 * conversation.
 *
 * @param includes Values of `include`, such as `code_interpreter_call.outputs`.
 */
function visibleItem<Item extends OutputItem>(item: Item, includes: readonly string[]): Item {
  const shows = (name: string) => includes.includes(name)
  if (item.type === 'code_interpreter_call') {
    return shows('code_interpreter_call.outputs') ? { ...item } : { ...item, outputs: null }
  }
  if (item.type === 'file_search_call') {
    return shows('file_search_call.results') ? { ...item } : { ...item, results: null }
  }
  // An upstream's search tool may report other actions than `search`, such as opening a page. Only the action `search`
  // has sources.
  if (item.type !== 'web_search_call' || !item.action) return item
  const { sources, ...action } = item.action
  const { results, ...shown } = item
  return {
    ...shown,
    action: sources && shows('web_search_call.action.sources') ? item.action : action,
    ...(results && shows('web_search_call.results') && { results }),
  } as Item
}

export const RESPONSE_PREFIX = 'resp_'

/**
 * Creates a response with the given fields. All other fields have the values of a response that has no output yet (docs/guides/responses.md,
 * Answers).
 */
export function responseObject(
  context: Pick<EncodeContext, 'call_id' | 'created_at' | 'model' | 'responses'>,
  known: Pick<ResponseObject, 'status'> & Partial<ResponseObject>,
): ResponseObject {
  return {
    id: `${RESPONSE_PREFIX}${context.call_id}`,
    object: 'response',
    created_at: context.created_at,
    completed_at: null,
    error: null,
    incomplete_details: null,
    model: context.model,
    output: [],
    usage: null,
    ...context.responses?.shown,
    ...known,
  }
}

/**
 * Removes the items and fields of a response that the caller did not request. The stored response has all of them, because a later response may
 * continue it.
 */
export function responseView(
  response: ResponseObject,
  { responses }: Pick<EncodeContext, 'responses'>,
): ResponseObject {
  if (!responses?.is_hosting) return response
  return { ...response, output: response.output.map((item) => visibleItem(item, responses.includes ?? [])) }
}

export function responsesUsage(usage: Usage, native?: NativeUsage): ResponsesUsage {
  const { input_tokens, output_tokens } = usage
  const sent = native?.dialect === 'responses' ? (native.value as Partial<ResponsesUsage>) : {}
  return {
    ...sent,
    input_tokens,
    input_tokens_details: {
      ...sent.input_tokens_details,
      cached_tokens: usage.cached_tokens ?? 0,
      cache_write_tokens: usage.cache_write_tokens ?? 0,
    },
    output_tokens,
    output_tokens_details: { ...sent.output_tokens_details, reasoning_tokens: usage.reasoning_tokens ?? 0 },
    total_tokens: input_tokens + output_tokens,
  }
}

export function responsesError({ code, status, message, param }: ServiceError): ResponsesError {
  const kind = status === 429 ? 'rate_limit_exceeded' : status < 500 ? 'invalid_prompt' : 'server_error'
  return { code: kind, message, type: code, param }
}
