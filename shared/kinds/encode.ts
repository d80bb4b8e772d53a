import type { Dialect, GenerateEvent } from '#schemas/kinds/generate.ts'
import { objectIn } from '#shared/json/object.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Maximum characters of an API call's id that become part of a tool-call id. OpenAI rejects tool-call ids of more than 40 characters when a client
 * sends them back.
 */
const CALL_ID_CHARS_MAX = 24

/**
 * Creates an id for a tool call that has none from its engine. The id consists of `prefix`, the last characters of the API call's id, and an ordinal.
 * Example: `call_4f…_0`. The id is unique within the answer.
 */
export function makeCallId(prefix: 'call_' | 'toolu_', callId: string, choice: number, call: number): string {
  const ordinal = choice === 0 ? `${call}` : `${choice}_${call}`
  return `${prefix}${callId.slice(-CALL_ID_CHARS_MAX)}_${ordinal}`
}

/** Error for an answer without a finish event. Such an answer may be truncated, so it must not be returned as complete. */
export function unfinished(): ServiceError {
  return new ServiceError('upstream_error', 'The model stopped without finishing its answer.')
}

export function findEvent<T extends GenerateEvent['type']>(
  events: readonly GenerateEvent[],
  type: T,
): Extract<GenerateEvent, { type: T }> | undefined {
  return events.find((event): event is Extract<GenerateEvent, { type: T }> => event.type === type)
}

export type NativeEvent = Extract<GenerateEvent, { type: 'native' }>

/**
 * Creates an event for output of an upstream that has no internal form, because no other event type of Sluice can represent the output. Only a caller
 * of the same dialect receives such output.
 */
export function nativeEvent(
  dialect: Dialect,
  scope: NativeEvent['scope'],
  value: Readonly<Record<string, unknown>>,
  choice = 0,
): NativeEvent {
  return { type: 'native', choice, dialect, scope, text: JSON.stringify(value) }
}

/**
 * Joins the pieces of native events ({@link nativeEvent}) of one choice, and parses each complete text as an object. Events of other
 * dialects are ignored.
 */
export class NativeReader {
  readonly #dialect: Dialect
  #pieces: string[] = []

  constructor(dialect: Dialect) {
    this.#dialect = dialect
  }

  read(event: NativeEvent): Record<string, unknown> | undefined {
    if (event.dialect !== this.#dialect) return undefined
    this.#pieces.push(event.text)
    if (event.more) return undefined
    const json = this.#pieces.join('')
    this.#pieces = []
    return objectIn(json)
  }
}
