import type { GenerateRequest, Logprob } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { isHighSurrogate } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'

export interface Released {
  /** Text that cannot be part of a stop string any more. The text never ends within a surrogate pair, and is often empty. */
  readonly text: string
  readonly logprobs: Logprob[]
  /** The stop string that was found. The answer ends with `text`, which does not contain the stop string. */
  readonly hit?: string
}

/**
 * Buffers text that may become a stop string, so that neither a stop string nor a part of one is ever output.
 *
 * The stop string that is completed first ends the answer. If two stop strings end at the same character, then the longer stop string counts. How the
 * text is split into calls of `push` does not matter.
 *
 * At most the length of the longest stop string is buffered. The cost per character does not depend on the length of the stop strings.
 */
export class StopFilter {
  readonly #matchers: readonly StopMatcher[]
  readonly #tokens: { readonly end: number; readonly logprob: Logprob }[] = []
  #held = ''
  #releasedLength = 0

  constructor(stops: readonly string[]) {
    this.#matchers = stops.filter((stop) => stop !== '').map((stop) => new StopMatcher(stop))
  }

  push(text: string, logprob?: Logprob): Released {
    const heldLength = this.#held.length
    this.#held += text
    if (logprob) this.#tokens.push({ end: this.#releasedLength + this.#held.length, logprob })
    const match = this.#findMatch(text)
    if (match) {
      const released = this.#release(heldLength + match.end - match.stop.length)
      this.#tokens.length = 0
      return { ...released, hit: match.stop }
    }
    return this.#release(this.#held.length - this.#claimableLength())
  }

  /** Ends the answer. Returns the buffered text, followed by `text`. */
  flush(text = ''): Released {
    this.#held += text
    return this.#release(this.#held.length)
  }

  #findMatch(text: string): { stop: string; end: number } | undefined {
    if (this.#matchers.length === 0) return undefined
    for (let at = 0; at < text.length; at++) {
      const unit = text.charCodeAt(at)
      let longest = ''
      for (const matcher of this.#matchers) {
        if (matcher.take(unit) && matcher.stop.length > longest.length) longest = matcher.stop
      }
      if (longest !== '') return { stop: longest, end: at + 1 }
    }
    return undefined
  }

  /** Number of buffered characters that cannot be output yet: the longest beginning of a stop string, or a high surrogate. */
  #claimableLength(): number {
    let longest = isHighSurrogate(this.#held.charCodeAt(this.#held.length - 1)) ? 1 : 0
    for (const matcher of this.#matchers) longest = Math.max(longest, matcher.length)
    return longest
  }

  #release(length: number): Released {
    const text = this.#held.slice(0, length)
    this.#held = this.#held.slice(length)
    this.#releasedLength += length
    // Log probabilities are released only together with text, because a delta must not have an empty text.
    const ready = text === '' ? 0 : this.#tokens.findIndex((token) => token.end > this.#releasedLength)
    const tokens = this.#tokens.splice(0, ready < 0 ? this.#tokens.length : ready)
    return { text, logprobs: tokens.map((token) => token.logprob) }
  }
}

/** Searches for one stop string in a text, unit by unit, with the algorithm of Knuth, Morris and Pratt (1977). */
class StopMatcher {
  readonly stop: string
  /** Failure function of the algorithm. For each match length: the length of the longest shorter match that ends at the same character. */
  readonly #shorter: Uint32Array
  #length = 0

  constructor(stop: string) {
    this.stop = stop
    this.#shorter = new Uint32Array(stop.length + 1)
    for (let end = 1; end < stop.length; end++) {
      this.take(stop.charCodeAt(end))
      this.#shorter[end + 1] = this.#length
    }
    this.#length = 0
  }

  get length(): number {
    return this.#length
  }

  /** Adds the next UTF-16 unit. Returns true when the stop string is complete. Must not be called again after that. */
  take(unit: number): boolean {
    while (this.#length > 0 && this.stop.charCodeAt(this.#length) !== unit) {
      this.#length = this.#shorter[this.#length] ?? 0
    }
    if (this.stop.charCodeAt(this.#length) === unit) this.#length++
    return this.#length === this.stop.length
  }
}

export interface Budget {
  readonly tokens: number
  /** Whether the limit comes from the context window, instead of a requested or configured maximum. */
  readonly isContextBound: boolean
}

/**
 * Returns the token limit of one choice: the caller's max_tokens, or else the model's default. The limit is clamped to the model's maximum and to the
 * free part of the context window (docs/reference/compatibility.md, Token limits).
 *
 * @param contextTokens Size of the context window, in tokens. Undefined if unbounded
 * @throws ServiceError `context_length_exceeded` if the prompt fills the window
 */
export function getBudget(
  request: GenerateRequest,
  model: ModelConfig,
  inputTokens: number,
  contextTokens: number | undefined,
): Budget {
  const { max_output_tokens: ceiling, default_output_tokens: usual } = model.limits
  const wanted = Math.min(request.max_tokens ?? usual ?? Number.MAX_SAFE_INTEGER, ceiling ?? Number.MAX_SAFE_INTEGER)
  if (contextTokens === undefined) return { tokens: wanted, isContextBound: false }
  const room = contextTokens - inputTokens
  if (room < 1) throw contextExceeded(contextTokens, inputTokens)
  return { tokens: Math.min(wanted, room), isContextBound: room < wanted }
}

export function contextExceeded(contextTokens: number, tokens: number | string): ServiceError {
  const message = `This model's maximum context length is ${contextTokens} tokens. However, your messages resulted in ${tokens} tokens, which leaves no room for the answer. Please reduce the length of the messages.`
  return new ServiceError('context_length_exceeded', message, { param: 'messages' })
}
