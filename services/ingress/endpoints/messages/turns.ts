import type { Part, Turn } from '#schemas/kinds/generate.ts'
import {
  type AssistantBlock,
  type InputMessage,
  type MessagesRequest,
  type ReadableBlock,
  Unknown,
  type UserBlock,
} from '#schemas/messages.ts'
import type { ModelConfig } from '#schemas/models.ts'
import {
  refuse,
  requireBase64,
  requireImageUrl,
  requireMedia,
  requireRemoteUrl,
} from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { extraOf, mapInPieces, PIECE_MESSAGES, type Pieces } from '#services/ingress/body/validate.ts'
import { isMessagesUpstream, nativePart, textBetween, unknownPart } from './native.ts'

interface MessagesTurnContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
  readonly strictTurns: boolean
  readonly beta?: string | undefined
}

type System = NonNullable<MessagesRequest['system']>
type SystemMessage = Extract<InputMessage, { role: 'system' }>

/** Matches beta features that permit `system` turns inside the conversation. */
const SYSTEM_TURNS_BETA = /\bmid-conversation-/
const SYSTEM_MARK = '[System message]\n'

/**
 * Returns the system prompt as a turn. Undefined if empty. An upstream of the Messages API receives the blocks of the
 * prompt one by one. For other upstreams, the blocks are joined by blank lines.
 */
function decodeSystem(system: System, model: ModelConfig): Turn | undefined {
  return system.length === 0 ? undefined : { role: 'system', parts: systemParts(system, 'system', model) }
}

function systemParts(content: SystemMessage['content'], param: string, model: ModelConfig): Part[] {
  if (!content || typeof content === 'string') return texts(content ?? '')
  const parts = content.map((block, index) =>
    block instanceof Unknown
      ? unknownPart(block, `${param}[${index}]`, model)
      : { ...text(block.text), extra: extraOf(block, TEXT_CONSUMED) },
  )
  return asBlocks(parts, model).flatMap((part, index) => (index === 0 ? [part] : [textBetween('\n\n'), part]))
}

const TEXT_CONSUMED: ReadonlySet<string> = new Set(['type', 'text'])
const TURN_CONSUMED: ReadonlySet<string> = new Set(['role', 'content'])

/**
 * Marks a text that the caller sent as a list with one block. Because of the empty `extra`, the encoder for the Messages API writes a list instead
 * of a string. The upstream then receives the text in the form that the caller sent.
 */
function asBlocks(parts: Part[], model: ModelConfig): Part[] {
  const [only] = parts
  if (parts.length === 1 && only?.type === 'text' && isMessagesUpstream(model)) only.extra ??= {}
  return parts
}

/**
 * Decodes the conversation, with the system prompt first (docs/reference/compatibility.md, Turns and blocks).
 *
 * The first turn must have the role user. After tool_use blocks, the next user turn must contain a result for each of
 * them. If the last turn is an assistant turn, then the model continues that turn (prefill).
 *
 * With `strictTurns`, turns must alternate, and `system` turns are refused. Upstreams of the Messages API check these
 * two rules themselves, so Sluice does not check them for such upstreams.
 */
export function* decodeConversation(
  system: System,
  messages: readonly InputMessage[],
  context: MessagesTurnContext,
): Pieces<Turn[]> {
  const decoder = new TurnDecoder(context)
  for (const [index, message] of messages.entries()) {
    if (index % PIECE_MESSAGES === 0) yield
    yield* decoder.add(message, `messages[${index}]`)
  }
  const turns = decoder.finish()
  const first = decodeSystem(system, context.model)
  return first === undefined ? turns : [first, ...turns]
}

type Role = 'user' | 'assistant'
type Ids = Map<string, string>

class TurnDecoder {
  readonly #context: MessagesTurnContext
  readonly #isStrict: boolean
  readonly #turns: Turn[] = []
  #role: Role | undefined
  /**
   * For each tool_use block of the latest assistant turn, by id, its path in the request. `#unanswered` contains the
   * blocks without a result.
   */
  #uses: Ids = new Map()
  #unanswered: Ids = new Map()

