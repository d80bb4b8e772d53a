import { type ChatMessage, type ChatPart, IMPLIED_CALL, type Unknown } from '#schemas/chat.ts'
import type { NativePart, Part, Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { refuse, requireBase64, requireDataUrl, requireImageUrl, requireMedia } from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { extraOf, mapInPieces, PIECE_MESSAGES, type Pieces } from '#services/ingress/body/validate.ts'

/** Matches addresses that a server would fetch or open: `scheme://…` and `file:…`. */
const ADDRESS = /^\s*(?:[a-z][a-z0-9+.-]*:\/\/|file:)/i

/** Fields that contain prose. Servers do not fetch addresses in prose, so addresses are allowed in these fields. */
const PROSE_FIELDS: ReadonlySet<string> = new Set(['text', 'thinking', 'reasoning', 'summary', 'title', 'content'])

export interface TurnContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
  /** True if the upstream has the chat completions API and therefore receives unknown parts unchanged. */
  readonly isSame: boolean
}

/**
 * Decodes the messages of a chat and checks their order (docs/reference/compatibility.md, Chat messages). A tool
 * message must answer a tool call of the nearest preceding assistant message. Every tool call must be answered before
 * the next message of another role.
 */
export function* decodeChatTurns(messages: readonly ChatMessage[], context: TurnContext): Pieces<Turn[]> {
  const decoder = new TurnDecoder(context)
  for (const [index, message] of messages.entries()) {
    if (index % PIECE_MESSAGES === 0) yield
    yield* decoder.add(message, `messages[${index}]`)
  }
  decoder.requireAnswered()
  return decoder.turns
}

type AssistantMessage = Extract<ChatMessage, { role: 'assistant' }>

class TurnDecoder {
  readonly #context: TurnContext
  readonly turns: Turn[] = []
  /** Tool calls of the latest assistant message. */
  #calls: OpenCalls | undefined
  #callsParam = 'messages'
  #implied: { name: string; arguments: string } | undefined
  #legacyCalls = 0

  constructor(context: TurnContext) {
    this.#context = context
  }

  *add(message: ChatMessage, param: string): Pieces<void> {
    if (message.role === 'tool') return yield* this.#addTool(message, param)
    if (message.role === 'function') return yield* this.#addFunction(message, param)
    this.requireAnswered()
    this.#calls = undefined
    if (message.role === 'assistant') return yield* this.#addAssistant(message, param)
    const named = { name: message.name ?? undefined, extra: extraOf(message, MESSAGE_CONSUMED) }
    const parts = yield* this.#parts(message.content, `${param}.content`)
    if (message.role === 'user') this.turns.push({ role: 'user', parts, ...named })
    else this.turns.push({ role: 'system', parts, ...(message.role === 'developer' && { developer: true }), ...named })
  }

  requireAnswered(): void {
    const open = this.#calls?.unanswered() ?? []
    if (open.length === 0) return
    const ids = open.slice(0, 8).map(excerpt).join(', ')
    const rule = "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
    const message = `${rule} 'tool_call_id'. The following tool_call_ids did not have response messages: ${ids}`
    refuse('invalid_value', this.#callsParam, message)
  }

  *#addAssistant(message: AssistantMessage, param: string): Pieces<void> {
    if (isSilent(message)) {
      const text = "An assistant message needs 'content' unless it has 'tool_calls' or a 'refusal'."
      refuse('missing_required_parameter', `${param}.content`, text)
    }
    const { reasoning_content } = message
    const thoughts: Part[] = reasoning_content ? [{ type: 'reasoning', text: reasoning_content }] : []
    const said = yield* this.#parts(message.content ?? '', `${param}.content`)
    const parts = [...thoughts, ...said, ...messageFields(message)]
    const calls = (message.tool_calls ?? []).map(decodeCall)
    this.#calls = calls.length > 0 ? new OpenCalls(calls, parts) : undefined
    const extra = extraOf(message, MESSAGE_CONSUMED)
    this.turns.push({ role: 'assistant', parts, name: message.name ?? undefined, extra })
    this.#callsParam = param
    this.#implied = message.function_call ?? undefined
  }

