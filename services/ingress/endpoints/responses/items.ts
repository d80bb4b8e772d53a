import type { HostedTool, NativePart, Part, Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { AnyItem, type InputPart, ITEMS, type ItemOf, type ItemType, PARTS } from '#schemas/responses/request.ts'
import {
  refuse,
  requireBase64,
  requireDataUrl,
  requireImageUrl,
  requireMedia,
  requireRemoteUrl,
} from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { extraOf, mapInPieces, type Pieces, parseAt } from '#services/ingress/body/validate.ts'
import { dialectOf } from '#shared/engines/adapt.ts'
import { isSealed, unsealReasoning } from '#shared/kinds/generate/responses/items.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Matches ids of items of hosted tools that Sluice ran. The number at the end distinguishes such ids from those of OpenAI. */
const HOSTED_ID = /^(ci|ws|fs)_[0-9A-Za-z]{8,64}_\d{1,6}$/

interface ItemContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
  readonly referenced: ReadonlyMap<string, AnyItem>
  readonly referencedCharsMax: number
  readonly nameOf: (name: string, namespace: unknown) => string
}

type AssistantTurn = Extract<Turn, { role: 'assistant' }>
type UserRole = ItemOf<'message'>['role']

const CALL_CONSUMED: ReadonlySet<string> = new Set(['type', 'call_id', 'name', 'arguments', 'input'])
const OUTPUT_CONSUMED: ReadonlySet<string> = new Set(['type', 'call_id', 'output'])
const MESSAGE_CONSUMED: ReadonlySet<string> = new Set(['type', 'role', 'content'])
const REASONING_CONSUMED: ReadonlySet<string> = new Set(['type', 'id', 'encrypted_content'])

/** Matches ids of items that Sluice created. Such an id is removed before an item is sent to an upstream, which has not stored the item. */
const OWN_ID = /^[a-z]{2,3}_[0-9A-Za-z]{8,64}_\d{1,6}$/

/**
 * Converts items to turns (docs/guides/responses.md, Items).
 *
 * 1. Consecutive items of the assistant form one turn.
 *
 * 2. The outputs of the tool calls in this turn follow in any order. Every call needs an output before an item of
 *    another role.
 *
 * 3. Items of unknown types, and of tools that an upstream ran, become native parts. An upstream of the Responses API
 *    receives a native part unchanged. Other upstreams receive the text of the part.
 */
export class ItemTurns {
  readonly turns: Turn[] = []
  readonly #context: ItemContext
  readonly #isNative: boolean
  /** Calls without an output, by call id, each with the turn that contains it. */
  readonly #unanswered = new Map<string, AssistantTurn>()
  readonly #referred = new Map<string, number>()
  #referredChars = 0

  constructor(context: ItemContext) {
    this.#context = context
    this.#isNative = dialectOf({}, context.model) === 'responses'
  }

