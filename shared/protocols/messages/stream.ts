import type { GenerateEvent, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { OutputBlock } from '#schemas/messages.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { makeCallId, unfinished } from '#shared/protocols/encode.ts'
import { BlockStream, frame } from './block-stream.ts'
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
import { encodeMessage } from './whole.ts'

/** The messages format (docs/protocol.md, Messages requests). */
export const messagesAnswer: Answer<GenerateEvent> = {
  whole: encodeMessage,
  open: (context) => new MessagesStream(context),
}

/**
 * Encodes one stream of the messages format (docs/protocol.md, Messages streams).
 *
 * `message_start` goes out at the first event, the end waits for the usage: `message_delta` carries both reason and
 * final counts, exactly once.
 */
class MessagesStream implements AnswerStream<GenerateEvent> {
  readonly #context: EncodeContext
  readonly #blocks = new BlockStream()
  /** How each block of text begins. */
  readonly #opening: OutputBlock
  #hasStarted = false
  #hasCalls = false
  #hasRefusal = false
  #inputTokens = 0
  #finish: FinishEvent | undefined
  #usage: Usage | undefined

  constructor(context: EncodeContext) {
    this.#context = context
    this.#opening = textBlock(context, '')
  }

  push(event: GenerateEvent): Frame[] {
    const out: Frame[] = []
    if (event.type === 'start') this.#start(out, event.model, event.input_tokens)
    else {
      this.#start(out, this.#context.model, 0)
      this.#content(out, event)
    }
    return out
  }

  #start(out: Frame[], model: string, inputTokens: number): void {
    if (this.#hasStarted) return
    this.#hasStarted = true
    this.#inputTokens = inputTokens
    const usage = { input_tokens: inputTokens, output_tokens: 1 }
    const empty = { content: [], stop_reason: null, stop_sequence: null }
    const start = { type: 'message_start', message: envelope(this.#context, model, empty, usage) }
    out.push(frame(start))
  }

  #content(out: Frame[], event: Exclude<GenerateEvent, { type: 'start' }>): void {
    switch (event.type) {
      case 'text':
        return this.#text(out, event.text)
      case 'refusal':
        this.#hasRefusal = true
        return this.#text(out, event.text)
      case 'reasoning':
        if (event.redacted !== undefined) this.#blocks.redacted(out, event.redacted)
        return this.#blocks.thinking(out, event.text, event.signature)
      case 'tool_call':
        return this.#toolCall(out, event.call, event.id, event.name)
      case 'tool_arguments':
        return this.#blocks.argumentsOf(out, event.call, event.text)
      case 'finish':
        this.#finish = event
        return this.#blocks.finish(out)
      case 'usage':
        this.#usage = event.usage
    }
  }

  #text(out: Frame[], text: string): void {
    this.#blocks.text(out, text, this.#opening)
  }

  #toolCall(out: Frame[], call: number, id: string, name: string): void {
    this.#hasCalls = true
    const made = id || makeCallId('toolu_', this.#context.call_id, 0, call)
    this.#blocks.tool(out, call, toolBlock(this.#context, made, name, {}))
  }

  /** @throws ServiceError `upstream_error` when the engine did not finish */
  end(): Frame[] {
    const finish = this.#finish
    if (finish === undefined) throw unfinished()
    const reason = stopReason(finish, this.#hasCalls, this.#hasRefusal)
    const delta = {
      stop_reason: reason,
      stop_sequence: stopSequence(finish, reason),
      ...(isNewer(this.#context) ? { stop_details: stopDetails(reason), container: null } : {}),
    }
    const usage = deltaUsage(this.#context, this.#usage ?? { input_tokens: this.#inputTokens, output_tokens: 0 })
    const ended = { type: 'message_delta', delta, usage }
    return [frame(ended), frame({ type: 'message_stop' })]
  }
}
