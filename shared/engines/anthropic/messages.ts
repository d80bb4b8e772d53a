import type { GenerateRequest, Part, Turn } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import { objectIn } from '#shared/json/object.ts'

interface Message {
  readonly role: 'user' | 'assistant'
  readonly content: object[]
  readonly extra: object | undefined
}

type ToolCallPart = Extract<Part, { type: 'tool_call' }>

/**
 * Turns as the system prompt and the messages of the messages protocol.
 *
 * The protocol wants user and assistant in turn, so neighbours of one role become one message; results of tools open the
 * user message after their calls. System turns go to the front, wherever they stood; a request of nothing but system
 * turns asks with the last of them. Empty texts are left out, because the protocol refuses them. Names of speakers have
 * no place here.
 */
export function encodeConversation(request: GenerateRequest): { system: unknown; messages: object[] } {
  const sameDialect = request.dialect === 'anthropic'
  const messages: Message[] = []
  const system: object[][] = []
  for (const [index, turn] of request.turns.entries()) {
    const content = encodeTurn(turn, index, sameDialect)
    if (turn.role === 'system') system.push(content)
    else append(messages, turn, content, sameDialect)
  }
  const last = messages.length === 0 ? system.pop() : undefined
  if (last) messages.push({ role: 'user', content: last, extra: undefined })
  if (!sameDialect) trimPrefill(messages)
  return {
    system: sameDialect ? simplest(system.flat()) : system.map(joinTexts).join('\n\n') || undefined,
    messages: messages.map(({ role, content, extra }) => ({ ...extra, role, content: simplest(content) })),
  }
}

function append(messages: Message[], turn: Turn, content: object[], sameDialect: boolean): void {
  if (content.length === 0) return
  const role = turn.role === 'assistant' ? 'assistant' : 'user'
  const last = messages.at(-1)
  if (last?.role === role) last.content.push(...content)
  else messages.push({ role, content, extra: sameDialect && turn.role !== 'tool' ? turn.extra : undefined })
}

function encodeTurn(turn: Turn, index: number, sameDialect: boolean): object[] {
  const param = `messages[${index}].content`
  const content = encodeParts(turn.parts, param, sameDialect)
  if (turn.role !== 'tool') return content
  return [
    {
      ...(sameDialect ? turn.extra : {}),
      type: 'tool_result',
      tool_use_id: wordOfId(turn.call_id),
      ...(content.length > 0 ? { content: simplest(content) } : {}),
      ...(turn.is_error === undefined ? {} : { is_error: turn.is_error }),
    },
  ]
}

/** A string when the content is one text block and nothing else; the blocks themselves; undefined for none. */
function simplest(content: readonly object[]): unknown {
  const [only] = content
  if (!only) return undefined
  const { type, text, ...rest } = only as { type: string; text?: string }
  return content.length === 1 && type === 'text' && Object.keys(rest).length === 0 ? text : content
}

function joinTexts(blocks: readonly object[]): string {
  return blocks.map((block) => (block as { text?: string }).text ?? '').join('')
}

function encodeParts(parts: readonly Part[], param: string, sameDialect: boolean): object[] {
  const blocks: object[] = []
  for (const [index, part] of parts.entries()) {
    const block = encodePart(part, `${param}[${index}]`, sameDialect)
    if (block) blocks.push({ ...(sameDialect && 'extra' in part ? part.extra : {}), ...block })
  }
  return blocks
}

function encodePart(part: Part, param: string, sameDialect: boolean): object | undefined {
  switch (part.type) {
    case 'text':
      return part.text === '' ? undefined : { type: 'text', text: part.text }
    case 'image':
      return { type: 'image', source: mediaSource(part.url) ?? { type: 'url', url: part.url } }
    case 'file':
      return encodeFile(part, param)
    case 'tool_call':
      return { type: 'tool_use', id: wordOfId(part.id), name: part.name, input: toolInput(part, param) }
    case 'reasoning':
      return sameDialect ? encodeThinking(part) : undefined
    case 'audio':
      throw new ServiceError('unsupported_value', 'This model does not read audio.', { param })
  }
}

/** Unsigned thinking is left out: it did not come from this kind of model, and would be refused. */
function encodeThinking({ text, signature, redacted }: Extract<Part, { type: 'reasoning' }>): object | undefined {
  if (redacted !== undefined) return { type: 'redacted_thinking', data: redacted }
  return signature === undefined ? undefined : { type: 'thinking', thinking: text, signature }
}

function encodeFile(part: Extract<Part, { type: 'file' }>, param: string): object {
  const title = part.filename === undefined ? {} : { title: part.filename }
  const source = mediaSource(part.data)
  if (!source) return { type: 'document', source: { type: 'url', url: part.data }, ...title }
  if (source.media_type === 'application/pdf') return { type: 'document', source, ...title }
  if (source.media_type.startsWith('text/')) {
    const data = Buffer.from(source.data, 'base64').toString('utf8')
    return { type: 'document', source: { type: 'text', media_type: 'text/plain', data }, ...title }
  }
  throw new ServiceError('unsupported_value', `This model does not read files of type ${source.media_type}.`, { param })
}

/** A data: URL with base64 content as a source; undefined for any other URL. */
function mediaSource(url: string): { type: 'base64'; media_type: string; data: string } | undefined {
  const comma = url.indexOf(',')
  const head = /^data:([^;,]*)(?:;[^,]*)?;base64$/i.exec(url.slice(0, comma))
  if (!head) return undefined
  const media_type = head[1]?.toLowerCase() || 'application/octet-stream'
  return { type: 'base64', media_type, data: url.slice(comma + 1) }
}

function toolInput(part: ToolCallPart, param: string): object {
  if (part.arguments.trim() === '') return {}
  const input = objectIn(part.arguments)
  if (input) return input
  throw new ServiceError('invalid_value', 'The arguments of a tool call must be a JSON object.', { param })
}

/** Ids of other dialects may hold characters that are refused here; a call and its result change alike. */
function wordOfId(id: string): string {
  return id.replace(/[^a-zA-Z0-9_-]/g, '_')
}

/** White space at the end of a prefill is refused here; chat completions may well end in it. */
function trimPrefill(messages: Message[]): void {
  const last = messages.at(-1)
  const block = last?.content.at(-1) as { text?: string } | undefined
  if (last?.role !== 'assistant' || block?.text === undefined) return
  block.text = block.text.trimEnd()
  if (block.text === '') last.content.pop()
  if (last.content.length === 0) messages.pop()
}
