import type {
  ChatAnswer,
  ChatChoice,
  ChatCompletion,
  ChatFinishReason,
  ChatLogprobs,
  ChatToolCall,
} from '#schemas/chat.ts'
import type { GenerateEvent, Logprob } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import { type NativeEvent, NativeReader } from '#shared/kinds/native-output.ts'
import { makeCallId, unfinished } from '#shared/protocols/encode.ts'
import {
  type ChatChoiceFields,
  type ChoiceEvent,
  chatFinish,
  chatUsage,
  type FinishEvent,
  filterResults,
  isOfChoice,
} from './encode.ts'

/** Fields whose text is an identifier. A later value replaces an earlier one; other texts are concatenated. */
const NAMES: ReadonlySet<string> = new Set(['id', 'type', 'format', 'name', 'role', 'object', 'model', 'status'])

/** Number of entries at the end of a list that are searched for an equal `index`. */
const COMPARED_MAX = 16

/**
 * The whole chat completion (docs/reference/compatibility.md, Chat answers) from all events of a call.
 *
 * @throws ServiceError `upstream_error` if a choice has no finish
 */
export function encodeChat(events: readonly GenerateEvent[], context: EncodeContext): ChatCompletion {
  let start: Extract<GenerateEvent, { type: 'start' }> | undefined
  let usage: Extract<GenerateEvent, { type: 'usage' }> | undefined
  /** Answer fields without an internal form. */
  const fields: Record<string, unknown> = {}
  const choices = new Map<number, ChoiceAnswer>()
  for (const event of events) {
    if (event.type === 'start') start ??= event
    if (event.type === 'usage') usage ??= event
    const isNative = event.type === 'native'
    // Workers of newer versions may send unknown event types.
    if (!isNative && !isOfChoice(event)) continue
    const choice = choices.get(event.choice) ?? new ChoiceAnswer(event.choice, context.call_id)
    choices.set(event.choice, choice)
    if (isNative) Object.assign(fields, choice.addNative(event))
    else choice.add(event)
  }
  if (choices.size === 0) throw unfinished()
  return {
    id: `chatcmpl-${context.call_id}`,
    object: 'chat.completion',
    created: context.created_at,
    model: start?.model ?? context.model,
    service_tier: 'default',
    ...fields,
    system_fingerprint: start?.fingerprint ?? '',
    choices: [...choices.values()].sort((a, b) => a.index - b.index).map((choice) => choice.toChoice()),
    usage: usage
      ? chatUsage(usage.usage, usage.native_usage)
      : chatUsage({ input_tokens: start?.input_tokens ?? 0, output_tokens: 0 }),
  }
}

class ChoiceAnswer {
  readonly index: number
  readonly #callId: string
  readonly #calls = new Map<number, ChatToolCall>()
  readonly #logprobs: Logprob[] = []
  readonly #refusalLogprobs: unknown[] = []
  readonly #native = new NativeReader('openai')
  /** Message fields without an internal form. */
  readonly #fields: Record<string, unknown> = {}
  #finishReason: ChatFinishReason | undefined
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
        this.#calls.set(event.call, this.#makeCall(event))
        break
      case 'tool_arguments': {
        const call = this.#calls.get(event.call)
        if (call?.type === 'custom') call.custom.input += event.text
        else if (call !== undefined) call.function.arguments += event.text
        break
      }
      case 'finish':
        this.#finish = event
    }
  }

  /** Adds an event without an internal form. Returns the fields that belong to the whole answer and not to this choice. */
  addNative(event: NativeEvent): Record<string, unknown> | undefined {
    const value = this.#native.read(event)
    if (value === undefined || event.scope === 'answer') return value
    if (event.scope !== 'text') joinDelta(this.#fields, value)
    else {
      const { logprobs, finish_reason } = value as ChatChoiceFields
      for (const logprob of logprobs?.refusal ?? []) this.#refusalLogprobs.push(logprob)
      this.#finishReason = finish_reason ?? this.#finishReason
    }
    return undefined
  }

  #makeCall({ call, id, name, custom, extra }: Extract<GenerateEvent, { type: 'tool_call' }>): ChatToolCall {
    const made = { ...extra, id: id || makeCallId('call_', this.#callId, this.index, call) }
    const called = name.toWellFormed()
    if (custom) return { ...made, type: 'custom', custom: { name: called, input: '' } }
    return { ...made, type: 'function', function: { name: called, arguments: '' } }
  }

  toChoice(): ChatChoice {
    if (this.#finish === undefined) throw unfinished()
    return {
      index: this.index,
      message: this.#message(),
      logprobs: this.#allLogprobs(),
      finish_reason: this.#finishReason ?? chatFinish(this.#finish.reason, this.#calls.size > 0),
      content_filter_results: filterResults(this.#finish),
    }
  }

  #allLogprobs(): ChatLogprobs | null {
    const [content, refusal] = [this.#logprobs, this.#refusalLogprobs].map((list) => (list.length > 0 ? list : null))
    return content || refusal ? { content: content ?? null, refusal: refusal ?? null } : null
  }

  #message(): ChatAnswer {
    const { audio, function_call } = this.#fields
    const isOnlyElse = this.#text === '' && (this.#calls.size > 0 || this.#refusal !== '' || !!audio || !!function_call)
    const calls = [...this.#calls.values()]
    for (const call of calls) {
      if (call.type === 'custom') {
        call.custom.input = call.custom.input.toWellFormed()
        continue
      }
      const { function: called } = call
      // An engine may send no text for a call without arguments, but clients parse the arguments (docs/reference/compatibility.md, Tools).
      if (called.arguments === '' && this.#finish?.reason !== 'length') called.arguments = '{}'
      called.arguments = called.arguments.toWellFormed()
    }
    return {
      role: 'assistant',
      content: isOnlyElse ? null : this.#text.toWellFormed(),
      refusal: this.#refusal === '' ? null : this.#refusal.toWellFormed(),
      annotations: [],
      ...this.#fields,
      ...(this.#thought === '' ? {} : { reasoning_content: this.#thought.toWellFormed() }),
      ...(calls.length === 0 ? {} : { tool_calls: calls }),
    }
  }
}

/*
 * Merges the fields of deltas that have no internal form into the fields of a whole message, as the official SDKs merge deltas. Texts are
 * concatenated, lists are appended, list entries with equal `index` are merged, and any other value replaces the previous one.
 */

type Fields = Record<string, unknown>

export function joinDelta(fields: Fields, delta: Readonly<Fields>): Fields {
  for (const [name, value] of Object.entries(delta)) {
    if (value === null || name === '__proto__') continue
    const before = Object.hasOwn(fields, name) ? fields[name] : undefined
    fields[name] = joined(name, before, value)
  }
  return fields
}

function joined(name: string, before: unknown, value: unknown): unknown {
  if (typeof before === 'string' && typeof value === 'string') return NAMES.has(name) ? value : before + value
  if (Array.isArray(before) && Array.isArray(value)) return joinList(before, value)
  if (isObject(before) && isObject(value)) return joinDelta(before, value)
  return value
}

function joinList(list: unknown[], added: readonly unknown[]): unknown[] {
  for (const entry of added) {
    const index = isObject(entry) ? entry.index : undefined
    const isSame = (other: unknown) => isObject(other) && other.index === index
    const known = typeof index === 'number' ? list.slice(-COMPARED_MAX).findLast(isSame) : undefined
    if (known && isObject(entry)) joinDelta(known as Fields, entry)
    else list.push(entry)
  }
  return list
}

function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
