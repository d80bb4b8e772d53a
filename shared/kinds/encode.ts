import type { GenerateEvent } from '#schemas/generate.ts'
import { isSmall, jsonTextIn } from '#shared/json/write.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'

/**
 * Number of characters of the API call's id in a generated call id. Limited, because OpenAI rejects call ids of more than 40 characters
 * when a client sends them back.
 */
const CALL_ID_CHARS_MAX = 24

/**
 * An id for a tool call whose engine sent none. Made of `prefix`, the last characters of the id of the API call, and an ordinal. Unique
 * within the answer.
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

/**
 * A JSON value that is already serialised. Large values are serialised with event-loop yields, so `JSON.stringify` must not run on them.
 */
export class JsonText {
  readonly text: string

  constructor(text: string) {
    this.text = text
  }
}

/** Prepares an answer for sending: a large value is serialised with event-loop yields. */
export async function writeYielding(value: unknown): Promise<unknown> {
  const isWritten = typeof value === 'string' || value instanceof JsonText || isSmall(value)
  return isWritten ? value : new JsonText(await runYielding(jsonTextIn(value)))
}

export function jsonTextOf(value: unknown): string {
  return value instanceof JsonText ? value.text : JSON.stringify(value)
}
