import type { Part, Turn } from '#schemas/generate.ts'
import type { AssistantBlock, InputMessage, MessagesRequest, ReadableBlock, UserBlock } from '#schemas/messages.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { extraOf, PIECE_MESSAGES, type Pieces } from '#services/ingress/body/validate.ts'
import { refuse } from '#services/ingress/endpoints/decode.ts'
import { decodeReadable } from './blocks.ts'

/** What the turns of a conversation are checked against. */
export interface MessagesTurnContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
  readonly strictTurns: boolean
}

type System = NonNullable<MessagesRequest['system']>

/**
 * The system prompt as a turn; undefined when there is none. Its texts are joined with blank lines, but
 * stay apart, blank lines included, where a block carries something for an upstream of the same dialect, such as
 * `cache_control`: either way the parts join by concatenation.
 */
function decodeSystem(system: System): Turn | undefined {
  if (typeof system === 'string') return system === '' ? undefined : { role: 'system', parts: [text(system)] }
  if (system.length === 0) return undefined
  const last = system.length - 1
  const parts = system.map((block, index) => ({
    ...text(index === last ? block.text : `${block.text}\n\n`),
    extra: extraOf(block, TEXT_CONSUMED),
  }))
  if (parts.some((part) => part.extra !== undefined)) return { role: 'system', parts }
  return { role: 'system', parts: [text(parts.map((part) => part.text).join(''))] }
}

const TEXT_CONSUMED: ReadonlySet<string> = new Set(['type', 'text'])
const TURN_CONSUMED: ReadonlySet<string> = new Set(['role', 'content'])

/**
 * Decodes the conversation (docs/protocol.md, Turns and blocks): the system prompt comes first. Turns alternate and
 * begin with the user, a user turn after tool_use blocks answers each of them, and a last assistant turn is a prefill.
 * Without `strictTurns` repeated turns count as one, and the texts of `system` turns are put behind the system prompt,
 * in their order.
 */
export function* decodeConversation(
  system: System,
  messages: readonly InputMessage[],
  context: MessagesTurnContext,
): Pieces<Turn[]> {
  const decoder = new TurnDecoder(context)
  for (const [index, message] of messages.entries()) {
    if (index % PIECE_MESSAGES === 0) yield
    decoder.add(message, `messages[${index}]`)
  }
  const turns = decoder.finish()
  const prompt = decoder.systems.length === 0 ? system : [system, ...decoder.systems].flatMap(blocksOf)
  const first = decodeSystem(prompt)
  return first === undefined ? turns : [first, ...turns]
}

function blocksOf(system: System): Exclude<System, string> {
  if (typeof system !== 'string') return system
  return system === '' ? [] : [text(system)]
}

type Role = 'user' | 'assistant'
type Ids = Map<string, string>

class TurnDecoder {
  readonly #context: MessagesTurnContext
  readonly #turns: Turn[] = []
  /** What turns of the role `system` said. */
  readonly systems: System[] = []
  #role: Role | undefined
  /** tool_use ids of the nearest assistant turn, and of them those without a result → path of the block. */
  #uses: Ids = new Map()
  #unanswered: Ids = new Map()

  constructor(context: MessagesTurnContext) {
    this.#context = context
  }

  add(message: InputMessage, param: string): void {
    if (message.role === 'system') return this.#addSystem(message, param)
    this.#enter(message.role, param)
    const extra = extraOf(message, TURN_CONSUMED)
    if (message.role === 'user') this.#addUser(message.content, `${param}.content`, extra)
    else this.#addAssistant(message.content, `${param}.content`, extra)
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

  #addSystem(message: Extract<InputMessage, { role: 'system' }>, param: string): void {
    if (this.#context.strictTurns) {
      const message = "role 'system' is not supported in messages; use the top-level system field"
      refuse('invalid_value', `${param}.role`, message)
    }
    this.systems.push(message.content)
  }

  #enter(role: Role, param: string): void {
    if (this.#role === undefined && role !== 'user') {
      refuse('invalid_value', `${param}.role`, 'the first message must use the "user" role')
    }
    const isRepeated = this.#role === role
    if (isRepeated && this.#context.strictTurns) {
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

  #addAssistant(content: string | readonly AssistantBlock[], param: string, extra: Turn['extra']): void {
    const parts = typeof content === 'string' ? texts(content) : content.map(decodeAssistantBlock)
    for (const [index, part] of parts.entries()) {
      if (part.type !== 'tool_call') continue
      const block = `${param}[${index}]`
      if (this.#uses.has(part.id)) refuse('invalid_value', `${block}.id`, 'tool_use ids must be unique')
      this.#uses.set(part.id, block)
      this.#unanswered.set(part.id, block)
    }
    this.#turns.push({ role: 'assistant', parts, extra })
  }

  /** Results become turns of their own and come first: an answer belongs right behind its call. */
  #addUser(content: string | readonly UserBlock[], param: string, extra: Turn['extra']): void {
    if (typeof content === 'string') {
      this.#turns.push({ role: 'user', parts: texts(content), extra })
      return
    }
    const parts: Part[] = []
    let hasResult = false
    for (const [index, block] of content.entries()) {
      const place = `${param}[${index}]`
      if (block.type === 'tool_result') {
        hasResult = true
        this.#addResult(block, place)
      } else parts.push(...decodeReadable(block, place, this.#context))
    }
    if (parts.length > 0 || !hasResult) this.#turns.push({ role: 'user', parts, extra })
  }

  #addResult(block: Extract<UserBlock, { type: 'tool_result' }>, param: string): void {
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
      parts: this.#resultParts(block.content ?? '', `${param}.content`),
      call_id: id,
      is_error: block.is_error ?? undefined,
      extra: extraOf(block, RESULT_CONSUMED),
    })
  }

  #resultParts(content: string | readonly ReadableBlock[], param: string): Part[] {
    if (typeof content === 'string') return texts(content)
    return content.flatMap((block, index) => decodeReadable(block, `${param}[${index}]`, this.#context))
  }
}

const RESULT_CONSUMED: ReadonlySet<string> = new Set(['type', 'tool_use_id', 'content', 'is_error'])
const ASSISTANT_CONSUMED: ReadonlySet<string> = new Set([
  ...['type', 'text', 'citations', 'id', 'name', 'input', 'caller', 'thinking', 'signature', 'data'],
])

function decodeAssistantBlock(block: AssistantBlock): Part {
  const extra = extraOf(block, ASSISTANT_CONSUMED)
  switch (block.type) {
    case 'text':
      return { type: 'text', text: block.text, extra }
    case 'tool_use':
      return { type: 'tool_call', id: block.id, name: block.name, arguments: JSON.stringify(block.input), extra }
    case 'thinking':
      return { type: 'reasoning', text: block.thinking, signature: block.signature ?? undefined }
    case 'redacted_thinking':
      return { type: 'reasoning', text: '', redacted: block.data }
  }
}

function text(content: string): { type: 'text'; text: string } {
  return { type: 'text', text: content }
}

function texts(content: string): Part[] {
  return content === '' ? [] : [text(content)]
}
