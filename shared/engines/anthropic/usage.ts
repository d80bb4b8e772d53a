import type { NativeUsage, Usage } from '#schemas/generate.ts'

type Fields = Readonly<Record<string, unknown>>

/**
 * Usage of one message, which servers report at its start, at its end, or in both.
 *
 * Reports are cumulative, so a later count replaces an earlier one. A later zero or null is ignored, because several servers end a message
 * with a template of zeros. Details of the API, such as `cache_creation`, are passed on unchanged.
 */
export class ReportedUsage {
  #fields: Fields | undefined

  add(report: unknown): void {
    if (isFields(report)) this.#fields = merged(this.#fields ?? {}, report)
  }

  /** Tokens of the prompt; 0 if not reported. The API counts cached tokens separately, the internal form includes them. */
  get inputTokens(): number {
    const { input_tokens, cache_read_input_tokens, cache_creation_input_tokens } = this.#fields ?? {}
    return countOf(input_tokens) + countOf(cache_read_input_tokens) + countOf(cache_creation_input_tokens)
  }

  get outputTokens(): number {
    return countOf(this.#fields?.output_tokens)
  }

  get thinkingTokens(): number | undefined {
    const { thinking_tokens } = (this.#fields?.output_tokens_details ?? {}) as Fields
    return typeof thinking_tokens === 'number' ? countOf(thinking_tokens) : undefined
  }

  get native(): NativeUsage | undefined {
    return this.#fields && { dialect: 'anthropic', value: this.#fields }
  }

  /** Counts that the server reported. @param hasOutput If true, then zero output tokens are ignored as not counted. */
  counts(hasOutput: boolean): Partial<Usage> | undefined {
    if (!this.#fields) return undefined
    const { cache_read_input_tokens: read, cache_creation_input_tokens: written, output_tokens } = this.#fields
    const isOutputCounted = typeof output_tokens === 'number' && (!hasOutput || this.outputTokens > 0)
    return {
      ...(this.inputTokens > 0 && { input_tokens: this.inputTokens }),
      ...(isOutputCounted && { output_tokens: this.outputTokens }),
      ...(typeof read === 'number' && { cached_tokens: countOf(read) }),
      ...(typeof written === 'number' && { cache_write_tokens: countOf(written) }),
      ...(this.thinkingTokens !== undefined && { reasoning_tokens: this.thinkingTokens }),
    }
  }
}

function merged(known: Fields, later: Fields): Fields {
  const fields = new Map(Object.entries(known))
  for (const [name, value] of Object.entries(later)) {
    const before = fields.get(name)
    if (isFields(before) && isFields(value)) fields.set(name, merged(before, value))
    else if (before === undefined || (value !== null && value !== 0) || before === null) fields.set(name, value)
  }
  return Object.fromEntries(fields)
}

function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function countOf(value: unknown): number {
  return Number.isSafeInteger(value) && (value as number) > 0 ? (value as number) : 0
}
