import type { ChatFilterResults, ChatFinishReason, ChatUsage } from '#schemas/chat.ts'
import type { FinishReason, GenerateEvent, Usage } from '#schemas/generate.ts'

/** What the whole answer and the stream of chat completions share: how internal words read on the wire. */

/** The event that ends a choice. */
export type FinishEvent = Extract<GenerateEvent, { type: 'finish' }>

/** An event that belongs to one choice. */
export type ChoiceEvent = Exclude<GenerateEvent, { type: 'start' } | { type: 'usage' }>

const OF_CHOICE = { text: true, refusal: true, reasoning: true, tool_call: true, tool_arguments: true, finish: true }

/** Whether an event is of one choice, and of a type that this version knows. */
export function isOfChoice(event: GenerateEvent): event is ChoiceEvent {
  return Object.hasOwn(OF_CHOICE, event.type)
}

/** Agents loop on `tool_calls`, so it is said whenever calls are returned, also where a function was forced. */
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

/** Every category, with what upstream or the classifier said (docs/protocol.md, Chat answers). */
export function filterResults(event: FinishEvent): ChatFilterResults {
  return event.filter === undefined ? NOT_FILTERED : { ...NOT_FILTERED, ...event.filter }
}

/** Usage in the chat format. */
export function chatUsage(usage: Usage): ChatUsage {
  const { input_tokens: prompt, output_tokens: completion, cached_tokens, cache_write_tokens, reasoning_tokens } = usage
  const isCached = cached_tokens !== undefined || cache_write_tokens !== undefined
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: isCached ? { cached_tokens, cache_write_tokens } : null,
    completion_tokens_details: reasoning_tokens === undefined ? null : { reasoning_tokens },
  }
}
