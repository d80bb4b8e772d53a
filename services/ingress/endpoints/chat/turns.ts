import type { ChatMessage, ChatUserPart } from '#schemas/chat.ts'
import type { Part, Turn } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { requireBase64, requireDataUrl, requireImageUrl } from '#services/ingress/body/media.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { extraOf, PIECE_MESSAGES, type Pieces } from '#services/ingress/body/validate.ts'
import { refuse, requireMedia } from '#services/ingress/endpoints/decode.ts'

/** What the parts of a conversation are checked against. */
export interface TurnContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
}

/**
 * Decodes the messages of a chat (docs/protocol.md, Chat messages) and checks their order: a tool message answers a
 * call of the nearest assistant message before it, and every call is answered before anything else is said.
 */
export function* decodeChatTurns(messages: readonly ChatMessage[], context: TurnContext): Pieces<Turn[]> {
  const decoder = new TurnDecoder(context)
  for (const [index, message] of messages.entries()) {
    if (index % PIECE_MESSAGES === 0) yield
    decoder.add(message, `messages[${index}]`)
  }
  return decoder.finish()
}

class TurnDecoder {
  readonly #context: TurnContext
  readonly #turns: Turn[] = []
  /** Calls of the nearest assistant message: id → its name. */
  #calls = new Map<string, string>()
  #unanswered = new Set<string>()
  /** Names of calls → their ids in order, for results that name no id; made for the first of them. */
  #open: Map<string, string[]> | undefined
  #callsParam = 'messages'
  /** The legacy call of the nearest assistant message, if any. */
  #implied: { name: string; arguments: string } | undefined
  #legacyCalls = 0

  constructor(context: TurnContext) {
    this.#context = context
  }

  add(message: ChatMessage, param: string): void {
    if (message.role === 'tool') return this.#addTool(message, param)
    if (message.role === 'function') return this.#addFunction(message)
    this.#requireAnswered()
    this.#calls = new Map()
    this.#open = undefined
    if (message.role === 'assistant') return this.#addAssistant(message, param)
    const role = message.role === 'user' ? 'user' : 'system'
    const parts = this.#parts(message.content, `${param}.content`)
    this.#turns.push({ role, parts, name: message.name ?? undefined, extra: extraOf(message, MESSAGE_CONSUMED) })
  }

  finish(): Turn[] {
    this.#requireAnswered()
    return this.#turns
  }

