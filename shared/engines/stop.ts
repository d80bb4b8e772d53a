import type { GenerateRequest, Logprob } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { ServiceError } from '#shared/error.ts'
import { isHighSurrogate } from '#shared/surrogate-buffer.ts'

/** Where an answer stops that this process writes itself: at a stop string, or where its tokens end. */

/** What a {@link StopFilter} lets through. */
export interface Released {
  /** Text that no stop string can claim any more; ends on a whole character. Often empty. */
  readonly text: string
  /** Of the tokens whose last character is in this text or before it. */
  readonly logprobs: Logprob[]
  /** The stop string that was hit. The answer ends with `text`. */
  readonly hit?: string
}

/**
 * Holds back what could become a stop string, so that neither one nor its beginning is ever shown.
 *
 * The stop string that is complete first ends the answer, whatever the split into pushes; of two that end at the same
 * character the longer one counts. At most the length of the longest stop string is held. A character costs the same
 * however long the stop strings are.
 */
export class StopFilter {
  readonly #matchers: readonly StopMatcher[]
  readonly #tokens: { readonly end: number; readonly logprob: Logprob }[] = []
  #held = ''
  #releasedLength = 0

  /** @param stops Stop strings; empty ones are ignored */
  constructor(stops: readonly string[]) {
    this.#matchers = stops.filter((stop) => stop !== '').map((stop) => new StopMatcher(stop))
  }

  /** Takes the next piece of text with the token it came as. Not to be called after a hit. */
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

  /** The answer ended by itself, with `text` as its last piece: gives what was held back. */
  flush(text = ''): Released {
    this.#held += text
    return this.#release(this.#held.length)
  }

  /** The stop string that is complete first, and where in the new text it ends. */
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

  /** Length of the longest end of the held text that begins a stop string, or is half a character. */
  #claimableLength(): number {
    let longest = isHighSurrogate(this.#held.charCodeAt(this.#held.length - 1)) ? 1 : 0
    for (const matcher of this.#matchers) longest = Math.max(longest, matcher.length)
    return longest
  }

  #release(length: number): Released {
    const text = this.#held.slice(0, length)
    this.#held = this.#held.slice(length)
    this.#releasedLength += length
    // A log probability travels with text only, so that no delta is empty.
    const ready = text === '' ? 0 : this.#tokens.findIndex((token) => token.end > this.#releasedLength)
    const tokens = this.#tokens.splice(0, ready < 0 ? this.#tokens.length : ready)
    return { text, logprobs: tokens.map((token) => token.logprob) }
  }
}

/** Looks for one stop string in a text that comes unit by unit (Knuth, Morris and Pratt, 1977). */
class StopMatcher {
  readonly stop: string
  /** For each length of a match: the longest shorter one that ends it. */
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

  /** Units of the stop string that end the text so far. */
  get length(): number {
    return this.#length
  }

  /** Takes the next UTF-16 unit. True when the stop string is complete, after which it is not to be called. */
  take(unit: number): boolean {
    while (this.#length > 0 && this.stop.charCodeAt(this.#length) !== unit) {
      this.#length = this.#shorter[this.#length] ?? 0
    }
    if (this.stop.charCodeAt(this.#length) === unit) this.#length++
    return this.#length === this.stop.length
  }
}

/** How much an answer may grow. */
export interface Budget {
  /** Most output tokens of one choice, at least 1. */
  readonly tokens: number
  /** At that length the context window is full; otherwise a limit was asked for or configured. */
  readonly isContextBound: boolean
}

/**
 * The room for one choice: the caller's max_tokens (else the model's default), clamped to the model's ceiling and to
 * what the context window has left (docs/protocol.md, Token limits).
 *
 * @param contextTokens Size of the window; undefined: unbounded
 * @throws ServiceError `context_length_exceeded` when the prompt leaves no room
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

/** The refusal of a prompt that leaves no room for an answer. @param tokens How many it has, as a number or in words */
export function contextExceeded(contextTokens: number, tokens: number | string): ServiceError {
  const message = `This model's maximum context length is ${contextTokens} tokens. However, your messages resulted in ${tokens} tokens. Please reduce the length of the messages.`
  return new ServiceError('context_length_exceeded', message, { param: 'messages' })
}
