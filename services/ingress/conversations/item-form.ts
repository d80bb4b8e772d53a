import type { ConversationItem } from '#schemas/responses/conversation.ts'
import { AnyItem, ITEMS, type ItemOf, type ItemType } from '#schemas/responses/request.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseAt } from '#services/ingress/body/validate.ts'
import { refuse } from '#services/ingress/endpoints/decode.ts'
import { newId } from '#shared/id.ts'

/** Beginnings of the ids of items, by their types. */
const PREFIXES: Readonly<Record<Exclude<ItemType, 'item_reference'>, string>> = {
  message: 'msg_',
  reasoning: 'rs_',
  function_call: 'fc_',
  function_call_output: 'fco_',
}

/**
 * An item as a conversation keeps it: with an id of its own, and a message with its content in parts. What it means to a model
 * is checked by the response that goes on from it.
 *
 * @param referenced What references mean, by their ids.
 * @throws ServiceError with the path of the first problem
 */
export function keptItem(
  item: unknown,
  path: readonly PropertyKey[],
  referenced: ReadonlyMap<string, AnyItem> = new Map(),
): ConversationItem {
  const type = parseAt(AnyItem, item, path).type ?? 'message'
  switch (type) {
    case 'message':
      return keptMessage(parseAt(ITEMS.message, item, path))
    case 'function_call': {
      const { call_id, name, arguments: text } = parseAt(ITEMS.function_call, item, path)
      return { ...startOf(type), call_id, name, arguments: text }
    }
    case 'function_call_output': {
      const { call_id, output } = parseAt(ITEMS.function_call_output, item, path)
      return { ...startOf(type), call_id, output }
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
      if (found && found.type !== 'item_reference') return keptItem(found, path)
      return refuse('invalid_value', 'items', `Item with id '${excerpt(id)}' not found. Send the item itself.`)
    }
    default: {
      const message = `Unsupported value: items of type '${excerpt(type)}' are not supported.`
      return refuse('unsupported_value', 'items', message)
    }
  }
}

function keptMessage({ role, content }: ItemOf<'message'>): ConversationItem {
  const isOwn = role === 'assistant'
  const text = (said: string) =>
    isOwn ? { type: 'output_text', text: said, annotations: [], logprobs: [] } : { type: 'input_text', text: said }
  return { ...startOf('message'), role, content: typeof content === 'string' ? [text(content)] : content }
}

function startOf(type: keyof typeof PREFIXES) {
  return { id: newId(PREFIXES[type]), type, status: 'completed' }
}
