import type { Part, Turn } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { AnyItem, type InputPart, ITEMS, type ItemOf, type ItemType } from '#schemas/responses/request.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseAt } from '#services/ingress/body/validate.ts'
import { refuse, requireMedia } from '#services/ingress/endpoints/decode.ts'
import { ServiceError } from '#shared/error.ts'
import { unsealReasoning } from '#shared/protocols/responses/sealed.ts'
import { type HostedItemIn, type HostedTurns, hostedTurns } from './hosted-items.ts'
import { decodePart } from './parts.ts'

/** What items are checked against. */
export interface ItemContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
  /** What references mean, by their ids. */
  readonly referenced: ReadonlyMap<string, AnyItem>
  /** Characters that these may have together, each counted as often as it is referred to. */
  readonly referencedCharsMax: number
}

type AssistantTurn = Extract<Turn, { role: 'assistant' }>
type UserRole = ItemOf<'message'>['role']

/**
 * Items as turns (docs/responses.md, Items). What an assistant says in a row is one turn; the outputs of its calls follow it,
 * in whichever order the items come, and every call is answered before anybody else speaks.
 */
export class ItemTurns {
  readonly turns: Turn[] = []
  readonly #context: ItemContext
  /** Calls without an output, each with the turn that it belongs to. */
  readonly #unanswered = new Map<string, AssistantTurn>()
  /** Characters of items that were referred to, by their ids. */
  readonly #referred = new Map<string, number>()
  #referredChars = 0

  constructor(context: ItemContext) {
    this.#context = context
  }

  /** What was said before, as it was understood then. @param param What refers to it. */
  addTurns(turns: readonly Turn[], param: string): void {
    for (const turn of turns) {
      for (const { type } of turn.parts) {
        const kind = MEDIA[type]
        if (kind) requireMedia(this.#context.model, kind, param)
      }
      this.turns.push(turn)
    }
  }

  /** @param path Where it stands, such as `input`, 3. */
  add(item: unknown, path: readonly PropertyKey[]): void {
    const type = parseAt(AnyItem, item, path).type ?? 'message'
    if (!isItemType(type)) return refuseType(type, path)
    switch (type) {
      case 'message':
        return this.#message(parseAt(ITEMS.message, item, path), path)
      case 'function_call':
        return this.#call(parseAt(ITEMS.function_call, item, path))
      case 'function_call_output':
        return this.#output(parseAt(ITEMS.function_call_output, item, path), path)
      case 'code_interpreter_call':
      case 'web_search_call':
      case 'file_search_call': {
        const ran = parseAt(ITEMS[type], item, path)
        return this.#run(ran.id, hostedTurns({ ...ran, type } as HostedItemIn))
      }
      case 'reasoning':
        return this.#reasoning(parseAt(ITEMS.reasoning, item, path))
      case 'item_reference':
        return this.#reference(parseAt(ITEMS.item_reference, item, path), path)
    }
  }

  /** @throws ServiceError for a call that has no output */
  finish(): Turn[] {
    this.#requireAnswered()
    return this.turns
  }

  #message({ role, content }: ItemOf<'message'>, path: readonly PropertyKey[]): void {
    const parts = this.#parts(content, [...path, 'content'], role)
    if (role === 'assistant') return void this.#assistant(true).parts.push(...parts)
    this.#requireAnswered()
    this.turns.push({ role: role === 'user' ? 'user' : 'system', parts })
  }