  addTurns(turns: readonly Turn[], param: string): void {
    for (const turn of turns) {
      for (const { type } of turn.parts) {
        const kind = MEDIA[type]
        if (kind) requireMedia(this.#context.model, kind, param)
      }
      this.turns.push(turn)
    }
  }

  *add(item: unknown, path: readonly PropertyKey[]): Pieces<void> {
    const any = parseAt(AnyItem, item, path)
    const type = any.type ?? 'message'
    // An output may contain the name of its tool instead of the id of its call. Only an upstream of the Responses API
    // accepts this form, so the item is sent unchanged.
    const isOutput = type === 'function_call_output' || type === 'custom_tool_call_output'
    if (!isItemType(type) || (isOutput && any.call_id == null && this.#isNative)) return this.#native(any, type)
    switch (type) {
      case 'message':
        return yield* this.#message(parseAt(ITEMS.message, item, path), path)
      case 'function_call':
      case 'custom_tool_call':
        return this.#call(parseAt(ITEMS[type], item, path))
      case 'function_call_output':
      case 'custom_tool_call_output':
        return yield* this.#output(parseAt(ITEMS[type], item, path), type === 'custom_tool_call_output', path)
      case 'code_interpreter_call':
      case 'web_search_call':
      case 'file_search_call': {
        const known = ITEMS[type].safeParse(any)
        return known.success ? this.#run({ ...known.data, type }) : this.#native(any, type)
      }
      case 'reasoning':
        return this.#reasoning(parseAt(ITEMS.reasoning, item, path))
      case 'item_reference':
        return yield* this.#reference(parseAt(ITEMS.item_reference, item, path), path)
    }
  }

  finish(): Turn[] {
    this.#requireAnswered()
    return this.turns
  }

  *#message(item: ItemOf<'message'>, path: readonly PropertyKey[]): Pieces<void> {
    const { role, content } = item
    const parts = yield* this.#parts(content, [...path, 'content'], role)
    const extra = withoutOwnId(extraOf(item, MESSAGE_CONSUMED))
    if (role !== 'assistant') {
      this.#requireAnswered()
      if (role === 'user') this.turns.push({ role, parts, extra })
      else this.turns.push({ role: 'system', parts, extra, ...(role === 'developer' && { developer: true }) })
      return
    }
    const [first] = parts
    if (first?.type === 'text' || first?.type === 'native') first.message = extra ?? {}
    const turn = this.#assistant(true)
    for (const part of parts) turn.parts.push(part)
  }

  #call(item: ItemOf<'function_call'> | ItemOf<'custom_tool_call'>): void {
    const { call_id: id, name: called } = item
    const turn = this.#assistant(false)
    const extra = withoutOwnId(extraOf(item, CALL_CONSUMED))
    const name = this.#context.nameOf(called, item.namespace)
    const named = name === called ? extra : { ...extra, name: called }
    const custom = 'input' in item && typeof item.input === 'string'
    const text = custom ? JSON.stringify({ input: item.input }) : (item.arguments as string)
    turn.parts.push({ type: 'tool_call', id, name, arguments: text, extra: named, ...(custom && { custom }) })
    this.#unanswered.set(id, turn)
  }

  *#output(item: ItemOf<'function_call_output'>, custom: boolean, path: readonly PropertyKey[]): Pieces<void> {
    const { call_id, output } = item
    if (!this.#unanswered.delete(call_id)) {
      const message = `No tool call found for function call output with call_id ${excerpt(call_id)}.`
      refuse('invalid_value', paramOf([...path, 'call_id']), message)
    }
    const parts = yield* this.#parts(output, [...path, 'output'], 'user')
    const extra = withoutOwnId(extraOf(item, OUTPUT_CONSUMED))
    this.turns.push({ role: 'tool', parts, call_id, extra, ...(custom && { custom }) })
  }

