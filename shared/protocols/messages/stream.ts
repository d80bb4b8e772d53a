import type { GenerateEvent } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { OutputBlock } from '#schemas/messages.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { runNowOrYielding } from '#shared/lib/yielding.ts'
import { makeCallId, unfinished } from '#shared/protocols/encode.ts'
import { BlockStream, frame } from './block-stream.ts'
import {
  type AnswerUsage,
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
import { NativeAnswer, searchBlock, searchResultBlock } from './native.ts'
import { encodeMessage } from './whole.ts'

type StartEvent = Extract<GenerateEvent, { type: 'start' }>

/** The answer of `POST /v1/messages` (docs/reference/compatibility.md, Messages requests). */
export const messagesAnswer: Answer<GenerateEvent> = {
  whole: (events, context) => runNowOrYielding(encodeMessage(events, context)),
  open: (context) => new MessagesStream(context),
}

/**
 * Encodes one stream of the messages format (docs/internals/protocol.md, Messages streams).
 *
 * `message_start` is sent at the first event. The last frames are sent after the usage event, because exactly one `message_delta` carries
 * both the stop reason and the final counts.
 */
class MessagesStream implements AnswerStream<GenerateEvent> {
  readonly #context: EncodeContext
  readonly #blocks = new BlockStream()
  readonly #opening: OutputBlock
  #hasStarted = false
  #hasCalls = false
  #hasRefusal = false
  readonly #native = new NativeAnswer()
  #searches = 0
  #atStart: AnswerUsage = { usage: { input_tokens: 0, output_tokens: 0 } }
  #usage: AnswerUsage | undefined
  #finish: FinishEvent | undefined

  constructor(context: EncodeContext) {
    this.#context = context
    this.#opening = textBlock(context, '')
  }

  push(event: GenerateEvent): Frame[] {
    const out: Frame[] = []
    if (event.type === 'start') this.#start(out, event)
    else {
      this.#start(out, { model: this.#context.model, input_tokens: 0 })
      this.#content(out, event)
    }
    return out
  }

  #start(out: Frame[], event: Omit<StartEvent, 'type'>): void {
    if (this.#hasStarted) return
    this.#hasStarted = true
    const usage = event.usage ?? { input_tokens: event.input_tokens, output_tokens: 1 }
    this.#atStart = { usage, native: event.native_usage }
    const empty = { content: [], stop_reason: null, stop_sequence: null }
    const start = { type: 'message_start', message: envelope(this.#context, event.model, empty, this.#atStart) }
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
        if (event.redacted !== undefined) {
          this.#blocks.whole(out, { type: 'redacted_thinking', data: event.redacted })
        }
        return this.#blocks.thinking(out, event.text, event.signature)
      case 'tool_call':
        return this.#toolCall(out, event)
      case 'native':
        return this.#nativeContent(out, event)
      case 'tool_arguments':
        return this.#blocks.argumentsOf(out, event.call, event.text)
      case 'hosted_call':
        this.#searches++
        return this.#blocks.whole(out, searchBlock(this.#context.call_id, event))
      case 'hosted_result':
        return this.#blocks.whole(out, searchResultBlock(this.#context.call_id, event))
      case 'cut':
        return this.#blocks.cut()
      case 'finish':
        this.#finish = event
        return this.#blocks.finish(out)
      case 'usage':
        this.#usage = { usage: event.usage, native: event.native_usage }
    }
  }

  #text(out: Frame[], text: string): void {
    this.#blocks.text(out, text, this.#opening)
  }

  #toolCall(out: Frame[], { call, id, name, extra }: Extract<GenerateEvent, { type: 'tool_call' }>): void {
    this.#hasCalls = true
    const callId = id || makeCallId('toolu_', this.#context.call_id, 0, call)
    this.#blocks.tool(out, call, toolBlock(this.#context, callId, name, {}, extra))
  }

  #nativeContent(out: Frame[], event: Extract<GenerateEvent, { type: 'native' }>): void {
    const content = this.#native.read(event)
    if (content?.type === 'block') this.#blocks.whole(out, content.block)
    else if (content?.type === 'text') this.#blocks.openText(out, { ...this.#opening, ...content.fields, text: '' })
    else if (content) for (const each of content.citations) this.#blocks.citation(out, each, this.#opening)
  }

  /** @throws ServiceError `upstream_error` if the engine did not finish */
  end(): Frame[] {
    const finish = this.#finish
    if (finish === undefined) throw unfinished()
    const reason = stopReason(finish, this.#hasCalls, this.#hasRefusal)
    const delta = {
      stop_reason: reason,
      stop_sequence: stopSequence(finish, reason),
      ...(isNewer(this.#context) ? { stop_details: stopDetails(reason), container: null } : {}),
      ...this.#native.delta,
    }
    const { usage } = this.#atStart
    const all = { ...(this.#usage ?? { usage: { ...usage, output_tokens: 0 } }), searches: this.#searches }
    const ended = {
      type: 'message_delta',
      delta,
      usage: deltaUsage(this.#context, all, this.#atStart),
      ...this.#native.beside,
    }
    return [frame(ended), frame({ type: 'message_stop' })]
  }
}