  #requireAnswered(): void {
    if (this.#unanswered.size === 0) return
    const ids = [...this.#unanswered].slice(0, 8).map(excerpt).join(', ')
    const rule = "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
    const message = `${rule} 'tool_call_id'. The following tool_call_ids did not have response messages: ${ids}`
    refuse('invalid_value', this.#callsParam, message)
  }

  #addAssistant(message: Extract<ChatMessage, { role: 'assistant' }>, param: string): void {
    const calls = message.tool_calls ?? []
    const isSilent = message.content === undefined || message.content === null
    if (isSilent && calls.length === 0 && !message.refusal && !message.function_call) {
      const text = "An assistant message needs 'content' unless it has 'tool_calls' or a 'refusal'."
      refuse('missing_required_parameter', `${param}.content`, text)
    }
    const parts: Part[] = []
    if (message.reasoning_content) parts.push({ type: 'reasoning', text: message.reasoning_content })
    parts.push(...this.#parts(message.content ?? '', `${param}.content`))
    if (message.refusal) parts.push({ type: 'text', text: message.refusal })
    for (const { id, function: called, ...rest } of calls) {
      const extra = extraOf(rest, CALL_CONSUMED)
      parts.push({ type: 'tool_call', id, name: called.name, arguments: called.arguments, extra })
    }
    const extra = extraOf(message, MESSAGE_CONSUMED)
    this.#turns.push({ role: 'assistant', parts, name: message.name ?? undefined, extra })
    this.#calls = new Map(calls.map((call) => [call.id, call.function.name]))
    this.#unanswered = new Set(this.#calls.keys())
    this.#callsParam = param
    this.#implied = message.function_call ?? undefined
  }

  #addTool(message: Extract<ChatMessage, { role: 'tool' }>, param: string): void {
    const id = message.tool_call_id
    if (this.#calls.size === 0) {
      const text = "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
      refuse('invalid_value', `${param}.role`, text)
    }
    if (!this.#calls.has(id)) {
      const text = `Invalid 'tool_call_id': '${excerpt(id)}' is not a call of the nearest assistant message before it.`
      refuse('invalid_value', `${param}.tool_call_id`, text)
    }
    this.#unanswered.delete(id)
    const parts = this.#parts(message.content, `${param}.content`)
    this.#turns.push({ role: 'tool', parts, call_id: id, extra: extraOf(message, MESSAGE_CONSUMED) })
  }

  /** A legacy result has a name but no id. Where no open call bears the name, the call it implies is put before it. */
  #addFunction(message: Extract<ChatMessage, { role: 'function' }>): void {
    const { name } = message
    const id = this.#findUnanswered(name) ?? this.#implyCall(name)
    this.#unanswered.delete(id)
    this.#turns.push({
      role: 'tool',
      parts: textParts(message.content ?? ''),
      call_id: id,
      extra: extraOf(message, MESSAGE_CONSUMED),
    })
  }

  #findUnanswered(name: string): string | undefined {
    this.#open ??= this.#callsByName()
    const ids = this.#open.get(name) ?? []
    // A message that names its id may have answered one since.
    for (let id = ids.pop(); id !== undefined; id = ids.pop()) if (this.#unanswered.has(id)) return id
    return undefined
  }

  /** The first call of a name comes last. */
  #callsByName(): Map<string, string[]> {
    const byName = new Map<string, string[]>()
    for (const [id, name] of [...this.#calls].reverse()) {
      const ids = byName.get(name)
      if (ids) ids.push(id)
      else byName.set(name, [id])
    }
    return byName
  }

  #implyCall(name: string): string {
    this.#requireAnswered()
    this.#legacyCalls += 1
    const id = `call_function_${this.#legacyCalls}`
    const made = this.#implied?.name === name ? this.#implied.arguments : '{}'
    this.#implied = undefined
    const part: Part = { type: 'tool_call', id, name, arguments: made }
    const last = this.#turns.at(-1)
    if (last?.role === 'assistant') last.parts.push(part)
    else this.#turns.push({ role: 'assistant', parts: [part] })
    return id
  }

  #parts(content: string | readonly MessagePart[], param: string): Part[] {
    if (typeof content === 'string') return textParts(content)
    return content.map((part, index) => decodePart(part, `${param}[${index}]`, this.#context))
  }
}

/** Keys of a message that have an internal meaning, or that are the echo of an answer and end here. */
const MESSAGE_CONSUMED: ReadonlySet<string> = new Set([
  ...['role', 'content', 'name', 'refusal', 'reasoning_content', 'tool_calls', 'tool_call_id'],
  ...['function_call', 'audio', 'annotations'],
])
const CALL_CONSUMED: ReadonlySet<string> = new Set(['type'])
const PART_CONSUMED: ReadonlySet<string> = new Set(['type', 'text', 'refusal', 'image_url', 'input_audio', 'file'])

function textParts(text: string): Part[] {
  return text === '' ? [] : [{ type: 'text', text }]
}

type MessagePart = ChatUserPart | { type: 'refusal'; refusal: string }

function decodePart(part: MessagePart, param: string, context: TurnContext): Part {
  const extra = extraOf(part, PART_CONSUMED)
  switch (part.type) {
    case 'text':
      return { type: 'text', text: part.text, extra }
    case 'refusal':
      return { type: 'text', text: part.refusal, extra }
    case 'image_url': {
      const { url, detail } = part.image_url
      requireMedia(context.model, 'images', param)
      requireImageUrl(url, `${param}.image_url.url`, context.remoteImages)
      return { type: 'image', url, detail: detail ?? undefined, extra }
    }
    case 'input_audio': {
      requireMedia(context.model, 'audio', param)
      requireBase64(part.input_audio.data, `${param}.input_audio.data`)
      return { type: 'audio', data: part.input_audio.data, format: part.input_audio.format, extra }
    }
    case 'file': {
      requireMedia(context.model, 'files', param)
      requireDataUrl(part.file.file_data, `${param}.file.file_data`)
      return { type: 'file', data: part.file.file_data, filename: part.file.filename ?? undefined, extra }
    }
  }
}
