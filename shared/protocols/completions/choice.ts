import type { CompletionChoice, CompletionLogprobs } from '#schemas/completions.ts'
import type { FinishReason, GenerateEvent, Logprob } from '#schemas/generate.ts'
import { SurrogateBuffer } from '#shared/surrogate-buffer.ts'

/** Addition of one event to a choice. Reasoning and tool calls have no form in this format. */
export interface Added {
  readonly text: string
  readonly logprobs: CompletionLogprobs | null
  readonly finish?: Pick<CompletionChoice, 'finish_reason' | 'content_filter_results'>
}

export class ChoiceText {
  isFinished = false
  readonly #characters = new SurrogateBuffer()
  /** Code points of the tokens so far, for `text_offset`. */
  #offset = 0

  /** Undefined if the event has no form in this format. */
  read(event: GenerateEvent): Added | undefined {
    if (event.type === 'text') return this.#textOf(this.#characters.push(event.text), event.logprobs ?? [])
    // The format has no field for a refusal, so its text is returned as the answer.
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

/** The most likely tokens, and always the chosen one. */
function topOf({ token, logprob, top_logprobs: tops }: Logprob): Record<string, number> | null {
  if (tops.length === 0) return null
  const likely = tops.flatMap((top) => (top.logprob === null ? [] : [[top.token, top.logprob] as const]))
  return Object.fromEntries([...likely, ...(logprob === null ? [] : [[token, logprob] as const])])
}

function finishOf(reason: FinishReason): CompletionChoice['finish_reason'] {
  return reason === 'tool_calls' ? 'stop' : reason
}
