import type { GenerateRequest, Part, Turn } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'

type ToolTurn = Extract<Turn, { role: 'tool' }>

/**
 * Turns as the messages of a chat completion.
 *
 * Requests of the messages protocol bring things this dialect cannot say: images in tool results follow in a user message
 * of their own, failed tools say so in words, thinking is left out.
 */
export function encodeTurns(request: GenerateRequest): object[] {
  const sameDialect = request.dialect === 'openai'
  const messages: object[] = []
  let media: object[] = []
  for (const [index, turn] of request.turns.entries()) {
    if (turn.role !== 'tool' && media.length > 0) {
      messages.push({ role: 'user', content: media })
      media = []
    }
    if (turn.role === 'tool') media.push(...toolMedia(turn, index))
    messages.push({ ...(sameDialect ? turn.extra : {}), ...encodeTurn(turn, index, sameDialect) })
  }
  if (media.length > 0) messages.push({ role: 'user', content: media })
  return messages
}

function encodeTurn(turn: Turn, index: number, sameDialect: boolean): object {
  if (turn.role === 'tool') return encodeToolResult(turn, sameDialect)
  const name = turn.name === undefined ? {} : { name: turn.name }
  if (turn.role === 'assistant') return { role: 'assistant', ...encodeAnswer(turn.parts, sameDialect), ...name }
  if (turn.role === 'system') {
    return { role: 'system', content: encodeText(turn.parts, '', sameDialect), ...name }
  }
  return { role: 'user', content: encodeContent(turn.parts, index, sameDialect), ...name }
}

/** What the assistant said before: text, thinking where the dialect brought it, calls. */
function encodeAnswer(parts: readonly Part[], sameDialect: boolean): object {
  const calls = parts.filter((part) => part.type === 'tool_call')
  const reasoning = parts.filter((part) => part.type === 'reasoning')
  const hasText = parts.some((part) => part.type === 'text')
  return {
    content: hasText ? encodeText(parts, '', sameDialect) : calls.length > 0 ? null : '',
    ...(sameDialect && reasoning.length > 0 ? { reasoning_content: joinText(reasoning, '') } : {}),
    ...(calls.length === 0
      ? {}
      : {
          tool_calls: calls.map((call) => ({
            ...(sameDialect ? call.extra : {}),
            id: call.id,
            type: 'function',
            function: { name: call.name, arguments: call.arguments },
          })),
        }),
  }
}

function encodeToolResult(turn: ToolTurn, sameDialect: boolean): object {
  const content = encodeText(turn.parts, '\n', sameDialect)
  const failed = turn.is_error && typeof content === 'string'
  return { role: 'tool', tool_call_id: turn.call_id, content: failed ? `Error: ${content}` : content }
}

/** Images and files of a tool's result, which a tool message cannot hold. */
function toolMedia(turn: ToolTurn, index: number): object[] {
  const parts = turn.parts.filter((part) => part.type === 'image' || part.type === 'file')
  if (parts.length === 0) return []
  return [
    { type: 'text', text: `Attached by the result of tool call ${turn.call_id}:` },
    ...parts.map((part, at) => encodePart(part, `messages[${index}].content[${at}]`, false)),
  ]
}

/** User content: a plain string where one says it all, since that is what every server reads. */
function encodeContent(parts: readonly Part[], index: number, sameDialect: boolean): unknown {
  const [only] = parts
  if (parts.length === 0) return ''
  if (parts.length === 1 && only?.type === 'text' && !(sameDialect && only.extra)) return only.text
  return parts.map((part, at) => encodePart(part, `messages[${index}].content[${at}]`, sameDialect))
}

/** Text of the roles that hold nothing else. Parts stay parts only for the dialect that sent them so. */
function encodeText(parts: readonly Part[], separator: string, sameDialect: boolean): unknown {
  const texts = parts.filter((part) => part.type === 'text')
  const arePlain = texts.length <= 1 && !texts[0]?.extra
  if (!sameDialect || arePlain) return joinText(texts, separator)
  return texts.map((part) => ({ ...part.extra, type: 'text', text: part.text }))
}

function joinText(parts: ReadonlyArray<{ readonly text: string }>, separator: string): string {
  return parts.map((part) => part.text).join(separator)
}

function encodePart(part: Part, param: string, sameDialect: boolean): object {
  const extra = sameDialect && 'extra' in part ? part.extra : {}
  switch (part.type) {
    case 'text':
      return { ...extra, type: 'text', text: part.text }
    case 'image': {
      const detail = part.detail === undefined ? {} : { detail: part.detail }
      return { ...extra, type: 'image_url', image_url: { url: part.url, ...detail } }
    }
    case 'audio':
      return { ...extra, type: 'input_audio', input_audio: { data: part.data, format: part.format } }
    case 'file': {
      if (!part.data.startsWith('data:')) {
        throw new ServiceError('unsupported_value', 'This model reads files by content, not by URL.', { param })
      }
      const filename = part.filename === undefined ? {} : { filename: part.filename }
      return { ...extra, type: 'file', file: { ...filename, file_data: part.data } }
    }
    default:
      throw new ServiceError('invalid_value', `A user turn cannot hold a part of type ${part.type}.`, { param })
  }
}