  *#addTool(message: Extract<ChatMessage, { role: 'tool' }>, param: string): Pieces<void> {
    const wireId = message.tool_call_id
    if (!this.#calls) {
      const text = "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
      refuse('invalid_value', `${param}.role`, text)
    }
    const call = this.#calls.answer(wireId)
    if (call === undefined) {
      const text = `Invalid 'tool_call_id': '${excerpt(wireId)}' does not match a tool call of the preceding assistant message.`
      refuse('invalid_value', `${param}.tool_call_id`, text)
    }
    const parts = yield* this.#parts(message.content ?? '', `${param}.content`)
    const custom = call.custom ? { custom: true } : {}
    this.turns.push({ role: 'tool', parts, call_id: call.id, ...custom, extra: extraOf(message, TOOL_CONSUMED) })
  }

  /**
   * Adds the result of a legacy function call, which contains the name of the function but no call id. If no unanswered
   * call has that name, then a call is inserted before the result.
   */
  *#addFunction(message: Extract<ChatMessage, { role: 'function' }>, param: string): Pieces<void> {
    const { name } = message
    const parts = yield* this.#parts(message.content ?? '', `${param}.content`)
    const extra = extraOf(message, MESSAGE_CONSUMED)
    const call_id = this.#calls?.answerNamed(name)
    if (call_id !== undefined) this.turns.push({ role: 'tool', parts, call_id, extra })
    else
      this.turns.push({
        role: 'tool',
        parts,
        call_id: this.#implyCall(name),
        extra: { ...extra, role: 'function', name },
      })
  }

  #implyCall(name: string): string {
    this.requireAnswered()
    this.#legacyCalls += 1
    const id = `call_function_${this.#legacyCalls}`
    const made = this.#implied?.name === name ? this.#implied.arguments : '{}'
    this.#implied = undefined
    const part: Part = { type: 'tool_call', id, name, arguments: made, extra: { [IMPLIED_CALL]: true } }
    const last = this.turns.at(-1)
    if (last?.role === 'assistant') last.parts.push(part)
    else this.turns.push({ role: 'assistant', parts: [part] })
    return id
  }

  *#parts(content: string | readonly MessagePart[], param: string): Pieces<Part[]> {
    if (typeof content === 'string') return content === '' ? [] : [{ type: 'text', text: content }]
    return yield* mapInPieces(content, (part, index) => decodePart(part, `${param}[${index}]`, this.#context))
  }
}

function isSilent(message: AssistantMessage): boolean {
  const { content, tool_calls, refusal, function_call, audio, reasoning_content } = message
  if (content !== undefined && content !== null) return false
  return !(tool_calls?.length || refusal || function_call || audio || reasoning_content)
}

/**
 * Returns the fields of an assistant message that `Turn` does not represent. An upstream without the chat completions API
 * receives a text instead of a refusal or audio, and no `function_call`.
 */
function messageFields({ refusal, audio, function_call }: AssistantMessage): NativePart[] {
  const fields: NativePart[] = []
  if (refusal) fields.push(native({ refusal }, refusal))
  if (audio) fields.push(native({ audio }, typeof audio.transcript === 'string' ? audio.transcript : undefined))
  if (function_call) fields.push(native({ function_call }))
  return fields
}

function native(value: Record<string, unknown>, text?: string): NativePart {
  return { type: 'native', dialect: 'openai', value, ...(text !== undefined && { text }) }
}

function decodeCall(call: NonNullable<AssistantMessage['tool_calls']>[number]): MadeCall {
  const { id } = call
  if (call.type === 'custom') {
    const { name, input } = call.custom as { name: string; input: string }
    const extra = innerExtra(call, CALL_CONSUMED, 'custom', ['name', 'input'])
    return { type: 'tool_call', id, name, arguments: JSON.stringify({ input }), custom: true, extra }
  }
  const { name, arguments: text } = call.function as { name: string; arguments: string }
  const extra = innerExtra(call, CALL_CONSUMED, 'function', ['name', 'arguments'])
  return { type: 'tool_call', id, name, arguments: text, extra }
}

