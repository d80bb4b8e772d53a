import type { DurableJob } from '#schemas/durable-job.ts'
import type { SharedHistory } from '#schemas/job.ts'
import type { Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import {
  type AnyItem,
  type ConversationItem,
  CreateConversation,
  CreateItems,
  ListItems,
  type ResponsesRequest,
  UpdateConversation,
} from '#schemas/responses/request.ts'
import type { ResponseObject } from '#schemas/responses/response.ts'
import { refuse } from '#services/ingress/body/decode.ts'
import { beginningOf, excerpt } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { boundMetadata } from '#services/ingress/calls/job-options.ts'
import type { Holding } from '#shared/capacity/byte-budgets.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { RESPONSE_PREFIX } from '#shared/kinds/generate/responses/output.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runToEnd, runYielding } from '#shared/lib/yielding.ts'
import {
  type ConversationChange,
  type ConversationStore,
  isConversationId,
  newConversationId,
  type StoredConversation,
} from '#shared/store/records.ts'
import type { ConversationContext } from './decode.ts'
import { CONVERSATION_CHARS_MAX, conversationFull, storedItems } from './item-form.ts'
import { ItemTurns } from './items.ts'
import { conversationIdOf, failureOf, findResponse, hasEnded, readStoredResponse, turnsOf } from './stored.ts'

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
    const message = `The project has the maximum of ${CONVERSATIONS_MAX} conversations. Delete some conversations.`
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
    throw new ServiceError('invalid_value', "'after' is not the id of an item of this conversation.", {
      param: 'after',
    })
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

/**
 * Placeholder for a model that accepts every input. The items of a conversation are checked with this model, because the model of the next response
 * is unknown.
 */
const ANY_MODEL = {
  id: 'any',
  engine: { type: 'openai', api: 'responses' },
  capabilities: { images: true, audio: true, files: true },
} as ModelConfig

/**
 * Refuses items that would make every later response of the conversation fail. Examples are outputs without their call, invalid content,
 * and messages between a call and its output.
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
    // Versions before 2026-12 accepted items that this check refuses, and a stored conversation may contain them. No response can continue such a
    // conversation, so new items are not checked.
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

const TRIES_MAX = 5
/**
 * Interval in ms at which a running response is read to detect its end. The interval is long, because a notification
 * nearly always arrives first.
 */
const END_POLL_MS = 600_000

function requireConversations(context: IngressContext): ConversationStore {
  requireJobs(context)
  return (context.store as NonNullable<IngressContext['store']>).conversations
}

/**
 * Returns a conversation of a project, including the output of all responses that have ended.
 *
 * @throws ServiceError `not_found`, also for conversations of other projects
 */
async function getConversation(
  context: IngressContext,
  tenant: string,
  id: string,
  param = 'id',
): Promise<StoredConversation> {
  const conversations = requireConversations(context)
  for (let tries = 0; tries < TRIES_MAX; tries++) {
    const found = isConversationId(id) ? await conversations.find(tenant, id) : undefined
    if (!found) throw conversationNotFound(id, param)
    const change = await endOfResponse(context, found)
    if (!change) return found
    if (await conversations.change(found, change, context.config.fileRetentionMs)) {
      return { ...found, ...change, version: found.version + 1 }
    }
  }
  throw busy()
}

/**
 * Changes a conversation with optimistic concurrency: the conversation is read, changed and written. If another change
 * was written in between, then the steps are repeated.
 *
 * @throws ServiceError `not_found`, `context_length_exceeded`, `insufficient_quota`
 */
async function changeConversation(
  context: IngressContext,
  tenant: string,
  id: string,
  changeOf: (read: StoredConversation) => ConversationChange,
): Promise<StoredConversation> {
  for (let tries = 0; tries < TRIES_MAX; tries++) {
    const read = await getConversation(context, tenant, id)
    const change = changeOf(read)
    const added = change.items?.slice(read.items.length) ?? []
    if (added.length > 0) requireCapacity(change.items ?? [], 'items')
    using holding = await storeItems(context, tenant, added)
    const conversations = requireConversations(context)
    if (!(await conversations.change(read, change, context.config.fileRetentionMs))) continue
    holding.stored()
    return { ...read, ...change }
  }
  throw busy()
}

/**
 * Records that a response continues a conversation. When the response has ended, its input and output are added to the
 * conversation.
 *
 * @param read Version of the conversation from which the prompt of the response was built
 * @throws ServiceError `invalid_value` if the conversation has changed since then
 */
export async function beginResponse(
  context: IngressContext,
  read: StoredConversation,
  input: readonly ConversationItem[],
  job: DurableJob,
): Promise<void> {
  const change = { job_id: job.id, pending: input }
  using holding = await storeItems(context, read.tenant, input)
  if (!(await requireConversations(context).change(read, change, context.config.fileRetentionMs))) {
    throw new ServiceError('invalid_value', 'The conversation was changed by another request. Try again.', {
      param: 'conversation',
    })
  }
  holding.stored()
  void addWhenEnded(context, read, job)
}

export function requireCapacity(items: readonly ConversationItem[], param: string): void {
  if (JSON.stringify(items).length <= CONVERSATION_CHARS_MAX) return
  throw conversationFull(param)
}

/**
 * Reserves the size of items in the project's quota of stored bytes. The result must be disposed. Output of responses
 * is stored even beyond the quota.
 *
 * @throws ServiceError `insufficient_quota` if the items exceed the quota
 */
export async function storeItems(
  { storage }: IngressContext,
  tenant: string,
  items: readonly ConversationItem[],
): Promise<Holding> {
  const holding = storage.open(tenant)
  if (items.length > 0) await holding.grow(Buffer.byteLength(JSON.stringify(items)))
  return holding
}

function conversationNotFound(id: string, param: string): ServiceError {
  return new ServiceError('not_found', `Conversation with id '${beginningOf(id, 64)}' not found.`, { param })
}

function busy(): ServiceError {
  return new ServiceError('overloaded', 'Too many concurrent changes of the conversation. Try again.')
}

/**
 * Returns the change of a conversation at the end of a response: the input and the output are added, unless the response
 * failed. Undefined while the response runs.
 */
async function endOfResponse(
  context: IngressContext,
  { tenant, job_id, items, pending }: StoredConversation,
): Promise<ConversationChange | undefined> {
  if (job_id === null) return undefined
  const job = await ignoreNotFound(requireJobs(context).get(tenant, job_id))
  if (job && !hasEnded(job)) return undefined
  const output = (job && (await ignoreNotFound(readStoredResponse(context, job))))?.result?.output
  const said = output ? [...pending, ...(output as unknown as ConversationItem[])] : []
  return { items: [...items, ...said], job_id: null, pending: [] }
}

async function ignoreNotFound<T>(reading: Promise<T>): Promise<T | undefined> {
  return await reading.catch((error: unknown) => {
    if (['not_found', 'job_not_found', 'result_expired'].includes(ServiceError.from(error).code)) return undefined
    throw error
  })
}

/**
 * Adds the output of a response to its conversation when the response has ended. A read of the conversation also adds
 * the output, but the output could expire before the first read.
 */
async function addWhenEnded(
  context: IngressContext,
  { tenant, id }: StoredConversation,
  job: DurableJob,
): Promise<void> {
  try {
    await requireJobs(context).waitForEnd(tenant, job.id, context.closing, END_POLL_MS)
    await ignoreNotFound(getConversation(context, tenant, id))
  } catch (error) {
    context.log.info(
      { err: error, job_id: job.id },
      'response not added to its conversation; the next read of the conversation adds it',
    )
  }
}

const REFERRED_MAX = 100

/** Item id: a prefix such as `msg_`, `rs_` or `fc_`, the id of the response, and the index of the item. */
const ITEM_ID = /^[a-z]{2,3}_([0-9A-Za-z]{8,64})_\d{1,6}$/

/**
 * Reads the stored context of a request: the previous response or conversation, and referenced items. Their size is
 * limited to the characters of one request body.
 *
 * A response stores references to all segments (blobs of earlier turns) of its conversation. Reading therefore does not
 * follow the chain of previous responses, so it needs few reads and cannot loop.
 *
 * @throws ServiceError for a response that does not exist, failed, was cancelled or has not ended
 */
export async function readContext(
  context: IngressContext,
  tenant: string,
  asked: Pick<ResponsesRequest, 'previous_response_id' | 'conversation' | 'input'>,
): Promise<
  ConversationContext & { readonly conversation?: StoredConversation; readonly segments?: SharedHistory['segments'] }
> {
  const { previous_response_id: id, input } = asked
  const shared = {
    referenced: await readReferences(context, tenant, input),
    referencedCharsMax: context.config.bodyBytesMax,
  }
  const conversationId = conversationIdOf(asked)
  if (conversationId !== undefined) {
    const conversation = await readConversation(context, tenant, conversationId)
    return { turns: [], items: conversation.items, param: 'conversation', ...shared, conversation }
  }
  const param = 'previous_response_id'
  if (id == null) return { turns: [], items: [], param, ...shared }
  const { turns, result, segments } = await readPrevious(context, tenant, id)
  return { turns, items: result.output as unknown as AnyItem[], param, ...shared, segments }
}

async function readConversation(context: IngressContext, tenant: string, id: string): Promise<StoredConversation> {
  const param = 'conversation'
  const conversation = await getConversation(context, tenant, id, param)
  if (conversation.job_id === null) return conversation
  const under = RESPONSE_PREFIX + conversation.job_id.slice('job_'.length)
  const message = `The conversation has a running response, ${under}. Wait until the response has ended, or cancel it.`
  return refuse('invalid_value', param, message)
}

async function readPrevious(
  context: IngressContext,
  tenant: string,
  id: string,
): Promise<{ turns: readonly Turn[]; result: ResponseObject; segments: SharedHistory['segments'] }> {
  const param = 'previous_response_id'
  const job = await findResponse(context, tenant, id, param).catch((error: unknown) => {
    if (ServiceError.from(error).code !== 'not_found') throw error
    return refuse('invalid_value', param, `Previous response with id '${excerpt(id)}' not found.`)
  })
  const kept = await readStoredResponse(context, job)
  if (!kept.result) {
    const why = !hasEnded(job)
      ? 'has not ended yet'
      : job.state === 'cancelled'
        ? 'was cancelled'
        : `failed (${failureOf(job).code})`
    return refuse(
      'invalid_value',
      param,
      `Previous response with id '${excerpt(id)}' ${why}, so it cannot be continued.`,
    )
  }
  const turns = turnsOf(kept, await kept.fetchRequest())
  requireBounded(turns, context.config.bodyBytesMax)
  return { turns, result: kept.result, segments: kept.history?.segments ?? [] }
}

/**
 * Limits the size of the conversation to that of one request body. Without this limit, a conversation could grow with
 * each response.
 */
function requireBounded(turns: readonly Turn[], charsMax: number): void {
  let chars = 0
  for (const { parts } of turns) for (const part of parts) chars += charsOf(part)
  if (chars <= charsMax) return
  const message = `The conversation is longer than ${charsMax} characters. Start a new conversation with a summary of this one.`
  throw new ServiceError('context_length_exceeded', message, { param: 'previous_response_id' })
}

function charsOf(part: Turn['parts'][number]): number {
  if (part.type === 'image') return part.url.length
  if (part.type === 'tool_call') return part.arguments.length
  if (part.type === 'native') return JSON.stringify(part.value).length
  return 'data' in part ? part.data.length : part.text.length
}

async function readReferences(
  context: IngressContext,
  tenant: string,
  input: ResponsesRequest['input'],
): Promise<ReadonlyMap<string, AnyItem>> {
  const found = new Map<string, AnyItem>()
  if (!Array.isArray(input)) return found
  const responses = new Set<string>()
  for (const item of input) {
    const { type, id } = (item ?? {}) as { type?: unknown; id?: unknown }
    const [, callId] = type === 'item_reference' ? (ITEM_ID.exec(String(id)) ?? []) : []
    if (callId !== undefined) responses.add(callId)
  }
  if (responses.size > REFERRED_MAX) {
    refuse('invalid_value', 'input', `The input refers to items of more than ${REFERRED_MAX} responses.`)
  }
  for (const callId of responses) {
    for (const item of await outputOf(context, tenant, callId)) found.set(item.id, item as unknown as AnyItem)
  }
  return found
}

/**
 * Returns the output of a response. Empty if the response does not exist. A later check then refuses the reference to an item of that response, with
 * the path of the reference in the request.
 */
async function outputOf(context: IngressContext, tenant: string, callId: string): Promise<ResponseObject['output']> {
  try {
    const job = await findResponse(context, tenant, RESPONSE_PREFIX + callId)
    return (await readStoredResponse(context, job)).result?.output ?? []
  } catch (error) {
    if (['not_found', 'jobs_unavailable'].includes(ServiceError.from(error).code)) return []
    throw error
  }
}
