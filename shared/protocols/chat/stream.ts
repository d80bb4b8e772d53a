import type { ChatDelta } from '#schemas/chat.ts'
import type { FinishReason, GenerateEvent, Logprob, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { makeCallId, unfinished } from '#shared/protocols/encode.ts'
import { WholeCharacters } from '#shared/whole-characters.ts'
import { type ChoiceEvent, chatFinish, chatUsage, type FinishEvent, filterResults } from './encode.ts'
import { encodeChat } from './whole.ts'

/** Chat completions (docs/protocol.md, Chat requests). */
export const chatAnswer: Answer<GenerateEvent> = {
  whole: encodeChat,
  open: (context) => new ChatStream(context),
}

/**
 * Encodes one stream of chat completion chunks (docs/protocol.md, Chat streams).
 *
 * A choice's first chunk, with the role, waits for its first delta: its `content` is null when a tool call comes first.
 * All of a chunk but the text is made once for each choice, because `push` runs for every token of every stream.
 */
export class ChatStream implements AnswerStream<GenerateEvent> {
  readonly #context: EncodeContext
  readonly #choices = new Map<number, ChoiceStream>()
  readonly #tail: string
  #head: string
  #usage: Usage | undefined

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
        this.#usage = event.usage
        return []
      case 'text':
      case 'refusal':
      case 'reasoning':
      case 'tool_call':
      case 'tool_arguments':
      case 'finish':
        return this.#choice(event.choice).encode(event)
      // A newer worker says more than this version can tell.
      default:
        return []
    }
  }

  /** @throws ServiceError `upstream_error` when a choice has no finish */
  end(): Frame[] {
    const choices = [...this.#choices.values()]
    if (choices.length === 0 || choices.some((choice) => !choice.isFinished)) throw unfinished()
    if (!this.#context.include_usage || this.#usage === undefined) return []
    return [{ data: `${this.#head}],"usage":${JSON.stringify(chatUsage(this.#usage))}}` }]
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
    const made = new ChoiceStream(index, this.#head, this.#tail, this.#context.call_id)
    this.#choices.set(index, made)
    return made
  }
}

interface CallStream {
  readonly characters: WholeCharacters
  isEmpty: boolean
}

/** One choice of a stream. Each text keeps its own half character: (type, call) join by themselves. */
class ChoiceStream {
  readonly index: number
  isFinished = false
  readonly #open: string
  readonly #close: string
  readonly #textOpen: string
  readonly #textClose: string
  readonly #tail: string
  readonly #callId: string
  readonly #texts = new WholeCharacters()
  readonly #refusals = new WholeCharacters()
  readonly #thoughts = new WholeCharacters()
  readonly #calls = new Map<number, CallStream>()
  #hasRole = false

  constructor(index: number, head: string, tail: string, callId: string) {
    this.index = index
    this.#callId = callId
    this.#open = `${head}{"index":${index},"delta":`
    this.#close = `,"logprobs":null,"finish_reason":null}${tail}`
    this.#textOpen = `${this.#open}{"content":`
    this.#textClose = `}${this.#close}`
    this.#tail = tail
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
        this.#toolCall(out, event.call, event.id, event.name)
        break
      case 'finish':
        this.#finish(out, event)
    }
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

  #toolCall(out: Frame[], call: number, id: string, name: string): void {
    this.#call(call)
    const named = { name: name.toWellFormed(), arguments: '' }
    const first = {
      index: call,
      id: id || makeCallId('call_', this.#callId, this.index, call),
      type: 'function' as const,
    }
    this.#role(out, null)
    this.#chunk(out, { tool_calls: [{ ...first, function: named }] })
  }

  #arguments(out: Frame[], call: number, text: string): void {
    if (text === '') return
    this.#call(call).isEmpty = false
    this.#chunk(out, { tool_calls: [{ index: call, function: { arguments: text } }] })
  }

  #call(call: number): CallStream {
    const known = this.#calls.get(call)
    if (known !== undefined) return known
    const made = { characters: new WholeCharacters(), isEmpty: true }
    this.#calls.set(call, made)
    return made
  }

  #finish(out: Frame[], event: FinishEvent): void {
    this.#flush(out, event.reason)
    this.isFinished = true
    const reason = chatFinish(event.reason, this.#calls.size > 0)
    const filter = JSON.stringify(filterResults(event))
    const end = `{},"logprobs":null,"finish_reason":"${reason}","content_filter_results":${filter}}${this.#tail}`
    this.#role(out, '')
    out.push({ data: this.#open + end })
  }

  /** Half characters that were held back; and `{}` for calls without arguments, which must parse (docs/protocol.md, Tools). */
  #flush(out: Frame[], reason: FinishReason): void {
    this.#delta(out, 'reasoning_content', this.#thoughts.flush())
    this.#delta(out, 'refusal', this.#refusals.flush())
    this.#text(out, this.#texts.flush())
    for (const [call, { characters, isEmpty }] of this.#calls) {
      const rest = characters.flush()
      this.#arguments(out, call, rest === '' && isEmpty && reason !== 'length' ? '{}' : rest)
    }
  }

  /** The chunk with the role, once: clients concatenate strings, so a second role reads `assistantassistant`. */
  #role(out: Frame[], content: string | null): void {
    if (this.#hasRole) return
    this.#hasRole = true
    this.#chunk(out, { role: 'assistant', content, refusal: null })
  }

  #chunk(out: Frame[], delta: ChatDelta): void {
    out.push({ data: this.#open + JSON.stringify(delta) + this.#close })
  }
}