  /**
   * Adds an item of a hosted tool. If Sluice ran the tool, then the item becomes a call with its output. Otherwise it
   * becomes a native part, which an upstream of the Responses API receives unchanged.
   */
  #run(item: Parameters<typeof hostedTurns>[0]): void {
    const { name, input, output } = hostedTurns(item)
    const { id } = item
    if (!id || !isHostedItem(id)) return this.#native(item, item.type, `${name}(${JSON.stringify(input)})\n${output}`)
    this.#assistant(false).parts.push({ type: 'tool_call', id, name, arguments: JSON.stringify(input) })
    this.turns.push({ role: 'tool', call_id: id, parts: [{ type: 'text', text: output }] })
  }

  #native(item: AnyItem, type: string, text = nativeText(item, type)): void {
    const part: NativePart = { type: 'native', dialect: 'responses', value: { ...item }, isItem: true, text }
    this.#assistant(false).parts.push(part)
  }

  #reasoning(item: ItemOf<'reasoning'>): void {
    const { summary, content, encrypted_content: sealed } = item
    const texts = content?.length ? content : (summary ?? [])
    const { text: sealedText = '', ...own } = unsealReasoning(sealed)
    const text = texts.map((part) => part.text).join('\n\n') || sealedText
    // Encrypted reasoning can be decrypted only by its upstream and together with the id of its item, so both are
    // stored as one signature.
    const isForeign = sealed != null && !isSealed(sealed)
    const id = typeof item.id === 'string' && !OWN_ID.test(item.id) ? item.id : ''
    const proof = isForeign ? { signature: `responses:${id}:${sealed}` } : own
    if (text === '' && Object.keys(proof).length === 0) return
    this.#assistant(false).parts.push({ type: 'reasoning', text, ...proof, extra: extraOf(item, REASONING_CONSUMED) })
  }

  *#reference({ id }: ItemOf<'item_reference'>, path: readonly PropertyKey[]): Pieces<void> {
    const item = this.#context.referenced.get(id)
    if (item && item.type !== 'item_reference') {
      this.#boundReferences(id, item)
      return yield* this.add(item, path)
    }
    const message = `Item with id '${excerpt(id)}' not found. Items of responses with 'store' set to false are not stored.`
    refuse('invalid_value', paramOf([...path, 'id']), message)
  }

  #boundReferences(id: string, item: AnyItem): void {
    const chars = this.#referred.get(id) ?? charsIn(item)
    this.#referred.set(id, chars)
    this.#referredChars += chars
    const most = this.#context.referencedCharsMax
    if (this.#referredChars <= most) return
    const message = `The items to which the input refers have more than ${most} characters together. Refer to fewer items.`
    throw new ServiceError('context_length_exceeded', message, { param: 'input' })
  }

  /** Returns the turn to which the next item of the assistant is added. A turn that has calls without an output takes precedence. */
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

  *#parts(content: string | readonly AnyPart[], path: readonly PropertyKey[], role: UserRole): Pieces<Part[]> {
    if (typeof content === 'string') return content === '' ? [] : [{ type: 'text', text: content }]
    return yield* mapInPieces(content, (part, index) => {
      const at = [...path, index]
      const holdsMedia = role === 'user' || (role !== 'assistant' && this.#isNative)
      if (!holdsMedia && MEDIA_PARTS.has(part.type)) {
        refuse('invalid_value', `${paramOf(at)}.type`, `Messages of the role '${role}' may contain only text.`)
      }
      return decodePart(part, at, this.#context)
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

/**
 * Fields that describe a call and its result, which upstreams of other APIs receive as text. For these upstreams, an item
 * without any of these fields is left out, and so is a generated image.
 */
const READABLE = ['action', 'arguments', 'input', 'operation', 'output', 'result', 'results'] as const

function nativeText(item: Readonly<Record<string, unknown>>, type: string): string | undefined {
  const fields = READABLE.flatMap((name) => (item[name] == null ? [] : [[name, item[name]] as const]))
  if (fields.length === 0 || type === 'image_generation_call') return undefined
  return `${type}: ${JSON.stringify(Object.fromEntries(fields))}`
}

function withoutOwnId(extra: Record<string, unknown> | undefined): Record<string, unknown> | undefined {
  if (typeof extra?.id !== 'string' || !OWN_ID.test(extra.id)) return extra
  const { id: _id, ...rest } = extra
  return Object.keys(rest).length > 0 ? rest : undefined
}

function charsIn(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (typeof value !== 'object' || value === null) return 0
  return Object.values(value).reduce((sum: number, part) => sum + charsIn(part), 0)
}

function isItemType(type: string): type is ItemType {
  return Object.hasOwn(ITEMS, type)
}

function paramOf(path: readonly PropertyKey[]): string {
  return path.map((key, at) => (typeof key === 'number' ? `[${key}]` : `${at === 0 ? '' : '.'}${String(key)}`)).join('')
}

type HostedItemIn =
  | ({ readonly type: 'code_interpreter_call' } & ItemOf<'code_interpreter_call'>)
  | ({ readonly type: 'web_search_call' } & ItemOf<'web_search_call'>)
  | ({ readonly type: 'file_search_call' } & ItemOf<'file_search_call'>)

interface HostedTurns {
  readonly name: HostedTool
  readonly input: object
  readonly output: string
}

function isHostedItem(id: string): boolean {
  return HOSTED_ID.test(id)
}

/**
 * Converts an item of a hosted tool to a call and its output as text. If the item has no results, then the call still
 * contains the query.
 */
function hostedTurns(item: HostedItemIn): HostedTurns {
  switch (item.type) {
    case 'code_interpreter_call': {
      const output = item.outputs?.map(({ type, logs }) => logs ?? `[${type}]`).join('\n') || '[no output]'
      return { name: 'code_interpreter', input: { code: item.code ?? '' }, output }
    }
    case 'web_search_call': {
      const { query, sources } = item.action ?? {}
      const results = item.results?.map(({ url, title, excerpt }) => [title, url, excerpt].filter(Boolean).join('\n'))
      const output = (results ?? sources?.map(({ url }) => url ?? '') ?? []).join('\n\n') || '[no results]'
      return { name: 'web_search', input: { query: query ?? '' }, output }
    }
    case 'file_search_call': {
      const results = item.results?.map(({ filename, text }) => `${filename ?? ''}\n${text ?? ''}`) ?? []
      const query = item.queries?.join(' ') ?? ''
      return { name: 'file_search', input: { query }, output: results.join('\n\n') || '[no results]' }
    }
  }
}

interface PartContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
}

interface AnyPart {
  readonly type: string
  readonly [field: string]: unknown
}

const PART_CONSUMED: ReadonlySet<string> = new Set([
  ...['type', 'text', 'refusal', 'image_url', 'file_data', 'file_url', 'filename', 'input_audio'],
])
const IMAGE_CONSUMED: ReadonlySet<string> = new Set([...PART_CONSUMED, 'detail'])

function decodePart(part: AnyPart, path: readonly PropertyKey[], context: PartContext): Part {
  const { type } = part
  if (!isKnown(type)) return native(part, typeof part.text === 'string' ? part.text : undefined)
  const known = PARTS[type].safeParse(part).data ?? parseAt(PARTS[type], part, path)
  const decoded = decodeKnown(known, part, paramOf(path), context)
  const extra = extraOf(part, type === 'input_image' ? IMAGE_CONSUMED : PART_CONSUMED)
  return extra && decoded.type !== 'native' ? { ...decoded, extra } : decoded
}

function decodeKnown(part: InputPart, raw: AnyPart, param: string, context: PartContext): Part {
  switch (part.type) {
    case 'input_text':
    case 'output_text':
      return { type: 'text', text: part.text }
    case 'refusal':
      return native(raw, part.refusal)
    case 'input_image':
      return decodeImage(part, raw, param, context)
    case 'input_file':
      return decodeFile(part, raw, param, context)
    case 'input_audio': {
      const { data, format } = part.input_audio
      requireMedia(context.model, 'audio', param)
      requireBase64(data, `${param}.input_audio.data`)
      return { type: 'audio', data, format }
    }
  }
}

function isKnown(type: string): type is keyof typeof PARTS {
  return Object.hasOwn(PARTS, type)
}

function native(part: AnyPart, text: string | undefined): Part {
  return { type: 'native', dialect: 'responses', value: { ...part }, text }
}

type ImagePart = Extract<InputPart, { type: 'input_image' }>
type FilePart = Extract<InputPart, { type: 'input_file' }>

function decodeImage(part: ImagePart, raw: AnyPart, param: string, context: PartContext): Part {
  const { image_url: url, file_id, detail } = part
  requireMedia(context.model, 'images', param)
  if (!url) return withoutContent(raw, file_id, param, 'image_url', context)
  requireImageUrl(url, `${param}.image_url`, context.remoteImages)
  return { type: 'image', url, detail: detail ?? undefined }
}

function decodeFile(part: FilePart, raw: AnyPart, param: string, context: PartContext): Part {
  const { file_data: data, file_url: url, file_id, filename } = part
  requireMedia(context.model, 'files', param)
  const name = filename ?? undefined
  if (data) {
    requireDataUrl(data, `${param}.file_data`)
    return { type: 'file', data, filename: name }
  }
  if (!url) return withoutContent(raw, file_id, param, 'file_data', context)
  requireRemoteUrl(url, `${param}.file_url`, context.remoteImages)
  return { type: 'file', data: url, filename: name }
}

/**
 * Handles a part that refers to content instead of containing it. If the content is a file of the upstream, then an upstream of the
 * Responses API receives the part unchanged. Any other part is refused.
 */
function withoutContent(
  raw: AnyPart,
  file_id: string | null | undefined,
  param: string,
  field: string,
  { model }: PartContext,
): Part {
  if (file_id && dialectOf({}, model) === 'responses') return native(raw, undefined)
  if (file_id) {
    const message = `Unsupported parameter: 'file_id'. Send the content of the file as '${field}' instead.`
    return refuse('unsupported_parameter', `${param}.file_id`, message)
  }
  const path = `${param}.${field}`
  return refuse('missing_required_parameter', path, `Missing required parameter: '${path}'.`)
}