/**
 * Fields of a message that `Turn` represents, or that only repeat another part of the message. An upstream with the chat
 * completions API receives all other fields unchanged.
 */
const MESSAGE_CONSUMED: ReadonlySet<string> = new Set([
  ...['role', 'content', 'name', 'refusal', 'reasoning_content', 'tool_calls', 'tool_call_id'],
  ...['function_call', 'audio', 'annotations'],
])
const TOOL_CONSUMED: ReadonlySet<string> = new Set(['role', 'content', 'tool_call_id'])
const CALL_CONSUMED: ReadonlySet<string> = new Set(['type', 'id', 'function', 'custom'])
const PART_CONSUMED: ReadonlySet<string> = new Set(['type', 'text', 'image_url', 'input_audio', 'file'])

type MessagePart = ChatPart | { type: 'refusal'; refusal: string }

function decodePart(part: MessagePart, param: string, context: TurnContext): Part {
  switch (part.type) {
    case 'text':
      return { type: 'text', text: part.text, extra: extraOf(part, PART_CONSUMED) }
    case 'refusal':
      return native(part, part.refusal)
    case 'unknown':
      return unknownPart(part, param, context)
    case 'image_url': {
      const { url, detail } = part.image_url
      requireMedia(context.model, 'images', param)
      requireImageUrl(url, `${param}.image_url.url`, context.remoteImages)
      const extra = partExtra(part, 'image_url', ['url', 'detail'])
      return { type: 'image', url, detail: detail ?? undefined, extra }
    }
    case 'input_audio': {
      const { data, format } = part.input_audio
      requireMedia(context.model, 'audio', param)
      requireBase64(data, `${param}.input_audio.data`)
      return { type: 'audio', data, format, extra: partExtra(part, 'input_audio', ['data', 'format']) }
    }
    case 'file': {
      const { file_data: data, filename } = part.file
      requireMedia(context.model, 'files', param)
      if (!data) return fileById(part, param, context)
      requireDataUrl(data, `${param}.file.file_data`)
      return {
        type: 'file',
        data,
        filename: filename ?? undefined,
        extra: partExtra(part, 'file', ['file_data', 'filename']),
      }
    }
  }
}

function partExtra(part: object, name: string, known: readonly string[]): Record<string, unknown> | undefined {
  return innerExtra(part, PART_CONSUMED, name, known)
}

function innerExtra(
  outer: object,
  consumed: ReadonlySet<string>,
  name: string,
  known: readonly string[],
): Record<string, unknown> | undefined {
  const inner = extraOf((outer as Record<string, object>)[name] ?? {}, new Set(known))
  const extra = extraOf(outer, consumed)
  return inner ? { ...extra, [name]: inner } : extra
}

function fileById(part: Extract<ChatPart, { type: 'file' }>, param: string, context: TurnContext): NativePart {
  if (context.isSame && typeof part.file.file_id === 'string') return native(part)
  return refuse(
    'missing_required_parameter',
    `${param}.file.file_data`,
    `Missing required parameter: '${param}.file.file_data'.`,
  )
}

function unknownPart({ value }: Unknown, param: string, context: TurnContext): NativePart {
  if (!context.isSame) {
    const message = `Invalid value: '${excerpt(value.type)}'. The model '${context.model.id}' does not accept content parts of this type here.`
    refuse('invalid_value', `${param}.type`, message)
  }
  refuseAddresses(value, param)
  return native(value)
}

/**
 * Refuses addresses inside a part of an unknown type, such as `video_url`. An upstream would fetch them from inside the
 * operator's network (SSRF). The setting `REMOTE_IMAGES` covers only images. Data URLs are allowed.
 *
 * @throws ServiceError `unsupported_value` if the value contains such an address
 */