  constructor(context: MessagesTurnContext) {
    this.#context = context
    this.#isStrict = context.strictTurns && !isMessagesUpstream(context.model)
  }

  *add(message: InputMessage, param: string): Pieces<void> {
    const extra = extraOf(message, TURN_CONSUMED)
    if (message.role === 'system') return this.#addSystem(message, param, extra)
    this.#enter(message.role, param)
    if (message.role === 'user') yield* this.#addUser(message.content, `${param}.content`, extra)
    else yield* this.#addAssistant(message.content, `${param}.content`, extra)
  }

  finish(): Turn[] {
    this.#requireAnswered()
    const last = this.#turns.at(-1)
    const prefill = last?.role === 'assistant' ? last.parts.at(-1) : undefined
    if (prefill?.type === 'text' && /\s$/.test(prefill.text)) {
      refuse('invalid_value', 'messages', 'final assistant content cannot end with trailing whitespace')
    }
    return this.#turns
  }

  /**
   * Adds a system turn at its position, because moving it would invalidate the cached prompt before it. If the upstream
   * may not support such turns, then a user turn replaces the system turn.
   */
  #addSystem({ content }: SystemMessage, param: string, extra: Turn['extra']): void {
    const { model, strictTurns, beta } = this.#context
    const isAskedFor = SYSTEM_TURNS_BETA.test(beta ?? '')
    if (this.#isStrict && !isAskedFor) {
      const message = "role 'system' is not supported in messages; use the top-level system field"
      refuse('invalid_value', `${param}.role`, message)
    }
    const parts = systemParts(content, `${param}.content`, model)
    const isKept = !isMessagesUpstream(model) || strictTurns || isAskedFor
    if (isKept) this.#turns.push({ role: 'system', parts, extra })
    else if (parts.length > 0) this.#turns.push({ role: 'user', parts: [text(SYSTEM_MARK), ...parts] })
  }

  #enter(role: Role, param: string): void {
    if (this.#role === undefined && role !== 'user') {
      refuse('invalid_value', `${param}.role`, 'the first message must use the "user" role')
    }
    const isRepeated = this.#role === role
    if (isRepeated && this.#isStrict) {
      const rule = 'roles must alternate between "user" and "assistant"'
      refuse('invalid_value', 'messages', `${rule}, but found multiple "${role}" roles in a row`)
    }
    this.#role = role
    if (isRepeated || role === 'user') return
    this.#requireAnswered()
    this.#uses = new Map()
  }

  #requireAnswered(): void {
    const [first] = this.#unanswered
    if (first === undefined) return
    const [id, param] = first
    refuse('invalid_value', param, `tool_use '${excerpt(id)}' has no tool_result block in the message after it`)
  }

  *#addAssistant(content: string | readonly AssistantBlock[], param: string, extra: Turn['extra']): Pieces<void> {
    const { model } = this.#context
    const decoded =
      typeof content === 'string'
        ? texts(content)
        : yield* mapInPieces(content, (block, index) => decodeAssistantBlock(block, `${param}[${index}]`, model))
    const parts = typeof content === 'string' ? decoded : asBlocks(decoded, model)
    for (const [index, part] of parts.entries()) {
      if (part.type !== 'tool_call') continue
      const block = `${param}[${index}]`
      if (this.#uses.has(part.id)) refuse('invalid_value', `${block}.id`, 'tool_use ids must be unique')
      this.#uses.set(part.id, block)
      this.#unanswered.set(part.id, block)
    }
    this.#turns.push({ role: 'assistant', parts, extra })
  }

  /**
   * Adds a user turn. Each tool result becomes a separate turn before the user turn, because a result must directly
   * follow its call.
   */
  *#addUser(content: string | readonly UserBlock[], param: string, extra: Turn['extra']): Pieces<void> {
    if (typeof content === 'string') {
      this.#turns.push({ role: 'user', parts: texts(content), extra })
      return
    }
    const parts: Part[] = []
    let hasResult = false
    for (const [index, block] of content.entries()) {
      if (index > 0 && index % PIECE_MESSAGES === 0) yield
      const blockParam = `${param}[${index}]`
      if (block.type === 'tool_result') {
        hasResult = true
        yield* this.#addResult(block, blockParam)
      } else for (const part of decodeReadable(block, blockParam, this.#context)) parts.push(part)
    }
    if (parts.length > 0 || !hasResult)
      this.#turns.push({ role: 'user', parts: asBlocks(parts, this.#context.model), extra })
  }

  *#addResult(block: Extract<UserBlock, { type: 'tool_result' }>, param: string): Pieces<void> {
    const id = block.tool_use_id
    if (!this.#uses.has(id)) {
      const message = `no tool_use block with the id '${excerpt(id)}' in the message before`
      refuse('invalid_value', `${param}.tool_use_id`, message)
    }
    if (!this.#unanswered.delete(id)) {
      refuse('invalid_value', `${param}.tool_use_id`, `the tool_use '${excerpt(id)}' has more than one tool_result`)
    }
    this.#turns.push({
      role: 'tool',
      parts: yield* this.#resultParts(block.content ?? '', `${param}.content`),
      call_id: id,
      is_error: block.is_error ?? undefined,
      extra: extraOf(block, RESULT_CONSUMED),
    })
  }

  *#resultParts(content: string | readonly ReadableBlock[], param: string): Pieces<Part[]> {
    if (typeof content === 'string') return texts(content)
    const read = yield* mapInPieces(content, (block, index) => {
      return decodeReadable(block, `${param}[${index}]`, this.#context)
    })
    return asBlocks(read.flat(), this.#context.model)
  }
}

