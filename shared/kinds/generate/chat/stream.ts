import type { ChatDelta, ChatFinishReason } from '#schemas/chat.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { GenerateEvent, Logprob } from '#schemas/kinds/generate.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { makeCallId, type NativeEvent, NativeReader, unfinished } from '#shared/kinds/encode.ts'
import { SurrogateBuffer } from '#shared/lib/buffers.ts'
import {
  type ChatChoiceFields,
  type ChoiceEvent,
  chatFinish,
  chatUsage,
  encodeChat,
  type FinishEvent,
  filterResults,
} from './whole.ts'

export const chatAnswer: Answer<GenerateEvent> = {
  whole: encodeChat,
  open: (context) => new ChatStream(context),
}

/**
 * Encodes one stream of chat completion chunks (docs/internals/protocol.md, Chat streams).
 *
 * The first chunk of a choice contains the role. This chunk waits for the first delta of the choice, because its `content` must be null if that delta
 * is a tool call.
 *
 * The constant parts of a chunk are serialized once per choice, because `push` runs for every token of every stream.
 */
export class ChatStream implements AnswerStream<GenerateEvent> {
  readonly #context: EncodeContext
  readonly #choices = new Map<number, ChoiceStream>()
  readonly #tail: string
  #head: string
  #usage: Extract<GenerateEvent, { type: 'usage' }> | undefined
  #fields: Record<string, unknown> | undefined

  constructor(context: EncodeContext) {
    this.#context = context
    this.#tail = context.include_usage ? '],"usage":null}' : ']}'
    this.#head = this.#headFor(context.model, '')
  }

  push(event: GenerateEvent): Frame[] {
    switch (event.type) {
      case 'start':
        this.#head = this.#headFor(event.model, event.fingerprint ?? '')
        return []
      case 'usage':
        this.#usage = event
        return []
      case 'text':
      case 'refusal':
      case 'reasoning':
      case 'tool_call':
      case 'tool_arguments':
      case 'finish':
        return this.#withFields(this.#choice(event.choice).encode(event))
      case 'native':
        return this.#withFields(this.#native(event))
      // An event of an unknown type comes from a worker of a newer version, and is ignored.
      default:
        return []
    }
  }

