import type { ModelConfig } from '#schemas/models.ts'
import { CreateConversation, CreateItems, ListItems, UpdateConversation } from '#schemas/responses/conversation.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { boundMetadata } from '#services/ingress/calls/job-options.ts'
import { ItemTurns } from '#services/ingress/endpoints/responses/items.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runToEnd, runYielding } from '#shared/lib/yielding.ts'
import { newConversationId, type StoredConversation } from '#shared/store/conversations.ts'
import { changeConversation, getConversation, requireCapacity, requireConversations, storeItems } from './changes.ts'
import { storedItems } from './item-form.ts'

const CONVERSATIONS_MAX = 10_000

export async function createConversation(context: IngressContext, call: Call, body: unknown): Promise<void> {
  refuseUnknown(CreateConversation, body)
  const asked = parseBody(CreateConversation, body ?? {}, 'openai')
  const items = await runYielding(storedItems(asked.items ?? [], 'items'))
  requireUsable(context, [], items)
  requireCapacity(items, 'items')
  const metadata = boundMetadata(asked.metadata ?? undefined) ?? {}
  const [id, tenant] = [newConversationId(), projectIdOf(call.key)]
  using holding = await storeItems(context, tenant, items)
  const bounds = { keepMs: context.config.fileRetentionMs, most: CONVERSATIONS_MAX }
  if (!(await requireConversations(context).create({ id, tenant, metadata, items }, bounds))) {
    const message = `The project has ${CONVERSATIONS_MAX} conversations, the maximum. Delete some of them.`
    throw new ServiceError('insufficient_quota', message)
  }
  holding.stored()
  await call.reply.whole(conversationObject(await find(context, call, id)))
}

export async function retrieveConversation(context: IngressContext, call: Call): Promise<void> {
  await call.reply.whole(conversationObject(await find(context, call)))
}

export async function updateConversation(context: IngressContext, call: Call, body: unknown): Promise<void> {
  refuseUnknown(UpdateConversation, body)
  const { metadata } = parseBody(UpdateConversation, body, 'openai')
  const bounded = boundMetadata(metadata ?? undefined) ?? {}
  await call.reply.whole(conversationObject(await change(context, call, () => ({ metadata: bounded }))))
}

/** DELETE /v1/conversations/{id}: a running response of the conversation continues, but its output is not added. */
export async function deleteConversation(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant } = await find(context, call)
  await requireConversations(context).delete(tenant, id)
  await call.reply.whole({ id, object: 'conversation.deleted', deleted: true })
}

export async function createItems(context: IngressContext, call: Call, body: unknown): Promise<void> {
  refuseUnknown(CreateItems, body)
  const { items: asked } = parseBody(CreateItems, body, 'openai')
  const added = await runYielding(storedItems(asked, 'items'))
  await change(context, call, ({ items }) => {
    requireUsable(context, items, added)
    return { items: [...items, ...added] }
  })
  await call.reply.whole(pageOf(added, added.length))
}

export async function listItems(context: IngressContext, call: Call): Promise<void> {
  const { include: _, ...query } = call.query
  const { limit, order, after } = parseBody(ListItems, query, 'openai')
  const { items } = await find(context, call)
  const ordered = order === 'desc' ? items.toReversed() : items
  const at = after === undefined ? -1 : ordered.findIndex(({ id }) => id === after)
  if (after !== undefined && at < 0) {
    throw new ServiceError('invalid_value', "'after' is not an item of this conversation.", { param: 'after' })
  }
  await call.reply.whole(pageOf(ordered.slice(at + 1), limit))
}

export async function retrieveItem(context: IngressContext, call: Call): Promise<void> {
  const { items } = await find(context, call)
  await call.reply.whole(requireItem(items, String(call.params.item_id)))
}

export async function deleteItem(context: IngressContext, call: Call): Promise<void> {
  const conversation = await change(context, call, ({ items }) => {
    const item = requireItem(items, String(call.params.item_id))
    return { items: items.filter((other) => other !== item) }
  })
  await call.reply.whole(conversationObject(conversation))
}

async function find(context: IngressContext, call: Call, id = String(call.params.id)): Promise<StoredConversation> {
  return await getConversation(context, projectIdOf(call.key), id)
}

async function change(
  context: IngressContext,
  call: Call,
  changeOf: Parameters<typeof changeConversation>[3],
): Promise<StoredConversation> {
  return await changeConversation(context, projectIdOf(call.key), String(call.params.id), changeOf)
}

/** A model that accepts every input, at an upstream of the Responses API. */
const ANY_MODEL = {
  id: 'any',
  engine: { type: 'openai', api: 'responses' },
  capabilities: { images: true, audio: true, files: true },
} as ModelConfig

/**
 * Refuses items after which no response could continue the conversation. Such items are outputs without their call,
 * invalid content, and messages before the output of an earlier call.
 *
 * @throws ServiceError with the path of the first problem
 */
function requireUsable({ config }: IngressContext, before: Items, added: Items): void {
  const references = { referenced: new Map(), referencedCharsMax: Number.POSITIVE_INFINITY }
  const { remoteImages } = config
  const turns = new ItemTurns({ model: ANY_MODEL, remoteImages, ...references, nameOf: (name) => name })
  try {
    for (const item of before) runToEnd(turns.add(withoutContent(item), []))
  } catch {
    // Versions before 2026-12 accepted such items. No response can continue this conversation, so new items are not
    // checked.
    return
  }
  for (const [index, item] of added.entries()) {
    try {
      runToEnd(turns.add(item, ['items', index]))
    } catch (error) {
      if (!(error instanceof ServiceError) || error.param !== 'input') throw error
      throw new ServiceError(error.code, error.message, { cause: error, param: `items[${index}]` })
    }
  }
}

type Items = StoredConversation['items']

function withoutContent(item: Items[number]): object {
  if (item.type === 'message') return { ...item, content: '' }
  return 'output' in item ? { ...item, output: '' } : item
}

function requireItem(items: StoredConversation['items'], id: string) {
  const item = items.find((other) => other.id === id)
  if (item) return item
  throw new ServiceError('not_found', `Item with id '${beginningOf(id, 64)}' not found.`, { param: 'item_id' })
}

function conversationObject({ id, metadata, created_at_ms }: StoredConversation) {
  return { id, object: 'conversation', created_at: Math.floor(created_at_ms / 1_000), metadata }
}

function pageOf(items: StoredConversation['items'], limit: number) {
  const data = items.slice(0, limit)
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  return { object: 'list', data, first_id, last_id, has_more: items.length > limit }
}
