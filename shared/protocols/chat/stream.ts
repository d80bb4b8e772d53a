import type { ChatDelta } from '#schemas/chat.ts'
import type { FinishReason, GenerateEvent, Logprob, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { ServiceError } from '#shared/error.ts'
import { makeCallId, unfinished } from '#shared/protocols/encode.ts'
import { openaiErrorBody } from '#shared/protocols/errors.ts'
import type { StreamEncoder } from '#shared/protocols/protocol.ts'
import { WholeCharacters } from '#shared/whole-characters.ts'
import { type ChoiceEvent, chatFinish, chatUsage, type FinishEvent, filterResults } from './encode.ts'

/**
 * Encodes one stream of chat completion chunks (contract B.7; golden rules 0.1–0.5).
 *
 * A choice's first chunk, with the role, waits for its first delta: its `content` is null when a tool call comes first.
 * All of a frame but the text is made once for each choice, because `event` runs for every token of every stream.
 */
export class ChatStream implements StreamEncoder {
  readonly #context: EncodeContext
  readonly #choices: ChoiceStream[] = []
  readonly #tail: string
  #head: string
  #usage: Usage | undefined

  constructor(context: EncodeContext) {
    this.#context = context
    this.#tail = context.include_usage ? '],"usage":null}\n\n' : ']}\n\n'
    this.#head = this.#headFor(context.model, '')
  }

  event(event: GenerateEvent): string {
    switch (event.type) {
      case 'start':
        this.#head = this.#headFor(event.model, event.fingerprint ?? '')
        return ''
      case 'usage':
        this.#usage = event.usage
        return ''
      case 'text':
      case 'refusal':
      case 'reasoning':
      case 'tool_call':
      case 'tool_arguments':
      case 'finish':
        return this.#choice(event.choice).encode(event)
      // A newer worker says more than this version can tell.
      default:
        return ''
    }
  }

  end(): string {
    if (this.#choices.length === 0 || this.#choices.some((choice) => !choice.isFinished)) {
      return this.error(unfinished())
    }
    const usage =
      this.#context.include_usage && this.#usage !== undefined
        ? `${this.#head}],"usage":${JSON.stringify(chatUsage(this.#usage))}}\n\n`
        : ''
    return `${usage}data: [DONE]\n\n`
  }

  error(error: ServiceError): string {
    return `data: ${JSON.stringify(openaiErrorBody(error))}\n\n`
  }

  keepAlive(): string {
    return ': keep-alive\n\n'
  }

  #headFor(model: string, fingerprint: string): string {
    const { call_id, created_at } = this.#context
    const id = JSON.stringify(`chatcmpl-${call_id}`)
    const names = `"model":${JSON.stringify(model)},"system_fingerprint":${JSON.stringify(fingerprint)}`
    return `data: {"id":${id},"object":"chat.completion.chunk","created":${created_at},${names},"choices":[`
  }

  #choice(index: number): ChoiceStream {
    const known = this.#choices.find((choice) => choice.index === index)
    if (known !== undefined) return known
    const made = new ChoiceStream(index, this.#head, this.#tail, this.#context.call_id)
    this.#choices.push(made)
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

  encode(event: ChoiceEvent): string {
    switch (event.type) {
      case 'text':
        return this.#text(this.#texts.push(event.text), event.logprobs)
      case 'tool_arguments':
        return this.#arguments(event.call, this.#call(event.call).characters.push(event.text))
      case 'reasoning':
        return this.#delta('reasoning_content', this.#thoughts.push(event.text))
      case 'refusal':
        return this.#delta('refusal', this.#refusals.push(event.text))
      case 'tool_call':
        return this.#toolCall(event.call, event.id, event.name)
      case 'finish':
        return this.#finish(event)
    }
  }

  #text(text: string, logprobs?: readonly Logprob[]): string {
    if (logprobs !== undefined && logprobs.length > 0) return this.#textWithLogprobs(text, logprobs)
    if (text === '') return ''
    const frame = this.#textOpen + JSON.stringify(text) + this.#textClose
    return this.#hasRole ? frame : this.#role('') + frame
  }

  #textWithLogprobs(text: string, logprobs: readonly Logprob[]): string {
    const content = JSON.stringify({ content: logprobs, refusal: null })
    const frame = `${this.#textOpen}${JSON.stringify(text)}},"logprobs":${content},"finish_reason":null}${this.#tail}`
    return this.#role('') + frame
  }

  #delta(field: 'reasoning_content' | 'refusal', text: string): string {
    if (text === '') return ''
    return this.#role(field === 'refusal' ? null : '') + this.#frame({ [field]: text })
  }

  #toolCall(call: number, id: string, name: string): string {
    this.#call(call)
    const named = { name: name.toWellFormed(), arguments: '' }
    const first = {
      index: call,
      id: id || makeCallId('call_', this.#callId, this.index, call),
      type: 'function' as const,
    }
    return this.#role(null) + this.#frame({ tool_calls: [{ ...first, function: named }] })
  }

  #arguments(call: number, text: string): string {
    if (text === '') return ''
    this.#call(call).isEmpty = false
    return this.#frame({ tool_calls: [{ index: call, function: { arguments: text } }] })
  }

  #call(call: number): CallStream {
    const known = this.#calls.get(call)
    if (known !== undefined) return known
    const made = { characters: new WholeCharacters(), isEmpty: true }
    this.#calls.set(call, made)
    return made
  }

  #finish(event: FinishEvent): string {
    const rest = this.#flush(event.reason)
    this.isFinished = true
    const reason = chatFinish(event.reason, this.#calls.size > 0)
    const filter = JSON.stringify(filterResults(event))
    const end = `{},"logprobs":null,"finish_reason":"${reason}","content_filter_results":${filter}}${this.#tail}`
    return rest + this.#role('') + this.#open + end
  }

  /** Half characters that were held back; and `{}` for calls without arguments, which must parse (contract B.4). */
  #flush(reason: FinishReason): string {
    let frames = this.#delta('reasoning_content', this.#thoughts.flush())
    frames += this.#delta('refusal', this.#refusals.flush())
    frames += this.#text(this.#texts.flush())
    for (const [call, { characters, isEmpty }] of this.#calls) {
      const rest = characters.flush()
      frames += this.#arguments(call, rest === '' && isEmpty && reason !== 'length' ? '{}' : rest)
    }
    return frames
  }

  /** The chunk with the role, once: clients concatenate strings, so a second role reads `assistantassistant`. */
  #role(content: string | null): string {
    if (this.#hasRole) return ''
    this.#hasRole = true
    return this.#frame({ role: 'assistant', content, refusal: null })
  }

  #frame(delta: ChatDelta): string {
    return this.#open + JSON.stringify(delta) + this.#close
  }
}
