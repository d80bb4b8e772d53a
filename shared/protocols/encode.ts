import type { GenerateEvent } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'

/** What both protocols' encoders share. */

/**
 * Makes sure that no delta ends in half a surrogate pair, even if an engine's did: the first half waits for the next
 * text. Halves that never meet become U+FFFD.
 */
export class WholeCharacters {
  #held = ''

  /** The text that may be sent now; possibly empty. */
  push(text: string): string {
    if (text === '') return ''
    const joined = this.#held + text
    if (!isHighSurrogate(joined.charCodeAt(joined.length - 1))) {
      this.#held = ''
      return joined.toWellFormed()
    }
    this.#held = joined.slice(-1)
    return joined.slice(0, -1).toWellFormed()
  }

  /** What is left when no more text comes. */
  flush(): string {
    const rest = this.#held === '' ? '' : '\uFFFD'
    this.#held = ''
    return rest
  }
}

function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdbff
}

/** OpenAI refuses call ids over 40 characters when a client sends them back. */
const CALL_ID_CHARS_MAX = 24

/** The id of a tool call whose engine gave none: `prefix` plus the end of the call's own id, unique in the answer. */
export function makeCallId(prefix: 'call_' | 'toolu_', callId: string, choice: number, call: number): string {
  const ordinal = choice === 0 ? `${call}` : `${choice}_${call}`
  return `${prefix}${callId.slice(-CALL_ID_CHARS_MAX)}_${ordinal}`
}

/** An answer whose engine said nothing about why it ended: it may be cut, so it must not look like a good one. */
export function unfinished(): ServiceError {
  return new ServiceError('upstream_error', 'The model stopped without finishing its answer.')
}

/** Picks the first event of a type. */
export function findEvent<T extends GenerateEvent['type']>(
  events: readonly GenerateEvent[],
  type: T,
): Extract<GenerateEvent, { type: T }> | undefined {
  return events.find((event): event is Extract<GenerateEvent, { type: T }> => event.type === type)
}
