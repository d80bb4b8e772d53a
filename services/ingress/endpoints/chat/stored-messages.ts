import type { NativePart, Part, Turn } from '#schemas/generate.ts'
import type { Pieces } from '#services/ingress/body/validate.ts'
import { customInput } from '#shared/engines/adapt.ts'

export interface StoredMessage {
  readonly id: string
  readonly role: Turn['role']
  /** The joined texts; null if there is none. */
  readonly content: string | null
  /** The parts, if the content is more than one text. */
  readonly content_parts: readonly object[] | null
  readonly [field: string]: unknown
}

/** Turns that are converted between two yields. */
const PIECE_TURNS = 500

/**
 * Messages from which the turns were decoded, each with a new id. Parts without a form in this API, such as audio and
 * files, are left out.
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
  const fields = Object.assign({}, ...parts.map((part) => (isNative(part) && !isPart(part) ? part.value : {})))
  const shown = parts.filter((part) => part.type !== 'tool_call' && !(isNative(part) && !isPart(part)))
  const isOneText = shown.length <= 1 && shown.every(({ type }) => type === 'text')
  const calls = parts.flatMap(callOf)
  const name = role === 'tool' ? undefined : turn.name
  return {
    id,
    role,
    content: texts.length > 0 ? texts.join('') : null,
    content_parts: isOneText ? null : shown.flatMap(shownPart),
    ...fields,
    ...(name !== undefined && { name }),
    ...(role === 'tool' && { tool_call_id: turn.call_id }),
    ...(calls.length > 0 && { tool_calls: calls }),
  }
}

function isNative(part: Part): part is NativePart {
  return part.type === 'native' && part.dialect === 'openai'
}

/**
 * Whether a native part is a content part. One without a type holds message fields (shared/engines/openai/messages.ts).
 */
function isPart({ value }: NativePart): boolean {
  return value.type !== undefined
}

function shownPart(part: Part): object[] {
  if (isNative(part)) return [part.value]
  if (part.type === 'text') return [{ type: 'text', text: part.text }]
  if (part.type !== 'image') return []
  return [{ type: 'image_url', image_url: { url: part.url, ...(part.detail && { detail: part.detail }) } }]
}

function callOf(part: Part): object[] {
  if (part.type !== 'tool_call') return []
  const { id, name, custom } = part
  if (custom) return [{ id, type: 'custom', custom: { name, input: customInput(part.arguments) } }]
  return [{ id: part.id, type: 'function', function: { name: part.name, arguments: part.arguments } }]
}