function refuseAddresses(value: unknown, param: string): void {
  if (typeof value === 'string' && ADDRESS.test(value)) {
    const message = 'Remote URLs are not fetched from parts of this type. Send the content as a data URL.'
    refuse('unsupported_value', param, message)
  }
  if (typeof value !== 'object' || value === null) return
  for (const [name, inner] of Object.entries(value)) {
    if (typeof inner === 'string' && PROSE_FIELDS.has(name)) continue
    refuseAddresses(inner, Array.isArray(value) ? `${param}[${name}]` : `${param}.${name}`)
  }
}

type MadeCall = Extract<Part, { type: 'tool_call' }>

interface Shared {
  readonly calls: MadeCall[]
  next: number
}

/**
 * Tool calls of one assistant message that wait for their results.
 *
 * Some upstreams give two calls of one answer the same id. The ids are made unique here, and the results are assigned
 * to the calls in order.
 *
 * A client that stores calls by id sends only one result for two such calls. The call without a result is then removed
 * from the message.
 */
export class OpenCalls {
  readonly #parts: Part[]
  readonly #byWireId = new Map<string, Shared>()
  readonly #unanswered = new Map<string, string>()
  /**
   * For each function name, the ids of its calls in reverse order. Built when the first result without an id arrives.
   */
  #byName: Map<string, string[]> | undefined

  constructor(calls: readonly MadeCall[], parts: Part[]) {
    this.#parts = parts
    const taken = new Set(calls.map(({ id }) => id))
    let number = 1
    for (const wire of calls) {
      const shared = this.#byWireId.get(wire.id)
      let { id } = wire
      while (shared && taken.has(id)) id = `${wire.id}_${++number}`
      taken.add(id)
      const call = { ...wire, id }
      parts.push(call)
      if (shared) shared.calls.push(call)
      else this.#byWireId.set(wire.id, { calls: [call], next: 0 })
      this.#unanswered.set(id, wire.id)
    }
  }

  answer(wireId: string): MadeCall | undefined {
    const shared = this.#byWireId.get(wireId)
    if (!shared) return undefined
    for (let call = shared.calls[shared.next]; call; call = shared.calls[shared.next]) {
      shared.next += 1
      if (this.#unanswered.delete(call.id)) return call
    }
    return shared.calls[0]
  }

  /** Marks the first unanswered tool call of a function as answered, and returns its id. Undefined if there is none. */
  answerNamed(name: string): string | undefined {
    this.#byName ??= this.#idsByName()
    const ids = this.#byName.get(name) ?? []
    for (let id = ids.pop(); id !== undefined; id = ids.pop()) if (this.#unanswered.delete(id)) return id
    return undefined
  }

  /**
   * Returns the ids of the tool calls without a result, as the client sent them. If two calls have the same id and only one has a result, then the
   * call without a result is removed first.
   */
  unanswered(): string[] {
    if (this.#unanswered.size === 0) return []
    const removed = new Set<string>()
    for (const [id, wireId] of this.#unanswered) if (this.#byWireId.get(wireId)?.next) removed.add(id)
    for (const id of removed) this.#unanswered.delete(id)
    if (removed.size > 0) this.#remove(removed)
    return [...this.#unanswered.values()]
  }

  #remove(ids: ReadonlySet<string>): void {
    const kept = this.#parts.filter((part) => part.type !== 'tool_call' || !ids.has(part.id))
    this.#parts.length = 0
    for (const part of kept) this.#parts.push(part)
  }

  #idsByName(): Map<string, string[]> {
    const byName = new Map<string, string[]>()
    const calls = [...this.#byWireId.values()].flatMap(({ calls }) => calls)
    for (const { name, id } of calls.reverse()) {
      const ids = byName.get(name)
      if (ids) ids.push(id)
      else byName.set(name, [id])
    }
    return byName
  }
}
