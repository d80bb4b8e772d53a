import type { GenerateRequest, Part, Turn } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import { thoughtOf } from './thought.ts'

type AssistantTurn = Extract<Turn, { role: 'assistant' }>
type ToolTurn = Extract<Turn, { role: 'tool' }>

/**
 * Turns as the input items of a response: messages, thoughts, calls and what came of them, in their order.
 *
 * @param isOpenAi OpenAI's own server, which reads no thoughts but those that it sealed.
 */
export function encodeItems(request: GenerateRequest, isOpenAi: boolean): object[] {
  const readsThoughts = request.dialect === 'openai' && !isOpenAi
  return request.turns.flatMap((turn, index) => {
    if (turn.role === 'assistant') return encodeAnswer(turn, readsThoughts)
    if (turn.role === 'tool') return [encodeResult(turn, index)]
    return [{ type: 'message', role: turn.role, content: encodeContent(turn.parts, index) }]
  })
}

/** What the assistant said before. Texts that follow each other are one message. */
function encodeAnswer({ parts }: AssistantTurn, readsThoughts: boolean): object[] {
  const items: object[] = []
  let text: string | undefined
  const endText = () => {
    if (text !== undefined) items.push({ type: 'message', role: 'assistant', content: text })
    text = undefined
  }
  for (const part of parts) {
    if (part.type === 'text') text = (text ?? '') + part.text
    else if (part.type === 'tool_call') {
      endText()
      items.push({ type: 'function_call', call_id: part.id, name: part.name, arguments: part.arguments })
    } else if (part.type === 'reasoning') {
      const thought = thoughtOf(part, readsThoughts)
      if (!thought) continue
      endText()
      items.push(thought)
    }
  }
  endText()
  return items
}

function encodeResult({ call_id, parts, is_error: hasFailed }: ToolTurn, index: number): object {
  const content = encodeContent(parts, index)
  const output = hasFailed && typeof content === 'string' ? `Error: ${content}` : content
  return { type: 'function_call_output', call_id, output }
}

/** A plain string where one says it all, since that is what every server reads. */
function encodeContent(parts: readonly Part[], index: number): unknown {
  const texts = parts.filter((part) => part.type === 'text')
  if (texts.length === parts.length && texts.length <= 1) return texts[0]?.text ?? ''
  return parts.map((part, at) => encodePart(part, `messages[${index}].content[${at}]`))
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
    default:
      throw new ServiceError('invalid_value', `A user turn cannot hold a part of type ${part.type}.`, { param })
  }
}
