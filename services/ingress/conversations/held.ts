import type { DurableJob } from '#schemas/durable-job.ts'
import type { ConversationItem } from '#schemas/responses/conversation.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { hasEnded, readKept } from '#services/ingress/endpoints/responses/kept.ts'
import { requireJobs } from '#services/ingress/jobs/paths.ts'
import { ServiceError } from '#shared/error.ts'
import type { Holding } from '#shared/limits/stored-quota.ts'
import {
  type ConversationChange,
  type ConversationStore,
  isConversationId,
  type StoredConversation,
} from '#shared/store/conversations.ts'
import { CONVERSATION_CHARS_MAX, conversationFull } from './item-form.ts'

/** How often a change is tried again because somebody else made one meanwhile. */
const TRIES_MAX = 5
/** A response under way is nearly always heard to end, not asked for. */
const END_POLL_MS = 600_000

/** The conversations of this deployment. @throws ServiceError `jobs_unavailable` where there is no store */
export function requireConversations(context: IngressContext): ConversationStore {
  requireJobs(context)
  return (context.store as NonNullable<IngressContext['store']>).conversations
}

/**
 * A conversation of a project, with all that responses have said in it so far.
 *
 * @throws ServiceError `not_found`, also for those of others
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

/** Changes a conversation by what it is then. @throws ServiceError `not_found`, `context_length_exceeded`, `insufficient_quota` */
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
    if (added.length > 0) requireRoom(change.items ?? [], 'items')
    using holding = await holdItems(context, tenant, added)
    const conversations = requireConversations(context)
    if (!(await conversations.change(read, change, context.config.fileRetentionMs))) continue
    holding.stored()
    return { ...read, ...change }
  }
  throw busy()
}

/**
 * Notes the response that goes on in a conversation, and adds what is said once it has ended.
 *
 * @param read As its prompt was made of it.
 * @throws ServiceError `invalid_value` when the conversation has changed since
 */
export async function beginResponse(
  context: IngressContext,
  read: StoredConversation,
  input: readonly ConversationItem[],
  job: DurableJob,
): Promise<void> {
  const change = { job_id: job.id, pending: input }
  using holding = await holdItems(context, read.tenant, input)
  if (!(await requireConversations(context).change(read, change, context.config.fileRetentionMs))) {
    throw new ServiceError('invalid_value', 'The conversation has changed meanwhile. Try again.', {
      param: 'conversation',
    })
  }
  holding.stored()
  void addWhenEnded(context, read, job)
}

/** @throws ServiceError `context_length_exceeded` for a conversation that can hold no more */
export function requireRoom(items: readonly ConversationItem[], param: string): void {
  if (JSON.stringify(items).length <= CONVERSATION_CHARS_MAX) return
  throw conversationFull(param)
}

/**
 * Reserves what items are to take of the project's stored bytes; the holding is to be disposed of. Output of responses is kept all the same.
 *
 * @throws ServiceError `insufficient_quota`
 */
export async function holdItems(
  { storage }: IngressContext,
  tenant: string,
  items: readonly ConversationItem[],
): Promise<Holding> {
  const holding = storage.open(tenant)
  if (items.length > 0) await holding.grow(Buffer.byteLength(JSON.stringify(items)))
  return holding
}

/** The failure for an id that is no conversation of the caller's. */
function conversationNotFound(id: string, param: string): ServiceError {
  return new ServiceError('not_found', `Conversation with id '${beginningOf(id, 64)}' not found.`, { param })
}

function busy(): ServiceError {
  return new ServiceError('overloaded', 'The conversation is changed by many at once. Try again.')
}

/** What the end of its response means for a conversation; undefined while there is none to tell. One that failed says nothing. */
async function endOfResponse(
  context: IngressContext,
  { tenant, job_id, items, pending }: StoredConversation,
): Promise<ConversationChange | undefined> {
  if (job_id === null) return undefined
  const job = await orNothing(requireJobs(context).get(tenant, job_id))
  if (job && !hasEnded(job)) return undefined
  const output = (job && (await orNothing(readKept(context, job))))?.result?.output
  const said = output ? [...pending, ...(output as unknown as ConversationItem[])] : []
  return { items: [...items, ...said], job_id: null, pending: [] }
}

/** Nothing of a response that was deleted, or is kept no longer. */
async function orNothing<T>(reading: Promise<T>): Promise<T | undefined> {
  return await reading.catch((error: unknown) => {
    if (['not_found', 'job_not_found', 'result_expired'].includes(ServiceError.from(error).code)) return undefined
    throw error
  })
}

/** Whoever reads the conversation next does it too: this is for those that nobody reads for as long as responses are kept. */
async function addWhenEnded(
  context: IngressContext,
  { tenant, id }: StoredConversation,
  job: DurableJob,
): Promise<void> {
  try {
    await requireJobs(context).waitForEnd(tenant, job.id, context.closing, END_POLL_MS)
    await orNothing(getConversation(context, tenant, id))
  } catch (error) {
    context.log.info({ err: error, job_id: job.id }, 'response not added to its conversation yet')
  }
}
