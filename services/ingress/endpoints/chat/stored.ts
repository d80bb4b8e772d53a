import { setImmediate as nextTurn } from 'node:timers/promises'
import { z } from 'zod'
import { ChatRequest } from '#schemas/chat.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { GenerateRequest, NativePart, Part, Turn } from '#schemas/kinds/generate.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { type Pieces, parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { pageOf, readPairs } from '#services/ingress/calls/job-list.ts'
import { isJobId, requireJobs } from '#services/ingress/calls/job-object.ts'
import { boundMetadata } from '#services/ingress/calls/job-options.ts'
import { customInput } from '#shared/engines/adapt.ts'
import { fetchBody } from '#shared/jobs/body.ts'
import { readStored } from '#shared/jobs/records.ts'
import { JsonText, jsonTextIn } from '#shared/json/write.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'

const PIECE_TURNS = 500

/*
 * Stored chat completions (docs/internals/protocol.md). Each stored completion is a completed durable job of this
 * endpoint without a parent. The id of the completion is derived from the job id, and both are deleted together.
 */

const CHAT_PATH = '/v1/chat/completions'
const PREFIX = 'chatcmpl-'
/**
 * Default and maximum completions per page. A page that reaches PAGE_CHARS_MAX ends earlier, but has at least one
 * completion.
 */
const LIMIT = { usual: 20, max: 100 }
const PAGE_CHARS_MAX = 8 * 1024 * 1024

export const ListParams = z.object({
  limit: z.coerce.number().int().min(1).max(LIMIT.max).default(LIMIT.usual),
  after: z.string().max(200).optional(),
  order: z.enum(['asc', 'desc']).default('asc'),
})
export const ListCompletions = ListParams.extend({ model: z.string().max(1_000).optional() })
export const UpdateCompletion = z.object({ metadata: ChatRequest.shape.metadata })

export async function listCompletions(context: IngressContext, call: Call): Promise<void> {
  const { pairs, rest } = readPairs(call.query)
  refuseUnknown(ListCompletions, rest)
  const { limit, order, after, model: name } = parseBody(ListCompletions, rest, 'openai')
  const model = name === undefined ? undefined : (context.models.find(name)?.id ?? name)
  const matches = (job: DurableJob) =>
    (model === undefined || job.model === model) && pairs.every(([key, value]) => job.metadata[key] === value)
  const from = after === undefined ? {} : { after: jobIdOf(after) ?? throwNotFound(after, 'after') }
  const query = { limit, order, endpoint: CHAT_PATH, states: ['completed' as const], isOwn: true, ...from }
  const look = { matches, group: undefined, needsScan: model !== undefined || pairs.length > 0 }
  const data: ShownItem[] = []
  let hasMore = true
  // A completion that is deleted during the request is left out, so a page of jobs may give no completions. In this
  // case the next page of jobs is read, because clients stop at an empty page.
  for (let cursor = {}; hasMore && data.length === 0; ) {
    const page = await pageOf(requireJobs(context), projectIdOf(call.key), { ...query, ...cursor }, look)
    hasMore = (await addCompletions(context, page.jobs, data)) || page.hasMore
    cursor = { after: page.lastId }
  }
  await sendPage(call, data, hasMore)
}

async function addCompletions(
  context: IngressContext,
  jobs: readonly DurableJob[],
  data: ShownItem[],
): Promise<boolean> {
  let chars = 0
  for (const job of jobs) {
    const completion = await completionOf(context, job)
    if (!completion) continue
    chars += completion.text.length
    if (chars > PAGE_CHARS_MAX && data.length > 0) return true
    data.push(completion)
    await nextTurn()
  }
  return false
}

export async function getCompletion(context: IngressContext, call: Call): Promise<void> {
  await call.reply.whole(new JsonText((await findCompletion(context, call)).completion.text))
}

/** POST /v1/chat/completions/{id}: replaces the metadata of a completion. A value of null removes all metadata. */
export async function updateCompletion(context: IngressContext, call: Call, body: unknown): Promise<void> {
  refuseUnknown(UpdateCompletion, body)
  const metadata = boundMetadata(parseBody(UpdateCompletion, body, 'openai').metadata ?? {}) ?? {}
  const { job, completion } = await findCompletion(context, call)
  const isSet = await context.store?.setMetadata(job.tenant, job.id, metadata)
  const changed = (isSet && (await completionOf(context, { ...job, metadata }))) || throwNotFound(completion.id)
  await call.reply.whole(new JsonText(changed.text))
}

export async function deleteCompletion(context: IngressContext, call: Call): Promise<void> {
  const { job, completion } = await findCompletion(context, call)
  await requireJobs(context).erase(job.tenant, job.id)
  await call.reply.whole({ id: completion.id, object: 'chat.completion.deleted', deleted: true })
}

export async function listCompletionMessages(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListParams, call.query)
  const { limit, order, after } = parseBody(ListParams, call.query, 'openai')
  const { job, completion } = await findCompletion(context, call)
  const content = await context.store?.findContent(job.tenant, job.id)
  if (!content?.request) return throwNotFound(completion.id)
  const request = (await fetchBody(readStored(content.request), context.blobs)) as GenerateRequest
  const messages = await runYielding(messagesOfTurns(request.turns, completion.id))
  if (order === 'desc') messages.reverse()
  const at = after === undefined ? -1 : messages.findIndex(({ id }) => id === after)
  if (after !== undefined && at < 0) {
    throw new ServiceError('invalid_value', "'after' is not the id of a message of this completion.", {
      param: 'after',
    })
  }
  const data: ShownItem[] = []
  let chars = 0
  for (const message of messages.slice(at + 1, at + 1 + limit)) {
    const text = await runYielding(jsonTextIn(message))
    chars += text.length
    if (chars > PAGE_CHARS_MAX && data.length > 0) break
    data.push({ id: message.id, text })
  }
  await sendPage(call, data, at + 1 + data.length < messages.length)
}