const RESULT_CONSUMED: ReadonlySet<string> = new Set(['type', 'tool_use_id', 'content', 'is_error'])
const USE_CONSUMED: ReadonlySet<string> = new Set(['type', 'id', 'name', 'input'])
const THINKING_CONSUMED: ReadonlySet<string> = new Set(['type', 'thinking', 'signature', 'data'])

function decodeAssistantBlock(block: AssistantBlock, param: string, model: ModelConfig): Part {
  switch (block.type) {
    case 'unknown':
      return unknownPart(block, param, model)
    case 'text':
      return { type: 'text', text: block.text, extra: extraOf(block, TEXT_CONSUMED) }
    case 'tool_use': {
      const { id, name, input } = block
      return { type: 'tool_call', id, name, arguments: JSON.stringify(input), extra: extraOf(block, USE_CONSUMED) }
    }
    case 'thinking': {
      const extra = extraOf(block, THINKING_CONSUMED)
      // Sluice's answers contain an empty signature for reasoning without a signature. Clients send these answers back,
      // so an empty signature means that there is none.
      return { type: 'reasoning', text: block.thinking, signature: block.signature || undefined, extra }
    }
    case 'redacted_thinking':
      return { type: 'reasoning', text: '', redacted: block.data, extra: extraOf(block, THINKING_CONSUMED) }
  }
}

function text(content: string): { type: 'text'; text: string } {
  return { type: 'text', text: content }
}

function texts(content: string): Part[] {
  return content === '' ? [] : [text(content)]
}

interface BlockContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
}

type Known = Exclude<ReadableBlock, Unknown>
type Image = Extract<Known, { type: 'image' }>
type Document = Extract<Known, { type: 'document' }>
type DocumentSource = Exclude<Document['source'], Unknown>

const CONSUMED: Readonly<Record<Known['type'], ReadonlySet<string>>> = {
  text: new Set(['type', 'text']),
  image: new Set(['type', 'source']),
  document: new Set(['type', 'source', 'title']),
  search_result: new Set(['type']),
}
/** Fields that are not copied to `extra` when a block becomes text, because the text contains their values. */
const CONSUMED_BY_TEXT: ReadonlySet<string> = new Set([
  ...['type', 'text', 'source', 'title', 'context', 'content', 'citations'],
])

