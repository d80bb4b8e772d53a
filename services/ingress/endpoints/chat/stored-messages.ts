import type { Part, Turn } from '#schemas/generate.ts'
import type { Pieces } from '#services/ingress/body/validate.ts'

/** A message that a model was given, as it is listed. */
export interface StoredMessage {
  readonly id: string
  readonly role: Turn['role']
  /** Its texts joined; null where there is none. */
  readonly content: string | null
  /** Its parts, where it is more than one text. */
  readonly content_parts: readonly object[] | null
  readonly [field: string]: unknown
}

/** Turns read in one piece. */
const PIECE_TURNS = 500

/**
 * The messages that turns were made of, each with an id of its own. What has no place in the words of this API, such as sound and
 * files, is left out of the parts.
 */
export function* messagesOfTurns(turns: readonly Turn[], completionId: string): Pieces<StoredMessage[]> {
  const messages: StoredMessage[] = []
  for (const [index, turn] of turns.entries()) {
    if (index % PIECE_TURNS === 0) yield
    messages.push(messageOf(turn, `${completionId}-${index}`))
  }
  return messages
}

function messageOf(turn: Turn, id: string): StoredMessage {
  const { role, parts } = turn
  const texts = parts.flatMap((part) => (part.type === 'text' ? [part.text] : []))
  const isOneText = parts.every(({ type }) => type === 'text' || type === 'tool_call') && texts.length <= 1
  const calls = parts.flatMap(callOf)
  const name = role === 'tool' ? undefined : turn.name
  return {
    id,
    role,
    content: texts.length > 0 ? texts.join('') : null,
    content_parts: isOneText ? null : parts.flatMap(shownPart),
    ...(name !== undefined && { name }),
    ...(role === 'tool' && { tool_call_id: turn.call_id }),
    ...(calls.length > 0 && { tool_calls: calls }),
  }
}

function shownPart(part: Part): object[] {
  if (part.type === 'text') return [{ type: 'text', text: part.text }]
  if (part.type !== 'image') return []
  return [{ type: 'image_url', image_url: { url: part.url, ...(part.detail && { detail: part.detail }) } }]
}

function callOf(part: Part): object[] {
  if (part.type !== 'tool_call') return []
  return [{ id: part.id, type: 'function', function: { name: part.name, arguments: part.arguments } }]
}