  end(): Frame[] {
    const choices = [...this.#choices.values()]
    if (choices.length === 0 || choices.some((choice) => !choice.isFinished)) throw unfinished()
    if (!this.#context.include_usage || this.#usage === undefined) return []
    const usage = JSON.stringify(chatUsage(this.#usage.usage, this.#usage.native_usage))
    return this.#withFields([{ data: `${this.#head}],"usage":${usage}}` }])
  }

  #native(event: NativeEvent): Frame[] {
    const choice = this.#choice(event.choice)
    const value = choice.readNative(event)
    if (value === undefined) return []
    if (event.scope !== 'answer') return choice.encodeNative(event.scope, value)
    this.#fields = { ...this.#fields, ...value }
    return []
  }

  #withFields(frames: Frame[]): Frame[] {
    const [first, ...rest] = frames
    if (this.#fields === undefined || first === undefined) return frames
    const fields = JSON.stringify(this.#fields).slice(1)
    this.#fields = undefined
    return [{ ...first, data: `${first.data.slice(0, -1)},${fields}` }, ...rest]
  }

  #headFor(model: string, fingerprint: string): string {
    const { call_id, created_at } = this.#context
    const id = JSON.stringify(`chatcmpl-${call_id}`)
    const names = `"model":${JSON.stringify(model)},"system_fingerprint":${JSON.stringify(fingerprint)}`
    return `{"id":${id},"object":"chat.completion.chunk","created":${created_at},${names},"choices":[`
  }

  #choice(index: number): ChoiceStream {
    const known = this.#choices.get(index)
    if (known !== undefined) return known
    const created = new ChoiceStream(index, this.#head, this.#tail, this.#context.call_id)
    this.#choices.set(index, created)
    return created
  }
}

interface CallStream {
  readonly characters: SurrogateBuffer
  readonly isCustom: boolean
  isEmpty: boolean
}

/**
 * One choice of a stream. Reasoning, text and refusal may alternate. Each of them can be cut within a surrogate pair, so each has its own buffer for
 * the first half.
 */
class ChoiceStream {
  readonly index: number
  #native: NativeReader | undefined
  isFinished = false
  readonly #open: string
  readonly #close: string
  readonly #textOpen: string
  readonly #textClose: string
  readonly #tail: string
  readonly #callId: string
  readonly #texts = new SurrogateBuffer()
  readonly #refusals = new SurrogateBuffer()
  readonly #thoughts = new SurrogateBuffer()
  readonly #calls = new Map<number, CallStream>()
  #hasRole = false
  #finishReason: ChatFinishReason | undefined

  constructor(index: number, head: string, tail: string, callId: string) {
    this.index = index
    this.#callId = callId
    this.#open = `${head}{"index":${index},"delta":`
    this.#close = `,"logprobs":null,"finish_reason":null}${tail}`
    this.#textOpen = `${this.#open}{"content":`
    this.#textClose = `}${this.#close}`
    this.#tail = tail
  }

  readNative(event: NativeEvent): Record<string, unknown> | undefined {
    this.#native ??= new NativeReader('openai')
    return this.#native.read(event)
  }

  encode(event: ChoiceEvent): Frame[] {
    const out: Frame[] = []
    switch (event.type) {
      case 'text':
        this.#text(out, this.#texts.push(event.text), event.logprobs)
        break
      case 'tool_arguments':
        this.#arguments(out, event.call, this.#call(event.call).characters.push(event.text))
        break
      case 'reasoning':
        this.#delta(out, 'reasoning_content', this.#thoughts.push(event.text))
        break
      case 'refusal':
        this.#delta(out, 'refusal', this.#refusals.push(event.text))
        break
      case 'tool_call':
        this.#toolCall(out, event)
        break
      case 'finish':
        this.#finish(out, event)
    }
    return out
  }

  /** Encodes fields of the message or of the choice that have no internal form. */
  encodeNative(scope: NativeEvent['scope'], value: Record<string, unknown>): Frame[] {
    const out: Frame[] = []
    if (scope !== 'text') {
      this.#role(out, 'audio' in value || 'function_call' in value ? null : '')
      this.#chunk(out, value as ChatDelta)
      return out
    }
    const { logprobs, finish_reason } = value as ChatChoiceFields
    this.#finishReason = finish_reason ?? this.#finishReason
    if (!logprobs?.refusal) return out
    this.#role(out, null)
    const refusal = JSON.stringify({ content: null, refusal: logprobs.refusal })
    out.push({ data: `${this.#open}{},"logprobs":${refusal},"finish_reason":null}${this.#tail}` })
    return out
  }

  #text(out: Frame[], text: string, logprobs?: readonly Logprob[]): void {
    const hasLogprobs = logprobs !== undefined && logprobs.length > 0
    if (text === '' && !hasLogprobs) return
    this.#role(out, '')
    const open = this.#textOpen + JSON.stringify(text)
    if (!hasLogprobs) return void out.push({ data: open + this.#textClose })
    const content = JSON.stringify({ content: logprobs, refusal: null })
    out.push({ data: `${open}},"logprobs":${content},"finish_reason":null}${this.#tail}` })
  }

  #delta(out: Frame[], field: 'reasoning_content' | 'refusal', text: string): void {
    if (text === '') return
    this.#role(out, field === 'refusal' ? null : '')
    this.#chunk(out, { [field]: text })
  }

  #toolCall(out: Frame[], event: Extract<GenerateEvent, { type: 'tool_call' }>): void {
    const { call, extra, custom = false } = event
    this.#call(call, custom)
    const name = event.name.toWellFormed()
    const id = event.id || makeCallId('call_', this.#callId, this.index, call)
    const first = { ...extra, index: call, id }
    this.#role(out, null)
    if (custom) this.#chunk(out, { tool_calls: [{ ...first, type: 'custom', custom: { name, input: '' } }] })
    else this.#chunk(out, { tool_calls: [{ ...first, type: 'function', function: { name, arguments: '' } }] })
  }

  #arguments(out: Frame[], call: number, text: string): void {
    if (text === '') return
    const { isCustom } = Object.assign(this.#call(call), { isEmpty: false })
    const more = isCustom ? { custom: { input: text } } : { function: { arguments: text } }
    this.#chunk(out, { tool_calls: [{ index: call, ...more }] })
  }

  #call(call: number, isCustom = false): CallStream {
    const known = this.#calls.get(call)
    if (known !== undefined) return known
    const created = { characters: new SurrogateBuffer(), isEmpty: true, isCustom }
    this.#calls.set(call, created)
    return created
  }

  /**
   * Ends the choice. First sends the text that waited for the second half of a surrogate pair. A tool call without arguments gets the arguments `{}`,
   * because clients cannot parse an empty text (docs/reference/compatibility.md, Tools).
   */
  #finish(out: Frame[], event: FinishEvent): void {
    this.#delta(out, 'reasoning_content', this.#thoughts.flush())
    this.#delta(out, 'refusal', this.#refusals.flush())
    this.#text(out, this.#texts.flush())
    for (const [call, { characters, isEmpty, isCustom }] of this.#calls) {
      const rest = characters.flush()
      this.#arguments(out, call, rest === '' && isEmpty && !isCustom && event.reason !== 'length' ? '{}' : rest)
    }
    this.isFinished = true
    const reason = this.#finishReason ?? chatFinish(event.reason, this.#calls.size > 0)
    const filter = JSON.stringify(filterResults(event))
    const end = `{},"logprobs":null,"finish_reason":"${reason}","content_filter_results":${filter}}${this.#tail}`
    this.#role(out, '')
    out.push({ data: this.#open + end })
  }

  /** Sends the role once. Clients concatenate the strings of all chunks, so a second role would become `assistantassistant`. */
  #role(out: Frame[], content: string | null): void {
    if (this.#hasRole) return
    this.#hasRole = true
    this.#chunk(out, { role: 'assistant', content, refusal: null })
  }

  #chunk(out: Frame[], delta: ChatDelta): void {
    out.push({ data: this.#open + JSON.stringify(delta) + this.#close })
  }
}