/**
 * Converts a block to parts (docs/reference/compatibility.md, Turns and blocks). An upstream of the Messages API receives
 * text documents and search results unchanged, because it can cite them. For other upstreams, these blocks become text.
 * Other documents need a model that reads files.
 */
function decodeReadable(block: ReadableBlock, param: string, context: BlockContext): Part[] {
  if (block instanceof Unknown) return [unknownPart(block, param, context.model)]
  const parts = partsOf(block, param, context)
  const last = parts.at(-1)
  const hasBecomeText = last?.type === 'text' && block.type !== 'text'
  const extra = extraOf(block, hasBecomeText ? CONSUMED_BY_TEXT : CONSUMED[block.type])
  // The last part of the block gets `cache_control`, because this field applies to the prompt up to the end of its
  // block.
  if (last !== undefined && last.type !== 'native') last.extra = extra
  return parts
}

function partsOf(block: Known, param: string, context: BlockContext): Part[] {
  switch (block.type) {
    case 'text':
      return [{ type: 'text', text: block.text }]
    case 'image':
      return [decodeImage(block, param, context)]
    case 'document':
      return decodeDocument(block, param, context)
    case 'search_result':
      return [textOrNative(nativePart(block), context)]
  }
}

/**
 * Returns the unchanged block for an upstream of the Messages API, which can cite the block. Other upstreams receive the
 * text of the block.
 */
function textOrNative(part: ReturnType<typeof nativePart>, { model }: BlockContext): Part {
  return isMessagesUpstream(model) ? part : { type: 'text', text: part.text ?? '' }
}

function decodeImage(block: Image, param: string, context: BlockContext): Part {
  const { source } = block
  if (source instanceof Unknown) return ownSource(block, source, ['base64', 'url'], param, context)
  requireMedia(context.model, 'images', param)
  if (source.type === 'url') {
    requireImageUrl(source.url, `${param}.source.url`, context.remoteImages)
    return { type: 'image', url: source.url }
  }
  requireBase64(source.data, `${param}.source.data`)
  return { type: 'image', url: `data:${source.media_type};base64,${source.data}` }
}

/**
 * Handles a source that only an upstream of the Messages API can read, such as a file of its Files API. For other
 * upstreams, the source is refused.
 */
function ownSource(
  block: Image | Document,
  { value }: Unknown,
  known: readonly string[],
  param: string,
  { model }: BlockContext,
): Part {
  if (isMessagesUpstream(model)) return nativePart(block)
  const expected = known.map((type) => `'${type}'`).join(' or ')
  refuse('invalid_value', `${param}.source.type`, `Input should be ${expected}, not '${excerpt(value.type)}'`)
}

function decodeDocument(block: Document, param: string, context: BlockContext): Part[] {
  const { source } = block
  if (source instanceof Unknown) {
    return [ownSource(block, source, ['text', 'content', 'base64', 'url'], param, context)]
  }
  if (source.type === 'base64' || source.type === 'url') return [decodeFile(block, source, param, context)]
  if (isMessagesUpstream(context.model) || source.type === 'text' || typeof source.content === 'string') {
    return [textOrNative(nativePart(block), context)]
  }
  const inner = source.content.flatMap((part, index) =>
    decodeReadable(part, `${param}.source.content[${index}]`, context),
  )
  const head = heading(block)
  return head === '' ? inner : [{ type: 'text', text: head }, ...inner]
}

function heading({ title, context }: Document): string {
  return [title, context].map((line) => (line ? `${line}\n\n` : '')).join('')
}

type FileSource = Extract<DocumentSource, { type: 'base64' | 'url' }>

function decodeFile(block: Document, source: FileSource, param: string, context: BlockContext): Part {
  requireMedia(context.model, 'files', param)
  const filename = block.title ?? undefined
  if (source.type === 'url') {
    requireRemoteUrl(source.url, `${param}.source.url`, context.remoteImages)
    return { type: 'file', data: source.url, filename }
  }
  requireBase64(source.data, `${param}.source.data`)
  return { type: 'file', data: `data:${source.media_type};base64,${source.data}`, filename }
}
