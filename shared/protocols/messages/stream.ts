import type { GenerateEvent, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { ServiceError } from '#shared/error.ts'
import { makeCallId, unfinished } from '#shared/protocols/encode.ts'
import { messagesErrorBody } from '#shared/protocols/errors.ts'
import type { StreamEncoder } from '#shared/protocols/protocol.ts'
import { BlockStream } from './block-stream.ts'
import {
  deltaUsage,
  envelope,
  type FinishEvent,
  isNewer,
  stopDetails,
  stopReason,
  stopSequence,
  textBlock,
  toolBlock,
} from './encode.ts'

const PING = 'event: ping\ndata: {"type":"ping"}\n\n'

/** One frame of the messages format: its `event:` name is always its type (docs/protocol.md, Event streams). */
function frame(data: { type: string }): string {
  return `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`
}

/**
 * Encodes one stream of the messages format (docs/protocol.md, Messages streams).
 *
 * `message_start` goes out at the first event, the end waits for the usage: `message_delta` carries both reason and
 * final counts, exactly once.
 */
export class MessagesStream implements StreamEncoder {
  readonly #context: EncodeContext
  readonly #blocks: BlockStream
  #hasStarted = false
  #hasPinged = false
  #hasCalls = false
  #hasRefusal = false
  #inputTokens = 0
  #finish: FinishEvent | undefined
  #usage: Usage | undefined

  constructor(context: EncodeContext) {
    this.#context = context
    // The first block start is followed by a ping, as upstream does it.
    this.#blocks = new BlockStream(() => {
      const isFirst = !this.#hasPinged
      this.#hasPinged = true
      return isFirst ? PING : ''
    })
  }

  event(event: GenerateEvent): string {
    if (event.type === 'start') return this.#start(event.model, event.input_tokens)
    const begin = this.#hasStarted ? '' : this.#start(this.#context.model, 0)
    return begin + this.#content(event)
  }

  #start(model: string, inputTokens: number): string {
    if (this.#hasStarted) return ''
    this.#hasStarted = true
    this.#inputTokens = inputTokens
    const usage = { input_tokens: inputTokens, output_tokens: 1 }
    const empty = { content: [], stop_reason: null, stop_sequence: null }
    const start = { type: 'message_start', message: envelope(this.#context, model, empty, usage) }
    return frame(start)
  }

  #content(event: Exclude<GenerateEvent, { type: 'start' }>): string {
    switch (event.type) {
      case 'text':
        return this.#text(event.text)
      case 'refusal':
        this.#hasRefusal = true
        return this.#text(event.text)
      case 'reasoning':
        return this.#reasoning(event)
      case 'tool_call':
        return this.#toolCall(event.call, event.id, event.name)
      case 'tool_arguments':
        return this.#blocks.argumentsOf(event.call, event.text)
      case 'finish':
        this.#finish = event
        return this.#blocks.finish()
      case 'usage':
        this.#usage = event.usage
        return ''
      // A newer worker says more than this version can tell.
      default:
        return ''
    }
  }

  #text(text: string): string {
    return this.#blocks.text(text, () => textBlock(this.#context, ''))
  }

  #reasoning(event: Extract<GenerateEvent, { type: 'reasoning' }>): string {
    const redacted = event.redacted === undefined ? '' : this.#blocks.redacted(event.redacted)
    return redacted + this.#blocks.thinking(event.text, event.signature)
  }

  #toolCall(call: number, id: string, name: string): string {
    this.#hasCalls = true
    const made = id || makeCallId('toolu_', this.#context.call_id, 0, call)
    return this.#blocks.tool(call, toolBlock(this.#context, made, name, {}))
  }

  end(): string {
    const finish = this.#finish
    if (finish === undefined) return this.error(unfinished())
    const reason = stopReason(finish, this.#hasCalls, this.#hasRefusal)
    const delta = {
      stop_reason: reason,
      stop_sequence: stopSequence(finish, reason),
      ...(isNewer(this.#context) ? { stop_details: stopDetails(reason), container: null } : {}),
    }
    const usage = deltaUsage(this.#context, this.#usage ?? { input_tokens: this.#inputTokens, output_tokens: 0 })
    return frame({ type: 'message_delta', delta, usage } as { type: string }) + frame({ type: 'message_stop' })
  }

  error(error: ServiceError): string {
    return frame(messagesErrorBody(error, this.#context.request_id))
  }

  keepAlive(): string {
    return PING
  }
}
