import type {
  ChatChoice,
  ChatCompletion,
  ChatFilterResults,
  ChatFinishReason,
  ChatToolCall,
  ChatUsage,
} from '#schemas/chat.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { FinishReason, GenerateEvent, Logprob, NativeUsage, Usage } from '#schemas/kinds/generate.ts'
import { makeCallId, type NativeEvent, NativeReader, unfinished } from '#shared/kinds/encode.ts'

/**
 * Fields of message deltas whose value is a name or an id. If a later delta has such a field again, then its value replaces the earlier one. Texts of
 * all other fields are concatenated.
 */
const NAMES: ReadonlySet<string> = new Set(['id', 'type', 'format', 'name', 'role', 'object', 'model', 'status'])

/** Number of entries at the end of a list in which a delta's `index` is searched. An entry with a new `index` is appended to the list. */
const COMPARED_MAX = 16

export function encodeChat(events: readonly GenerateEvent[], context: EncodeContext): ChatCompletion {
  let start: Extract<GenerateEvent, { type: 'start' }> | undefined
  let usage: Extract<GenerateEvent, { type: 'usage' }> | undefined
  const fields: Record<string, unknown> = {}
  const choices = new Map<number, ChoiceAnswer>()
  for (const event of events) {
    if (event.type === 'start') start ??= event
    if (event.type === 'usage') usage ??= event
    const isNative = event.type === 'native'
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
  #native: NativeReader | undefined
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

  /** Adds an event with fields that have no internal form. Returns the fields that belong to the whole answer instead of this choice. */
  addNative(event: NativeEvent): Record<string, unknown> | undefined {
    this.#native ??= new NativeReader('openai')
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
    const { audio, function_call } = this.#fields
    const isOnlyElse = this.#text === '' && (this.#calls.size > 0 || this.#refusal !== '' || !!audio || !!function_call)
    const calls = [...this.#calls.values()]
    for (const call of calls) {
      if (call.type === 'custom') {
        call.custom.input = call.custom.input.toWellFormed()
        continue
      }
      const { function: called } = call
      // An engine may send no text as the arguments of a call. Clients parse the arguments of every call, so an empty text becomes `{}`
      // (docs/reference/compatibility.md, Tools).
      if (called.arguments === '' && this.#finish.reason !== 'length') called.arguments = '{}'
      called.arguments = called.arguments.toWellFormed()
    }
    const content = this.#logprobs.length > 0 ? this.#logprobs : null
    const refusal = this.#refusalLogprobs.length > 0 ? this.#refusalLogprobs : null
    return {
      index: this.index,
      message: {
        role: 'assistant',
        content: isOnlyElse ? null : this.#text.toWellFormed(),
        refusal: this.#refusal === '' ? null : this.#refusal.toWellFormed(),
        annotations: [],
        ...this.#fields,
        ...(this.#thought === '' ? {} : { reasoning_content: this.#thought.toWellFormed() }),
        ...(calls.length === 0 ? {} : { tool_calls: calls }),
      },
      logprobs: content || refusal ? { content, refusal } : null,
      finish_reason: this.#finishReason ?? chatFinish(this.#finish.reason, this.#calls.size > 0),
      content_filter_results: filterResults(this.#finish),
    }
  }
}

/*
 * Merges message fields that have no internal form, as the official SDKs merge deltas. Texts are concatenated and lists are appended. List entries
 * with equal `index` are merged. Any other value replaces the previous value.
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

export type FinishEvent = Extract<GenerateEvent, { type: 'finish' }>

export type ChoiceEvent = Exclude<GenerateEvent, { type: 'start' } | { type: 'usage' } | { type: 'native' }>

/** Fields of a choice that an upstream sent in a `native` event with the scope `text`. */
export interface ChatChoiceFields {
  readonly logprobs?: { readonly refusal?: readonly unknown[] }
  readonly finish_reason?: ChatFinishReason
}

const OF_CHOICE = { text: true, refusal: true, reasoning: true, tool_call: true, tool_arguments: true, finish: true }

export function isOfChoice(event: GenerateEvent): event is ChoiceEvent {
  return Object.hasOwn(OF_CHOICE, event.type)
}

/**
 * Returns the finish reason of a choice. Agents run tools only after `tool_calls`. A stopped answer with any tool call therefore gets this reason,
 * even if `tool_choice` forced the call.
 */
export function chatFinish(reason: FinishReason, hasCalls: boolean): ChatFinishReason {
  return reason === 'stop' && hasCalls ? 'tool_calls' : reason
}

const NOT_FILTERED: ChatFilterResults = {
  hate: { filtered: false },
  self_harm: { filtered: false },
  sexual: { filtered: false },
  violence: { filtered: false },
  jailbreak: { filtered: false, detected: false },
  profanity: { filtered: false, detected: false },
}

/**
 * Returns the content filter results of the upstream or of the classifier. A category without a result counts as not filtered
 * (docs/reference/compatibility.md, Chat answers).
 */
export function filterResults(event: FinishEvent): ChatFilterResults {
  return event.filter === undefined ? NOT_FILTERED : { ...NOT_FILTERED, ...event.filter }
}

/**
 * Returns usage in the chat format.
 *
 * @param native Usage object of the upstream, whose additional fields are included.
 */
export function chatUsage(usage: Usage, native?: NativeUsage): ChatUsage {
  const { input_tokens: prompt, output_tokens: completion, cached_tokens, cache_write_tokens, reasoning_tokens } = usage
  const wire: Readonly<Record<string, unknown>> = native?.dialect === 'openai' ? native.value : {}
  const sum = prompt + completion
  return {
    ...wire,
    prompt_tokens: prompt,
    completion_tokens: completion,
    // Some servers count the tokens of hidden reasoning only in `total_tokens`. If the upstream's total is larger than the sum, then it is used.
    total_tokens: typeof wire.total_tokens === 'number' && wire.total_tokens > sum ? wire.total_tokens : sum,
    prompt_tokens_details: details(wire.prompt_tokens_details, { cached_tokens, cache_write_tokens }),
    completion_tokens_details: details(wire.completion_tokens_details, { reasoning_tokens }),
  }
}

function details<Counts extends object>(wire: unknown, counts: Counts): Counts | null {
  const known = Object.entries(counts).filter(([, count]) => count !== undefined)
  const isWire = typeof wire === 'object' && wire !== null
  if (known.length === 0 && !isWire) return null
  return { ...(isWire && wire), ...Object.fromEntries(known) } as Counts
}
