import { IMPLIED_CALL } from '#schemas/chat.ts'
import type { GenerateRequest, NativePart, Part, Turn } from '#schemas/generate.ts'
import { customInput } from '#shared/engines/adapt.ts'
import { ServiceError } from '#shared/lib/error.ts'

type ToolTurn = Extract<Turn, { role: 'tool' }>
type ToolCallPart = Extract<Part, { type: 'tool_call' }>

interface Form {
  /** Whether the request is a chat completion: then its extra fields and native parts are passed on. */
  readonly isSame: boolean
  /** OpenAI's own servers support the role developer, but not reasoning_content. */
  readonly isOpenAi: boolean
}

/**
 * Converts turns into the messages of a chat completion.
 *
 * A tool message contains only text, so media of tool results follow in a user message. A tool error gets the prefix `Error:`. Earlier
 * reasoning becomes `reasoning_content`, which DeepSeek and other servers require with tool calls.
 *
 * A native part with a type is a part of the content. A native part without a type contains fields of the message.
 */
export function encodeTurns(request: GenerateRequest, isOpenAi: boolean): object[] {
  const form = { isSame: request.dialect === 'openai', isOpenAi }
  const messages: object[] = []
  let media: object[] = []
  for (const [index, turn] of request.turns.entries()) {
    if (turn.role !== 'tool' && media.length > 0) {
      messages.push({ role: 'user', content: media })
      media = []
    }
    if (turn.role === 'tool') for (const part of toolMedia(turn, index)) media.push(part)
    const message = encodeTurn(turn, index, form)
    if (message) messages.push({ ...(form.isSame ? turn.extra : {}), ...message })
  }
  if (media.length > 0) messages.push({ role: 'user', content: media })
  return messages
}

function encodeTurn(turn: Turn, index: number, form: Form): object | undefined {
  if (turn.role === 'tool') return encodeToolResult(turn, form)
  const name = turn.name === undefined ? {} : { name: turn.name }
  if (turn.role === 'assistant') {
    const answer = encodeAnswer(turn.parts, form)
    return answer && { role: 'assistant', ...answer, ...name }
  }
  if (turn.role === 'system') {
    const role = turn.developer && form.isOpenAi ? 'developer' : 'system'
    return { role, content: encodeText(turn.parts, '', form.isSame), ...name }
  }
  return { role: 'user', content: encodeContent(turn.parts, index, form.isSame), ...name }
}

/** Content of an assistant turn; undefined if the turn only stands for the call of a deprecated function. */
function encodeAnswer(parts: readonly Part[], { isSame, isOpenAi }: Form): object | undefined {
  const all = parts.filter((part) => part.type === 'tool_call')
  const calls = isSame ? all.filter(({ extra }) => extra?.[IMPLIED_CALL] !== true) : all
  const fields = Object.assign({}, ...parts.filter(isFields).map(({ value }) => value))
  const hasText = parts.some((part) => part.type === 'text' || (part.type === 'native' && !isFields(part)))
  const hasFields = Object.keys(fields).length > 0
  const thought = joinText(
    parts.filter((part) => part.type === 'reasoning'),
    '',
  )
  if (all.length > calls.length && calls.length === 0 && !hasText && !hasFields) return undefined
  return {
    ...fields,
    content: hasText ? encodeText(parts, '', isSame) : calls.length > 0 || hasFields ? null : '',
    ...(thought !== '' && (isSame || !isOpenAi) ? { reasoning_content: thought } : {}),
    ...(calls.length === 0 ? {} : { tool_calls: calls.map((call) => encodeCall(call, isSame)) }),
  }
}

function encodeCall(call: ToolCallPart, isSame: boolean): object {
  const { id, name, custom } = call
  const extra = isSame ? call.extra : {}
  if (custom) {
    const made = { ...nested(extra, 'custom'), name, input: customInput(call.arguments) }
    return { ...extra, id, type: 'custom', custom: made }
  }
  const called = { ...nested(extra, 'function'), name, arguments: call.arguments }
  return { ...extra, id, type: 'function', function: called }
}

function isFields(part: Part): part is NativePart {
  return part.type === 'native' && part.value.type === undefined
}

function encodeToolResult(turn: ToolTurn, { isSame }: Form): object {
  const content = encodeText(turn.parts, '\n', isSame)
  if (isSame && turn.extra?.role === 'function') return { role: 'function', content }
  const failed = turn.is_error && typeof content === 'string'
  return { role: 'tool', tool_call_id: turn.call_id, content: failed ? `Error: ${content}` : content }
}

function toolMedia(turn: ToolTurn, index: number): object[] {
  const parts = turn.parts.filter(({ type }) => type === 'image' || type === 'file' || type === 'audio')
  if (parts.length === 0) return []
  return [
    { type: 'text', text: `Attached by the result of tool call ${turn.call_id}:` },
    ...parts.map((part, at) => encodePart(part, `messages[${index}].content[${at}]`, false)),
  ]
}

/** User content: a plain string if possible, because every server supports that. */
function encodeContent(parts: readonly Part[], index: number, isSame: boolean): unknown {
  const [only] = parts
  if (parts.length === 0) return ''
  if (parts.length === 1 && only?.type === 'text' && !(isSame && only.extra)) return only.text
  return parts.map((part, at) => encodePart(part, `messages[${index}].content[${at}]`, isSame))
}

/** Content of roles with text only. Parts are preserved only for the API that sent them. */
function encodeText(parts: readonly Part[], separator: string, isSame: boolean): unknown {
  const shown = parts.filter((part) => part.type === 'text' || (part.type === 'native' && !isFields(part)))
  const texts = shown.filter((part) => part.type === 'text')
  const arePlain = shown.length <= 1 && shown.length === texts.length && !texts[0]?.extra
  if (!isSame || arePlain) return joinText(texts, separator)
  return shown.map((part) => encodePart(part, '', true))
}

function joinText(parts: ReadonlyArray<{ readonly text: string }>, separator: string): string {
  return parts.map((part) => part.text).join(separator)
}

function encodePart(part: Part, param: string, isSame: boolean): object {
  const extra = isSame && 'extra' in part ? part.extra : {}
  switch (part.type) {
    case 'text':
      return { ...extra, type: 'text', text: part.text }
    case 'image': {
      const detail = part.detail === undefined ? {} : { detail: part.detail }
      return { ...extra, type: 'image_url', image_url: { ...nested(extra, 'image_url'), url: part.url, ...detail } }
    }
    case 'audio': {
      const audio = { ...nested(extra, 'input_audio'), data: part.data, format: part.format }
      return { ...extra, type: 'input_audio', input_audio: audio }
    }
    case 'file': {
      if (!part.data.startsWith('data:')) {
        throw new ServiceError('unsupported_value', 'This model reads files by content, not by URL.', { param })
      }
      const filename = part.filename === undefined ? {} : { filename: part.filename }
      return { ...extra, type: 'file', file: { ...nested(extra, 'file'), ...filename, file_data: part.data } }
    }
    case 'native':
      return part.value
    default:
      throw new ServiceError('invalid_value', `A user turn cannot hold a part of type ${part.type}.`, { param })
  }
}

/** Unknown fields of an object inside a part or a tool. */
export function nested(extra: Readonly<Record<string, unknown>> | undefined, name: string): object {
  const inner = extra?.[name]
  return typeof inner === 'object' && inner !== null ? inner : {}
}
