import type { Call, IngressContext } from '#services/ingress/call.ts'

/** What is counted of the events of any kind. */
export interface CountedEvent {
  readonly type?: string
  readonly input_tokens?: number
  readonly usage?: { readonly input_tokens: number; readonly output_tokens: number }
  readonly text?: string
}

/** Characters of a token, for calls that end before the engine has counted. */
const CHARS_PER_TOKEN = 4

/**
 * Counts what one call uses, for its key's limit, the metrics and the access log: what the engine says at the end, or an
 * estimate of what was made until then when the call ends before (docs/protocol.md, Leaving: usage so far is recorded).
 */
export class UsageCount {
  readonly #context: IngressContext
  readonly #call: Pick<Call, 'facts' | 'key'>
  #input = 0
  #chars = 0
  #isCounted = false

  constructor(context: IngressContext, call: Pick<Call, 'facts' | 'key'>) {
    this.#context = context
    this.#call = call
  }

  /** Takes the next event of the answer. */
  see(event: CountedEvent): void {
    if (event.type === 'start') this.#input = event.input_tokens ?? 0
    else if (event.usage) this.#count(event.usage.input_tokens, event.usage.output_tokens)
    else if (event.text !== undefined) this.#chars += event.text.length
  }

  /** The call ended, well or not. */
  end(): void {
    if (!this.#isCounted && this.#chars > 0) this.#count(this.#input, Math.ceil(this.#chars / CHARS_PER_TOKEN))
  }

  #count(input: number, output: number): void {
    const { facts, key } = this.#call
    const { metrics, limits } = this.#context
    this.#isCounted = true
    facts.input_tokens = input
    facts.output_tokens = output
    metrics.tokens.inc({ model: facts.model ?? '', direction: 'input' }, input)
    metrics.tokens.inc({ model: facts.model ?? '', direction: 'output' }, output)
    limits.spendTokens(key.id, input + output)
  }
}
