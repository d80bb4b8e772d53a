import type { CompletionChoice, CompletionLogprobs } from '#schemas/completions.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { FinishReason, GenerateEvent, Logprob, Usage } from '#schemas/kinds/generate.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { findEvent, unfinished } from '#shared/kinds/encode.ts'
import { chatUsage, isOfChoice } from '#shared/kinds/generate/chat/whole.ts'
import { SurrogateBuffer } from '#shared/lib/buffers.ts'

function headOf(start: Extract<GenerateEvent, { type: 'start' }> | undefined, context: EncodeContext) {
  return {
    id: `cmpl-${context.call_id}`,
    object: 'text_completion',
    created: context.created_at,
    model: start?.model ?? context.model,
    system_fingerprint: start?.fingerprint ?? '',
  }
}

function encodeCompletion(events: readonly GenerateEvent[], context: EncodeContext): object {
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

export const completionsAnswer: Answer<GenerateEvent> = {
  whole: encodeCompletion,
  open: (context) => new CompletionStream(context),
}

class CompletionStream implements AnswerStream<GenerateEvent> {
  readonly #context: EncodeContext
  readonly #choices = new Map<number, ChoiceText>()
  #start: Extract<GenerateEvent, { type: 'start' }> | undefined
  #usage: Usage | undefined

  constructor(context: EncodeContext) {
    this.#context = context
  }

  push(event: GenerateEvent): Frame[] {
    if (event.type === 'start') this.#start ??= event
    if (event.type === 'usage') this.#usage = event.usage
    if (!isOfChoice(event)) return []
    const { choice: index } = event
    const choice = this.#choices.get(index) ?? new ChoiceText()
    this.#choices.set(index, choice)
    const added = choice.read(event)
    if (!added) return []
    const { text, logprobs, finish = { finish_reason: null } } = added
    return [this.#frame([{ index, text, logprobs, ...finish }], null)]
  }

  end(): Frame[] {
    const choices = [...this.#choices.values()]
    if (choices.length === 0 || choices.some(({ isFinished }) => !isFinished)) throw unfinished()
    return this.#context.include_usage && this.#usage ? [this.#frame([], this.#usage)] : []
  }

  #frame(choices: CompletionChoice[], usage: Usage | null): Frame {
    const told = this.#context.include_usage ? { usage: usage && chatUsage(usage) } : {}
    return { data: JSON.stringify({ ...headOf(this.#start, this.#context), choices, ...told }) }
  }
}

/** Fields that one event adds to a choice. The completions format has no reasoning and no tool calls. */
interface Added {
  readonly text: string
  readonly logprobs: CompletionLogprobs | null
  readonly finish?: Pick<CompletionChoice, 'finish_reason' | 'content_filter_results'>
}

class ChoiceText {
  isFinished = false
  readonly #characters = new SurrogateBuffer()
  #offset = 0

  read(event: GenerateEvent): Added | undefined {
    if (event.type === 'text') return this.#textOf(this.#characters.push(event.text), event.logprobs ?? [])
    // The completions format has no field for a refusal, so the text of a refusal is returned as the answer.
    if (event.type === 'refusal') return this.#textOf(this.#characters.push(event.text), [])
    if (event.type !== 'finish') return undefined
    this.isFinished = true
    const { reason, filter } = event
    const finish = { finish_reason: finishOf(reason), ...(filter && { content_filter_results: filter }) }
    return { text: this.#characters.flush(), logprobs: null, finish }
  }

  #textOf(text: string, logprobs: readonly Logprob[]): Added | undefined {
    if (text === '' && logprobs.length === 0) return undefined
    return { text, logprobs: logprobs.length > 0 ? this.#listed(logprobs) : null }
  }

  #listed(logprobs: readonly Logprob[]): CompletionLogprobs {
    const text_offset = logprobs.map(({ token }) => {
      const at = this.#offset
      this.#offset += [...token].length
      return at
    })
    const tops = logprobs.map(topOf)
    return {
      tokens: logprobs.map(({ token }) => token),
      token_logprobs: logprobs.map(({ logprob }) => logprob),
      top_logprobs: tops.every((top) => top === null) ? null : tops,
      text_offset,
    }
  }
}

function topOf({ token, logprob, top_logprobs: tops }: Logprob): Record<string, number> | null {
  if (tops.length === 0) return null
  const likely = tops.flatMap((top) => (top.logprob === null ? [] : [[top.token, top.logprob] as const]))
  return Object.fromEntries([...likely, ...(logprob === null ? [] : [[token, logprob] as const])])
}

function finishOf(reason: FinishReason): CompletionChoice['finish_reason'] {
  return reason === 'tool_calls' ? 'stop' : reason
}
