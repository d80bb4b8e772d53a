import type { CompletionChoice, CompletionLogprobs } from '#schemas/completions.ts'
import type { GenerateEvent } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import { chatUsage, isOfChoice } from '#shared/protocols/chat/encode.ts'
import { findEvent, unfinished } from '#shared/protocols/encode.ts'
import { type Added, ChoiceText } from './choice.ts'

export function headOf(start: Extract<GenerateEvent, { type: 'start' }> | undefined, context: EncodeContext) {
  return {
    id: `cmpl-${context.call_id}`,
    object: 'text_completion',
    created: context.created_at,
    model: start?.model ?? context.model,
    system_fingerprint: start?.fingerprint ?? '',
  }
}

/**
 * The whole completion from all events of a call.
 *
 * @throws ServiceError `upstream_error` if a choice has no finish
 */
export function encodeCompletion(events: readonly GenerateEvent[], context: EncodeContext): object {
  const choices = new Map<number, WholeChoice>()
  for (const event of events) {
    if (!isOfChoice(event)) continue
    const choice = choices.get(event.choice) ?? new WholeChoice(event.choice)
    choices.set(event.choice, choice)
    choice.add(event)
  }
  if (choices.size === 0) throw unfinished()
  const start = findEvent(events, 'start')
  const usage = findEvent(events, 'usage')?.usage ?? { input_tokens: start?.input_tokens ?? 0, output_tokens: 0 }
  return {
    ...headOf(start, context),
    choices: [...choices.values()].map((choice) => choice.toChoice()).sort((a, b) => a.index - b.index),
    usage: chatUsage(usage),
  }
}

class WholeChoice {
  readonly #index: number
  readonly #reader = new ChoiceText()
  readonly #logprobs: CompletionLogprobs[] = []
  #text = ''
  #finish: Added['finish']

  constructor(index: number) {
    this.#index = index
  }

  add(event: GenerateEvent): void {
    const added = this.#reader.read(event)
    if (!added) return
    this.#text += added.text
    if (added.logprobs) this.#logprobs.push(added.logprobs)
    this.#finish = added.finish
  }

  toChoice(): CompletionChoice {
    if (!this.#finish) throw unfinished()
    const logprobs = this.#logprobs.length > 0 ? joined(this.#logprobs) : null
    return { index: this.#index, text: this.#text, logprobs, ...this.#finish }
  }
}

function joined(all: readonly CompletionLogprobs[]): CompletionLogprobs {
  const tops = all.some(({ top_logprobs }) => top_logprobs !== null)
  return {
    tokens: all.flatMap(({ tokens }) => tokens),
    token_logprobs: all.flatMap(({ token_logprobs }) => token_logprobs),
    top_logprobs: tops ? all.flatMap(({ tokens, top_logprobs }) => top_logprobs ?? tokens.map(() => null)) : null,
    text_offset: all.flatMap(({ text_offset }) => text_offset),
  }
}
