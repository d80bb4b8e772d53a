import type { DurableJob } from '#schemas/durable-job.ts'
import type { ConversationItem } from '#schemas/responses/conversation.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { hasEnded, readStoredResponse } from '#services/ingress/endpoints/responses/stored-response.ts'
import type { Holding } from '#shared/capacity/byte-budgets.ts'
import { ServiceError } from '#shared/lib/error.ts'
import {
  type ConversationChange,
  type ConversationStore,
  isConversationId,
  type StoredConversation,
} from '#shared/store/conversations.ts'
import { CONVERSATION_CHARS_MAX, conversationFull } from './item-form.ts'

/** Maximum attempts of a change that conflicts with concurrent changes. */
const TRIES_MAX = 5
/** Interval at which a running response is read. Kept long, because a notification nearly always arrives first. */
const END_POLL_MS = 600_000

/**
 * Conversation store of this deployment.
 *
 * @throws ServiceError `jobs_unavailable` without a store
 */
export function requireConversations(context: IngressContext): ConversationStore {
  requireJobs(context)
  return (context.store as NonNullable<IngressContext['store']>).conversations
}

/**
 * A conversation of a project, with the output of all ended responses.
 *
 * @throws ServiceError `not_found`, also for conversations of other projects
 */
export async function getConversation(
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
 * Changes a conversation with optimistic concurrency: reads it, computes the change, writes it, and retries after a
 * conflict.
 *
 * @throws ServiceError `not_found`, `context_length_exceeded`, `insufficient_quota`
 */
export async function changeConversation(
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
 * Records that a response continues a conversation, and adds its output when the response has ended.
 *
 * @param read The version of the conversation from which the prompt was built
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

/** @throws ServiceError `context_length_exceeded` if the items are too long for a conversation */
export function requireCapacity(items: readonly ConversationItem[], param: string): void {
  if (JSON.stringify(items).length <= CONVERSATION_CHARS_MAX) return
  throw conversationFull(param)
}

/**
 * Reserves the size of items in the quota of stored bytes of the project. The result must be disposed. Output of
 * responses is stored even if it exceeds the quota.
 *
 * @throws ServiceError `insufficient_quota`
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
 * Change of a conversation once its response has ended; undefined while the response runs. A failed response adds
 * nothing.
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

/** Returns undefined for a response that was deleted or has expired. */
async function ignoreNotFound<T>(reading: Promise<T>): Promise<T | undefined> {
  return await reading.catch((error: unknown) => {
    if (['not_found', 'job_not_found', 'result_expired'].includes(ServiceError.from(error).code)) return undefined
    throw error
  })
}

/**
 * Adds the output of a response to its conversation when the response has ended. Reading the conversation does that,
 * too. Without this function, the output could expire before a caller reads the conversation.
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
    context.log.info({ err: error, job_id: job.id }, 'response not yet added to its conversation')
  }
}