interface ShownItem {
  readonly id: string
  readonly text: string
}

async function findCompletion(context: IngressContext, call: Call) {
  const jobs = requireJobs(context)
  const id = String(call.params.id)
  const job = await jobs.get(projectIdOf(call.key), jobIdOf(id) ?? throwNotFound(id)).catch((error: unknown) => {
    throw ServiceError.from(error).code === 'job_not_found' ? notFound(id) : error
  })
  if (job.endpoint !== CHAT_PATH) throwNotFound(id)
  if (job.state !== 'completed')
    throw notFound(id, ` A completion is stored when it has completed, but job ${job.id} is ${job.state}.`)
  return { job, completion: (await completionOf(context, job)) ?? throwNotFound(id) }
}

/**
 * Returns the answer that the caller of a completed job received, with the current metadata. Undefined if the result
 * was deleted.
 *
 * The metadata is inserted into the JSON text of the answer. Parsing and serializing a large answer would take long.
 */
async function completionOf(
  context: IngressContext,
  { tenant, id, metadata }: DurableJob,
): Promise<ShownItem | undefined> {
  const result = await requireJobs(context).resultText(tenant, id)
  if (result === null) return undefined
  const text = `${result.slice(0, result.lastIndexOf('}'))},"metadata":${JSON.stringify(metadata)}}`
  return { id: completionIdOf(id), text }
}

async function sendPage({ reply }: Call, data: readonly ShownItem[], has_more: boolean): Promise<void> {
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  const rest = JSON.stringify({ first_id, last_id, has_more }).slice(1)
  await reply.whole(new JsonText(`{"object":"list","data":[${data.map(({ text }) => text).join(',')}],${rest}`))
}

function completionIdOf(jobId: string): string {
  return jobId.replace('job_', PREFIX)
}

function jobIdOf(id: string): string | undefined {
  const jobId = id.startsWith(PREFIX) ? `job_${id.slice(PREFIX.length)}` : ''
  return isJobId(jobId) ? jobId : undefined
}

function notFound(id: string, more = ''): ServiceError {
  return new ServiceError('not_found', `Chat completion with id '${beginningOf(id, 64)}' not found.${more}`, {
    param: 'id',
  })
}

function throwNotFound(id: string, param = 'id'): never {
  const { code, message } = notFound(id)
  throw new ServiceError(code, message, { param })
}

interface StoredMessage {
  readonly id: string
  readonly role: Turn['role']
  readonly content: string | null
  readonly content_parts: readonly object[] | null
  readonly [field: string]: unknown
}

/**
 * Converts stored turns back to the messages of the request. Each message gets a new id. Audio, files and other parts
 * that this API cannot represent are left out.
 */
function* messagesOfTurns(turns: readonly Turn[], completionId: string): Pieces<StoredMessage[]> {
  const messages: StoredMessage[] = []
  for (const [index, turn] of turns.entries()) {
    if (index % PIECE_TURNS === 0) yield
    messages.push(messageOf(turn, `${completionId}-${index}`))
  }
  return messages
}

function messageOf(turn: Turn, id: string): StoredMessage {
  const { role, parts } = turn
  const texts = parts.flatMap((part) => (part.type === 'text' ? [part.text] : []))
  const fields = Object.assign({}, ...parts.map((part) => (isNative(part) && !isPart(part) ? part.value : {})))
  const shown = parts.filter((part) => part.type !== 'tool_call' && !(isNative(part) && !isPart(part)))
  const isOneText = shown.length <= 1 && shown.every(({ type }) => type === 'text')
  const calls = parts.flatMap(callOf)
  const name = role === 'tool' ? undefined : turn.name
  return {
    id,
    role,
    content: texts.length > 0 ? texts.join('') : null,
    content_parts: isOneText ? null : shown.flatMap(shownPart),
    ...fields,
    ...(name !== undefined && { name }),
    ...(role === 'tool' && { tool_call_id: turn.call_id }),
    ...(calls.length > 0 && { tool_calls: calls }),
  }
}

function isNative(part: Part): part is NativePart {
  return part.type === 'native' && part.dialect === 'openai'
}

/**
 * Whether a native part, which upstreams receive unchanged, belongs to the message content. A native part without a type
 * contains fields of the message itself (shared/engines/openai/encode.ts).
 */
function isPart({ value }: NativePart): boolean {
  return value.type !== undefined
}

function shownPart(part: Part): object[] {
  if (isNative(part)) return [part.value]
  if (part.type === 'text') return [{ type: 'text', text: part.text }]
  if (part.type !== 'image') return []
  return [{ type: 'image_url', image_url: { url: part.url, ...(part.detail && { detail: part.detail }) } }]
}

function callOf(part: Part): object[] {
  if (part.type !== 'tool_call') return []
  const { id, name, custom } = part
  if (custom) return [{ id, type: 'custom', custom: { name, input: customInput(part.arguments) } }]
  return [{ id: part.id, type: 'function', function: { name: part.name, arguments: part.arguments } }]
}
