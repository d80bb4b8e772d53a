import type { GenerateRequest, Part, Turn } from '#schemas/generate.ts'
import { objectIn } from '#shared/json/object.ts'
import { ServiceError } from '#shared/lib/error.ts'

interface Message {
  readonly role: Role
  readonly content: Block[]
  extra: object | undefined
  readonly isOpen: boolean
}

type Role = Exclude<Turn['role'], 'tool'>

interface Block {
  readonly value: object
  /** Whether the block is a text without further fields, which can be sent as a plain string. */
  readonly isPlain: boolean
}

type ToolCallPart = Extract<Part, { type: 'tool_call' }>

/**
 * Converts turns into the system prompt and the messages of the Messages API.
 *
 * Tool results and the text after them form one user message, since the API requires all results in the message after the calls. Other
 * turns of callers of the same API stay unchanged, including `system` turns.
 *
 * Turns of other callers must alternate: adjacent turns of one role are merged, and all `system` turns move to the front. If there are only
 * system turns, then the last one becomes the user message.
 *
 * Empty texts are removed, because the API rejects them. Names of speakers are dropped.
 */
export function encodeConversation(request: GenerateRequest): { system: unknown; messages: object[] } {
  const sameDialect = request.dialect === 'anthropic'
  const messages: Message[] = []
  const system: Block[][] = []
  for (const [index, turn] of request.turns.entries()) {
    const content = encodeTurn(turn, index, sameDialect)
    const isPrompt = turn.role === 'system' && (!sameDialect || messages.length === 0)
    if (isPrompt) system.push(content)
    else append(messages, turn, content, sameDialect)
  }
  const last = messages.length === 0 ? system.pop() : undefined
  if (last) messages.push({ role: 'user', content: last, extra: undefined, isOpen: false })
  if (!sameDialect) trimPrefill(messages)
  return {
    system: sameDialect ? simplest(system.flat()) : system.map(joinTexts).join('\n\n') || undefined,
    messages: messages.map(({ role, content, extra }) => ({ ...extra, role, content: simplest(content) })),
  }
}

function append(messages: Message[], turn: Turn, content: Block[], sameDialect: boolean): void {
  const extra = sameDialect && turn.role !== 'tool' ? turn.extra : undefined
  // A system turn may consist only of fields of its own, such as output_config.
  if (content.length === 0 && !(turn.role === 'system' && extra)) return
  const role = turn.role === 'tool' ? 'user' : turn.role
  const last = messages.at(-1)
  if (last?.role === role && (!sameDialect || last.isOpen)) {
    for (const block of content) last.content.push(block)
    if (extra) last.extra = { ...last.extra, ...extra }
  } else messages.push({ role, content, extra, isOpen: turn.role === 'tool' })
}

function encodeTurn(turn: Turn, index: number, sameDialect: boolean): Block[] {
  const param = `messages[${index}].content`
  const content = encodeParts(turn.parts, param, sameDialect)
  if (turn.role !== 'tool') return content
  const value = {
    ...(sameDialect ? turn.extra : {}),
    type: 'tool_result',
    tool_use_id: wordOfId(turn.call_id),
    ...(content.length > 0 ? { content: simplest(content) } : {}),
    ...(turn.is_error === undefined ? {} : { is_error: turn.is_error }),
  }
  return [{ value, isPlain: false }]
}

/** A string if the content is one plain text; else the blocks; undefined for no content. */
function simplest(content: readonly Block[]): unknown {
  const [only] = content
  if (!only) return undefined
  return content.length === 1 && only.isPlain ? textOf(only) : content.map(({ value }) => value)
}

function textOf({ value }: Block): string {
  return (value as { text?: string }).text ?? ''
}

function joinTexts(blocks: readonly Block[]): string {
  return blocks.map(textOf).join('')
}

function encodeParts(parts: readonly Part[], param: string, sameDialect: boolean): Block[] {
  const blocks: Block[] = []
  for (const [index, part] of parts.entries()) {
    const block = encodePart(part, `${param}[${index}]`, sameDialect)
    const extra = sameDialect && 'extra' in part ? part.extra : undefined
    if (block) blocks.push({ value: { ...extra, ...block }, isPlain: part.type === 'text' && extra === undefined })
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
      return { type: 'tool_use', id: wordOfId(part.id), name: part.name, input: toolInput(part) }
    case 'reasoning':
      return sameDialect ? encodeThinking(part) : undefined
    case 'audio':
      throw new ServiceError('unsupported_value', 'This model does not support audio input.', { param })
    case 'native':
      // A native part without fields stands for text between blocks and has no block.
      return Object.keys(part.value).length === 0 ? undefined : part.value
  }
}

/** Unsigned thinking is dropped: it came from another kind of model, and the API would reject it. */
function encodeThinking({ text, signature, redacted }: Extract<Part, { type: 'reasoning' }>): object | undefined {
  if (redacted !== undefined) return { type: 'redacted_thinking', data: redacted }
  return signature ? { type: 'thinking', thinking: text, signature } : undefined
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
  throw new ServiceError('unsupported_value', `This model does not support files of type ${source.media_type}.`, {
    param,
  })
}

function mediaSource(url: string): { type: 'base64'; media_type: string; data: string } | undefined {
  const comma = url.indexOf(',')
  const head = /^data:([^;,]*)(?:;[^,]*)?;base64$/i.exec(url.slice(0, comma))
  if (!head) return undefined
  const media_type = head[1]?.toLowerCase() || 'application/octet-stream'
  return { type: 'base64', media_type, data: url.slice(comma + 1) }
}

/** The API accepts only objects. Other arguments are wrapped, so that the model sees its mistake and can correct it. */
function toolInput(part: ToolCallPart): object {
  if (part.arguments.trim() === '') return {}
  return objectIn(part.arguments) ?? { invalid_json: part.arguments }
}

/** Ids of other APIs may contain characters that are rejected here. A call and its result are changed in the same way. */
function wordOfId(id: string): string {
  return id.replace(/[^a-zA-Z0-9_-]/g, '_')
}

/** Trailing whitespace of a prefill is rejected here, but permitted in chat completions. */
function trimPrefill(messages: Message[]): void {
  const last = messages.at(-1)
  const block = last?.content.at(-1)?.value as { text?: string } | undefined
  if (last?.role !== 'assistant' || block?.text === undefined) return
  block.text = block.text.trimEnd()
  if (block.text === '') last.content.pop()
  if (last.content.length === 0) messages.pop()
}