  #call({ call_id, name, arguments: text }: ItemOf<'function_call'>): void {
    const turn = this.#assistant(false)
    turn.parts.push({ type: 'tool_call', id: call_id, name, arguments: text })
    this.#unanswered.set(call_id, turn)
  }

  #output({ call_id, output }: ItemOf<'function_call_output'>, path: readonly PropertyKey[]): void {
    if (!this.#unanswered.delete(call_id)) {
      const message = `No tool call found for function call output with call_id ${excerpt(call_id)}.`
      refuse('invalid_value', paramOf([...path, 'call_id']), message)
    }
    this.turns.push({ role: 'tool', parts: this.#parts(output, [...path, 'output'], 'user'), call_id })
  }

  /** What the service ran is a call with its output. */
  #run(id: string, { name, input, output }: HostedTurns): void {
    this.#assistant(false).parts.push({ type: 'tool_call', id, name, arguments: JSON.stringify(input) })
    this.turns.push({ role: 'tool', call_id: id, parts: [{ type: 'text', text: output }] })
  }

  #reasoning({ summary, content, encrypted_content }: ItemOf<'reasoning'>): void {
    const texts = content?.length ? content : (summary ?? [])
    const text = texts.map((part) => part.text).join('\n\n')
    const sealed = unsealReasoning(encrypted_content)
    // What another service has sealed is of no use to any model here.
    if (text === '' && Object.keys(sealed).length === 0) return
    this.#assistant(false).parts.push({ type: 'reasoning', text, ...sealed })
  }

  #reference({ id }: ItemOf<'item_reference'>, path: readonly PropertyKey[]): void {
    const item = this.#context.referenced.get(id)
    if (item && item.type !== 'item_reference') {
      this.#requireRoom(id, item)
      return this.add(item, path)
    }
    const message = `Item with id '${excerpt(id)}' not found. Items are not kept of responses with store set to false.`
    refuse('invalid_value', paramOf([...path, 'id']), message)
  }

  #requireRoom(id: string, item: AnyItem): void {
    const chars = this.#referred.get(id) ?? charsIn(item)
    this.#referred.set(id, chars)
    this.#referredChars += chars
    const most = this.#context.referencedCharsMax
    if (this.#referredChars <= most) return
    const message = `The input refers to items of more than ${most} characters together. Refer to fewer of them.`
    throw new ServiceError('context_length_exceeded', message, { param: 'input' })
  }

  /** The turn that the assistant speaks in. While calls wait for their outputs it is that of the calls. */
  #assistant(isMessage: boolean): AssistantTurn {
    const [calling] = this.#unanswered.values()
    if (calling) return calling
    const last = this.turns.at(-1)
    const isNext = last?.role === 'assistant' && isMessage && last.parts.some(({ type }) => type === 'text')
    if (last?.role === 'assistant' && !isNext) return last
    const turn: AssistantTurn = { role: 'assistant', parts: [] }
    this.turns.push(turn)
    return turn
  }

  #parts(content: string | readonly InputPart[], path: readonly PropertyKey[], role: UserRole): Part[] {
    if (typeof content === 'string') return content === '' ? [] : [{ type: 'text', text: content }]
    return content.map((part, index) => {
      const param = paramOf([...path, index])
      if (role !== 'user' && MEDIA_PARTS.has(part.type)) {
        refuse('invalid_value', `${param}.type`, `Messages of the role '${role}' hold text only.`)
      }
      return decodePart(part, param, this.#context)
    })
  }

  #requireAnswered(): void {
    const [id] = this.#unanswered.keys()
    if (id !== undefined) refuse('invalid_value', 'input', `No tool output found for function call ${excerpt(id)}.`)
  }
}

const MEDIA: Partial<Record<Part['type'], 'images' | 'audio' | 'files'>> = {
  image: 'images',
  audio: 'audio',
  file: 'files',
}
const MEDIA_PARTS: ReadonlySet<string> = new Set(['input_image', 'input_file', 'input_audio'])

/** Characters of all texts in a value. */
function charsIn(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (typeof value !== 'object' || value === null) return 0
  return Object.values(value).reduce((sum: number, part) => sum + charsIn(part), 0)
}

function isItemType(type: string): type is ItemType {
  return Object.hasOwn(ITEMS, type)
}

function refuseType(type: string, path: readonly PropertyKey[]): never {
  const known = Object.keys(ITEMS).join(', ')
  const message = `Unsupported value: items of type '${excerpt(type)}' are not supported. Supported are: ${known}.`
  return refuse('unsupported_value', paramOf([...path, 'type']), message)
}

function paramOf(path: readonly PropertyKey[]): string {
  return path.map((key, at) => (typeof key === 'number' ? `[${key}]` : `${at === 0 ? '' : '.'}${String(key)}`)).join('')
}
