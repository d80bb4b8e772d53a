import type { Part, Turn } from '#schemas/generate.ts'
import type { Pieces } from '#services/ingress/body/validate.ts'
import { customInput } from '#shared/engines/adapt.ts'
import { sealReasoning } from '#shared/protocols/responses/sealed.ts'

export interface InputItem {
  readonly id: string
  readonly type: string
  readonly [field: string]: unknown
}

/** Maximum turns that are converted between two event-loop yields. */
const PIECE_TURNS = 500

/**
 * Converts the turns of a stored prompt back to items (docs/guides/responses.md, Stored responses). Each item gets a
 * new id, because the original ids are not stored.
 *
 * @param callId Id of the response without its prefix
 */
export function* itemsOfTurns(turns: readonly Turn[], callId: string): Pieces<InputItem[]> {
  const items: InputItem[] = []
  for (const [index, turn] of turns.entries()) {
    if (index % PIECE_TURNS === 0) yield
    for (const item of itemsOfTurn(turn)) {
      items.push({ id: `${PREFIXES[item.type] ?? 'item'}_${callId}_in_${items.length}`, ...item })
    }
  }
  return items
}

type Item = Omit<InputItem, 'id'> & { readonly type: string }

const PREFIXES: Readonly<Record<string, string>> = {
  message: 'msg',
  reasoning: 'rs',
  function_call: 'fc',
  function_call_output: 'fco',
  custom_tool_call: 'ctc',
  custom_tool_call_output: 'ctco',
}

function itemsOfTurn(turn: Turn): Item[] {
  const { role, parts } = turn
  if (role === 'tool') {
    const isText = parts.every(({ type }) => type === 'text')
    const output = isText ? parts.map((part) => ('text' in part ? part.text : '')).join('\n') : parts.flatMap(inputPart)
    const type = turn.custom ? 'custom_tool_call_output' : 'function_call_output'
    return [{ type, status: 'completed', call_id: turn.call_id, output }]
  }
  if (role === 'assistant') return assistantItems(parts)
  return [{ type: 'message', status: 'completed', role, content: parts.flatMap(inputPart) }]
}

function assistantItems(parts: readonly Part[]): Item[] {
  const items: Item[] = []
  let content: object[] | undefined
  for (const part of parts) {
    if (part.type === 'text') {
      const said = { type: 'output_text', text: part.text, annotations: [], logprobs: [] }
      if (content) content.push(said)
      else {
        content = [said]
        items.push({ type: 'message', status: 'completed', role: 'assistant', content })
      }
      continue
    }
    if (part.type === 'native' && !part.isItem) {
      if (content) content.push(part.value)
      else {
        content = [part.value]
        items.push({ type: 'message', status: 'completed', role: 'assistant', content })
      }
      continue
    }
    content = undefined
    if (part.type === 'native') items.push({ ...part.value, type: String(part.value.type) })
    if (part.type === 'reasoning') items.push(reasoningItem(part))
    if (part.type === 'tool_call') {
      const { id: call_id, name, arguments: text, custom } = part
      const call = custom
        ? { type: 'custom_tool_call', input: customInput(text) }
        : { type: 'function_call', arguments: text }
      items.push({ ...call, status: 'completed', call_id, name })
    }
  }
  return items
}

function reasoningItem({ text, signature, redacted }: Extract<Part, { type: 'reasoning' }>): Item {
  const sealed = sealReasoning({ signature, redacted })
  const content = text === '' ? [] : [{ type: 'reasoning_text', text }]
  return { type: 'reasoning', status: 'completed', summary: [], content, ...(sealed && { encrypted_content: sealed }) }
}

function inputPart(part: Part): object[] {
  switch (part.type) {
    case 'text':
      return [{ type: 'input_text', text: part.text }]
    case 'image':
      return [{ type: 'input_image', image_url: part.url, detail: part.detail ?? 'auto' }]
    case 'audio':
      return [{ type: 'input_audio', input_audio: { data: part.data, format: part.format } }]
    case 'file': {
      const content = part.data.startsWith('data:') ? { file_data: part.data } : { file_url: part.data }
      return [{ type: 'input_file', ...content, ...(part.filename && { filename: part.filename }) }]
    }
    case 'native':
      return [part.value]
    default:
      return []
  }
}
