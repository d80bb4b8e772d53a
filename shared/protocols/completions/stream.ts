import type { CompletionChoice } from '#schemas/completions.ts'
import type { GenerateEvent, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { chatUsage, isOfChoice } from '#shared/protocols/chat/encode.ts'
import { unfinished } from '#shared/protocols/encode.ts'
import { ChoiceText } from './choice.ts'
import { encodeCompletion, headOf } from './whole.ts'

/** Completions (docs/reference/compatibility.md, Completions). */
export const completionsAnswer: Answer<GenerateEvent> = {
  whole: encodeCompletion,
  open: (context) => new CompletionStream(context),
}

/** Encodes one stream of completions. Each chunk is a `text_completion` with the next text of one choice. */
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

  /** @throws ServiceError `upstream_error` if a choice has no finish */
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
