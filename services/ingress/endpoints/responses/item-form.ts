import { AnyItem, type ConversationItem, ITEMS, type ItemOf, type ItemType } from '#schemas/responses/request.ts'
import { refuse } from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { type Pieces, parseAt } from '#services/ingress/body/validate.ts'
import { writeJson } from '#shared/json/write.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'

const PREFIXES: Readonly<Record<Exclude<ItemType, 'item_reference'>, string>> = {
  message: 'msg_',
  reasoning: 'rs_',
  function_call: 'fc_',
  function_call_output: 'fco_',
  custom_tool_call: 'ctc_',
  custom_tool_call_output: 'ctco_',
  code_interpreter_call: 'ci_',
  web_search_call: 'ws_',
  file_search_call: 'fs_',
}

const ITEM_ID = /^[\w-]{1,128}$/

/**
 * Maximum characters of JSON per conversation. Up to this size, reading a conversation does not noticeably delay other
 * calls.
 */
export const CONVERSATION_CHARS_MAX = 2 * 1024 * 1024

/**
 * Converts items to their stored form in a conversation. Must be run by `runYielding`. The total size is checked before
 * each item is converted.
 *
 * @param field Name of the list, such as `items`
 * @param referenced Targets of item references, by id
 * @param param Field in the error if the list is too long. Default: `field`
 * @throws ServiceError with the path of the first problem. `context_length_exceeded`
 */
export function* storedItems(
  items: readonly unknown[],
  field: string,
  referenced: ReadonlyMap<string, AnyItem> = new Map(),
  param = field,
): Pieces<ConversationItem[]> {
  const kept: ConversationItem[] = []
  let chars = 0
  for (const [index, item] of items.entries()) {
    for (const piece of writeJson(meantBy(item, referenced))) {
      chars += piece.length
      if (chars > CONVERSATION_CHARS_MAX) throw conversationFull(param)
      yield
    }
    kept.push(storedItem(item, [field, index], referenced))
    yield
  }
  return kept
}

export function conversationFull(param: string): ServiceError {
  const message = `A conversation can have at most ${CONVERSATION_CHARS_MAX} characters of JSON. Delete items, or start a new conversation.`
  return new ServiceError('context_length_exceeded', message, { param })
}

function meantBy(item: unknown, referenced: ReadonlyMap<string, AnyItem>): unknown {
  const { type, id } = (item ?? {}) as { type?: unknown; id?: unknown }
  return (type === 'item_reference' && typeof id === 'string' && referenced.get(id)) || item
}

/**
 * Converts an item to its stored form: the item gets a new id, and the content of a message becomes a list of parts. A
 * later check, when a response continues the conversation, determines whether the model can use the item.
 *
 * @param referenced Targets of item references, by id
 * @throws ServiceError with the path of the first problem
 */
function storedItem(
  item: unknown,
  path: readonly PropertyKey[],
  referenced: ReadonlyMap<string, AnyItem>,
): ConversationItem {
  const any = parseAt(AnyItem, item, path)
  const type = any.type ?? 'message'
  // An output may contain the name of its tool instead of the id of its call. Only an upstream of the Responses API
  // accepts this form, so the item is stored unchanged.
  const isOutput = type === 'function_call_output' || type === 'custom_tool_call_output'
  if (isOutput && any.call_id == null && any.name != null) return nativeItem(item, type)
  switch (type) {
    case 'message':
      return storedMessage(parseAt(ITEMS.message, item, path))
    case 'function_call': {
      const { call_id, name, arguments: text, namespace } = parseAt(ITEMS.function_call, item, path)
      return { ...startOf(type), call_id, name, arguments: text, ...(namespace != null && { namespace }) }
    }
    case 'function_call_output': {
      const { call_id, output } = parseAt(ITEMS.function_call_output, item, path)
      return { ...startOf(type), call_id, output }
    }
    case 'custom_tool_call': {
      const { call_id, name, input, namespace } = parseAt(ITEMS.custom_tool_call, item, path)
      return { ...startOf(type), call_id, name, input, ...(namespace != null && { namespace }) }
    }
    case 'custom_tool_call_output': {
      const { call_id, output } = parseAt(ITEMS.custom_tool_call_output, item, path)
      return { ...startOf(type), call_id, output }
    }
    case 'code_interpreter_call': {
      const { code, outputs, container_id } = parseAt(ITEMS.code_interpreter_call, item, path)
      return { ...hostedStartOf(type), code: code ?? '', container_id, outputs: outputs ?? null }
    }
    case 'web_search_call': {
      const { action, results } = parseAt(ITEMS.web_search_call, item, path)
      return { ...hostedStartOf(type), action: action ?? {}, ...(results && { results }) }
    }
    case 'file_search_call': {
      const { queries, results } = parseAt(ITEMS.file_search_call, item, path)
      return { ...hostedStartOf(type), queries: queries ?? [], results: results ?? null }
    }
    case 'reasoning': {
      const { summary, content, encrypted_content } = parseAt(ITEMS.reasoning, item, path)
      return {
        ...startOf(type),
        summary: summary ?? [],
        content: content ?? [],
        ...(encrypted_content && { encrypted_content }),
      }
    }
    case 'item_reference': {
      const { id } = parseAt(ITEMS.item_reference, item, path)
      const found = referenced.get(id)
      if (found && found.type !== 'item_reference') return storedItem(found, path, referenced)
      return refuse('invalid_value', 'items', `Item with id '${excerpt(id)}' not found. Send the item itself.`)
    }
    default:
      return nativeItem(item, type)
  }
}

/**
 * Stores an item of an unknown type unchanged, including its id, because an upstream of the Responses API may accept
 * it.
 */
function nativeItem(item: unknown, type: string): ConversationItem {
  return { ...(item as object), id: idIn(item) ?? newId('item_'), type }
}

function storedMessage({ role, content, phase }: ItemOf<'message'>): ConversationItem {
  const isOwn = role === 'assistant'
  const text = (said: string) =>
    isOwn ? { type: 'output_text', text: said, annotations: [], logprobs: [] } : { type: 'input_text', text: said }
  const parts = typeof content === 'string' ? [text(content)] : content
  return { ...startOf('message'), role, content: parts, ...(phase != null && { phase }) }
}

function idIn(item: unknown): string | undefined {
  const { id } = (item ?? {}) as { id?: unknown }
  return typeof id === 'string' && ITEM_ID.test(id) ? id : undefined
}

function hostedStartOf(type: keyof typeof PREFIXES) {
  return { ...startOf(type), id: `${newId(PREFIXES[type])}_0` }
}

function startOf(type: keyof typeof PREFIXES) {
  return { id: newId(PREFIXES[type]), type, status: 'completed' }
}
