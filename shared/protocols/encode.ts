import type { GenerateEvent } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import { isSmall, jsonTextIn } from '#shared/json/write.ts'
import { runYielding } from '#shared/yielding.ts'

/** What encoders share. */

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

/** A JSON value that is written already: what is large is written in pieces, so that others have their turn in between. */
export class JsonText {
  readonly text: string

  constructor(text: string) {
    this.text = text
  }
}

/** An answer as it is sent: JSON that is large is written with yields in between. */
export async function writtenInTurns(value: unknown): Promise<unknown> {
  const isWritten = typeof value === 'string' || value instanceof JsonText || isSmall(value)
  return isWritten ? value : new JsonText(await runYielding(jsonTextIn(value)))
}

/** The JSON text of a value. */
export function jsonTextOf(value: unknown): string {
  return value instanceof JsonText ? value.text : JSON.stringify(value)
}
