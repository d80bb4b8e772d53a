import type { Turn } from '#schemas/generate.ts'
import type { SharedHistory } from '#schemas/job.ts'
import type { AnyItem, ResponsesRequest } from '#schemas/responses/request.ts'
import type { ResponseObject } from '#schemas/responses/response.ts'
import { refuse } from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { getConversation } from '#services/ingress/conversations/changes.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { RESPONSE_PREFIX } from '#shared/protocols/responses/response.ts'
import type { StoredConversation } from '#shared/store/conversations.ts'
import type { ConversationContext } from './decode.ts'
import { conversationIdOf } from './response-form.ts'
import { failureOf, findResponse, hasEnded, readStoredResponse, turnsOf } from './stored-response.ts'

/** Maximum number of stored responses whose items one request may reference. */
const REFERRED_MAX = 100

/** Item id: a prefix such as `msg_`, `rs_` or `fc_`, the id of the response, and the index of the item. */
const ITEM_ID = /^[a-z]{2,3}_([0-9A-Za-z]{8,64})_\d{1,6}$/

/**
 * Reads the stored context of a request: the previous response or conversation, and referenced items. Limited to the
 * characters of one request body.
 *
 * A response stores references to all segments of its conversation. Reading therefore follows no chain of responses,
 * and cannot loop.
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

/** Limits the conversation to the size of one request body, because each response makes it longer. */
function requireBounded(turns: readonly Turn[], charsMax: number): void {
  let chars = 0
  for (const { parts } of turns) for (const part of parts) chars += charsOf(part)
  if (chars <= charsMax) return
  const message = `The conversation is longer than ${charsMax} characters. Begin a new one with a summary of it.`
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
 * Output of a response; empty if the response does not exist. The reference is then refused later, with its path in the
 * request.
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
