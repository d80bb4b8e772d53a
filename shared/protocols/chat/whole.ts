import type { ChatAnswer, ChatChoice, ChatCompletion, ChatToolCall } from '#schemas/chat.ts'
import type { GenerateEvent, Logprob, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import { makeCallId, unfinished } from '#shared/protocols/encode.ts'
import { type ChoiceEvent, chatFinish, chatUsage, type FinishEvent, filterResults, isOfChoice } from './encode.ts'

/**
 * The whole chat completion (docs/protocol.md, Chat answers) from all events of the call.
 *
 * @throws ServiceError `upstream_error` when a choice has no finish
 */
export function encodeChat(events: readonly GenerateEvent[], context: EncodeContext): ChatCompletion {
  let start: Extract<GenerateEvent, { type: 'start' }> | undefined
  let usage: Usage | undefined
  const choices = new Map<number, ChoiceAnswer>()
  for (const event of events) {
    if (event.type === 'start') start ??= event
    if (event.type === 'usage') usage ??= event.usage
    // Also what a newer worker says beyond this version's words.
    if (!isOfChoice(event)) continue
    const choice = choices.get(event.choice) ?? new ChoiceAnswer(event.choice, context.call_id)
    choices.set(event.choice, choice)
    choice.add(event)
  }
  if (choices.size === 0) throw unfinished()
  return {
    id: `chatcmpl-${context.call_id}`,
    object: 'chat.completion',
    created: context.created_at,
    model: start?.model ?? context.model,
    service_tier: 'default',
    system_fingerprint: start?.fingerprint ?? '',
    choices: [...choices.values()].sort((a, b) => a.index - b.index).map((choice) => choice.toChoice()),
    usage: chatUsage(usage ?? { input_tokens: start?.input_tokens ?? 0, output_tokens: 0 }),
  }
}

/** Gathers one choice of a whole answer. */
class ChoiceAnswer {
  readonly index: number
  readonly #callId: string
  readonly #calls = new Map<number, ChatToolCall>()
  readonly #logprobs: Logprob[] = []
  #text = ''
  #refusal = ''
  #thought = ''
  #finish: FinishEvent | undefined

  constructor(index: number, callId: string) {
    this.index = index
    this.#callId = callId
  }

  add(event: ChoiceEvent): void {
    switch (event.type) {
      case 'text':
        this.#text += event.text
        for (const logprob of event.logprobs ?? []) this.#logprobs.push(logprob)
        break
      case 'refusal':
        this.#refusal += event.text
        break
      case 'reasoning':
        this.#thought += event.text
        break
      case 'tool_call':
        this.#calls.set(event.call, this.#makeCall(event.call, event.id, event.name))
        break
      case 'tool_arguments': {
        const call = this.#calls.get(event.call)
        if (call !== undefined) call.function.arguments += event.text
        break
      }
      case 'finish':
        this.#finish = event
    }
  }

  #makeCall(call: number, id: string, name: string): ChatToolCall {
    const made = id || makeCallId('call_', this.#callId, this.index, call)
    return { id: made, type: 'function', function: { name: name.toWellFormed(), arguments: '' } }
  }

  toChoice(): ChatChoice {
    if (this.#finish === undefined) throw unfinished()
    return {
      index: this.index,
      message: this.#message(),
      logprobs: this.#logprobs.length > 0 ? { content: this.#logprobs, refusal: null } : null,
      finish_reason: chatFinish(this.#finish.reason, this.#calls.size > 0),
      content_filter_results: filterResults(this.#finish),
    }
  }

  #message(): ChatAnswer {
    const isOnlyElse = this.#text === '' && (this.#calls.size > 0 || this.#refusal !== '')
    const calls = [...this.#calls.values()]
    for (const { function: called } of calls) {
      // An engine may give no text for a call without arguments; what clients get must parse (docs/protocol.md, Tools).
      if (called.arguments === '' && this.#finish?.reason !== 'length') called.arguments = '{}'
      called.arguments = called.arguments.toWellFormed()
    }
    return {
      role: 'assistant',
      content: isOnlyElse ? null : this.#text.toWellFormed(),
      refusal: this.#refusal === '' ? null : this.#refusal.toWellFormed(),
      annotations: [],
      ...(this.#thought === '' ? {} : { reasoning_content: this.#thought.toWellFormed() }),
      ...(calls.length === 0 ? {} : { tool_calls: calls }),
    }
  }
}
