import type { ChatFilterResults, ChatFinishReason, ChatUsage } from '#schemas/chat.ts'
import type { FinishReason, GenerateEvent, NativeUsage, Usage } from '#schemas/generate.ts'

/** Functions that the whole answer and the stream of chat completions share: the wire form of internal values. */

export type FinishEvent = Extract<GenerateEvent, { type: 'finish' }>

export type ChoiceEvent = Exclude<GenerateEvent, { type: 'start' } | { type: 'usage' } | { type: 'native' }>

/** Fields of a choice that native events of the scope `text` carry. */
export interface ChatChoiceFields {
  readonly logprobs?: { readonly refusal?: readonly unknown[] }
  readonly finish_reason?: ChatFinishReason
}

const OF_CHOICE = { text: true, refusal: true, reasoning: true, tool_call: true, tool_arguments: true, finish: true }

export function isOfChoice(event: GenerateEvent): event is ChoiceEvent {
  return Object.hasOwn(OF_CHOICE, event.type)
}

/** The finish reason of a choice. Agents run tools only after `tool_calls`, so any call leads to this reason, even a forced one. */
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

/** Results of the upstream or of the classifier, for all categories (docs/reference/compatibility.md, Chat answers). */
export function filterResults(event: FinishEvent): ChatFilterResults {
  return event.filter === undefined ? NOT_FILTERED : { ...NOT_FILTERED, ...event.filter }
}

/**
 * Usage in the chat format.
 *
 * @param native Usage object of the upstream. Additional fields are passed on.
 */
export function chatUsage(usage: Usage, native?: NativeUsage): ChatUsage {
  const { input_tokens: prompt, output_tokens: completion, cached_tokens, cache_write_tokens, reasoning_tokens } = usage
  const wire: Readonly<Record<string, unknown>> = native?.dialect === 'openai' ? native.value : {}
  const sum = prompt + completion
  return {
    ...wire,
    prompt_tokens: prompt,
    completion_tokens: completion,
    // Some servers count hidden reasoning only in `total_tokens`.
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
