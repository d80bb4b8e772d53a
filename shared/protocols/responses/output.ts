import type { GenerateEvent } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { OutputItem, ResponseObject } from '#schemas/responses/response.ts'
import { type NativeEvent, NativeReader } from '#shared/kinds/native-output.ts'
import { answerTooLarge } from '#shared/lib/error.ts'
import { makeCallId, unfinished } from '#shared/protocols/encode.ts'
import { OpenHosted } from './hosted.ts'
import {
  type ItemEvent,
  NativeOutput,
  OpenCall,
  OpenCustomCall,
  type OpenItem,
  OpenMessage,
  OpenReasoning,
} from './items.ts'
import { responseObject, responsesUsage } from './response.ts'

/**
 * Maximum characters of one answer. Limited, because the last events of a stream repeat the whole text four times, and are encoded
 * together.
 */
const ANSWER_CHARS_MAX = 2 * 1024 * 1024

type FinishEvent = Extract<GenerateEvent, { type: 'finish' }>

/**
 * The output of one response, for the whole answer and for the stream (docs/guides/responses.md, Streams).
 *
 * One text is open at a time. Calls stay open until the end, because engines may interleave their arguments. The id of an item contains the
 * id of its response and its position, so that a reference to an item can be resolved.
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
   * Adds the next event and appends its stream events to `out`. If the answer is too large, then nothing is appended and {@link ended}
   * throws.
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

  /** The response at its end. @throws ServiceError `upstream_error` if the engine did not finish; `answer_too_large` */
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

  /** Adds output that has no internal form: only clients of this API can read it. */
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
