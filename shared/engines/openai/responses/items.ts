import type { GenerateRequest, Part, Turn } from '#schemas/generate.ts'
import { customInput } from '#shared/engines/adapt.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { thoughtOf } from './thought.ts'

type AssistantTurn = Extract<Turn, { role: 'assistant' }>
type ToolTurn = Extract<Turn, { role: 'tool' }>
type CallPart = Extract<Part, { type: 'tool_call' }>
type SaidPart = Extract<Part, { type: 'text' | 'native' }>

/**
 * Converts turns into the input items of a response: messages, reasoning, calls and their outputs, in order. Items and fields without an
 * internal form are passed on if the request uses this API.
 *
 * @param isOpenAi Whether the upstream is OpenAI's own, which accepts only reasoning that it encrypted itself.
 */
export function encodeItems(request: GenerateRequest, isOpenAi: boolean): object[] {
  const isSame = request.dialect === 'responses'
  const readsThoughts = request.dialect !== 'anthropic' && !isOpenAi
  return request.turns.flatMap((turn, index) => {
    if (turn.role === 'assistant') return encodeAnswer(turn, readsThoughts, isSame)
    if (turn.role === 'tool') return [encodeResult(turn, index, isSame)]
    const role = turn.role === 'system' && turn.developer ? 'developer' : turn.role
    return [{ type: 'message', ...(isSame && turn.extra), role, content: encodeContent(turn.parts, index, isSame) }]
  })
}

/** Items of one assistant turn. Adjacent texts form one message, unless the caller sent them as several. */
function encodeAnswer({ parts }: AssistantTurn, readsThoughts: boolean, isSame: boolean): object[] {
  const items: object[] = []
  let texts: SaidPart[] = []
  const endMessage = () => {
    const [first] = texts
    if (first)
      items.push({
        type: 'message',
        ...(isSame && first.message),
        role: 'assistant',
        content: messageContent(texts, isSame),
      })
    texts = []
  }
  for (const part of parts) {
    if (part.type === 'text' || (part.type === 'native' && !part.isItem)) {
      if (isSame && part.message && texts.length > 0) endMessage()
      texts.push(part)
      continue
    }
    const item = encodeItem(part, readsThoughts, isSame)
    if (!item) continue
    endMessage()
    items.push(item)
  }
  endMessage()
  return items
}

/** A plain string if possible, because every server supports that. */
function messageContent(parts: readonly SaidPart[], isSame: boolean): unknown {
  const isPlain = parts.every((part) => part.type === 'text' && !(isSame && part.extra))
  if (isPlain) return parts.map(({ text }) => text).join('')
  return parts.map((part) => {
    return part.type === 'native'
      ? part.value
      : { type: 'output_text', text: part.text, annotations: [], ...part.extra }
  })
}

function encodeItem(part: Part, readsThoughts: boolean, isSame: boolean): object | undefined {
  switch (part.type) {
    case 'tool_call':
      return encodeCall(part, isSame)
    case 'reasoning':
      return thoughtOf(part, readsThoughts, isSame)
    case 'native':
      return part.value
    default:
      return undefined
  }
}

function encodeCall({ id: call_id, name, arguments: text, custom, extra }: CallPart, isSame: boolean): object {
  const call = custom
    ? { type: 'custom_tool_call', call_id, name, input: customInput(text) }
    : { type: 'function_call', call_id, name, arguments: text }
  return isSame ? { ...call, ...extra } : call
}

function encodeResult(turn: ToolTurn, index: number, isSame: boolean): object {
  const { call_id, parts, is_error: hasFailed, custom, extra } = turn
  const content = encodeContent(parts, index, isSame)
  const output = hasFailed && typeof content === 'string' ? `Error: ${content}` : content
  const type = custom ? 'custom_tool_call_output' : 'function_call_output'
  return { type, ...(isSame && extra), call_id, output }
}

/** A plain string if the content is one text, because every server supports that. */
function encodeContent(parts: readonly Part[], index: number, isSame: boolean): unknown {
  const [first] = parts
  if (!first) return ''
  if (parts.length === 1 && first.type === 'text' && !(isSame && first.extra)) return first.text
  return parts.map((part, at) => {
    const encoded = encodePart(part, `messages[${index}].content[${at}]`)
    return isSame && 'extra' in part ? { ...encoded, ...part.extra } : encoded
  })
}

function encodePart(part: Part, param: string): object {
  switch (part.type) {
    case 'text':
      return { type: 'input_text', text: part.text }
    case 'image':
      return { type: 'input_image', image_url: part.url, detail: part.detail ?? 'auto' }
    case 'audio':
      return { type: 'input_audio', input_audio: { data: part.data, format: part.format } }
    case 'file': {
      if (!part.data.startsWith('data:')) return { type: 'input_file', file_url: part.data }
      return { type: 'input_file', filename: part.filename ?? 'file', file_data: part.data }
    }
    case 'native':
      return part.value
    default:
      throw new ServiceError('invalid_value', `A user turn cannot hold a part of type ${part.type}.`, { param })
  }
}
