import type { DurableJob } from '#schemas/durable-job.ts'
import type { Part, Turn } from '#schemas/kinds/generate.ts'
import type { Pieces } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { waitFor } from '#services/ingress/calls/durable.ts'
import { queryNumber, requireJobs } from '#services/ingress/calls/job-object.ts'
import { customInput } from '#shared/engines/adapt.ts'
import { JsonText, jsonTextIn } from '#shared/json/write.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { sealReasoning } from '#shared/kinds/generate/responses/items.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import {
  findResponse,
  hasEnded,
  readStoredResponse,
  responseIdOf,
  storedResponseObject,
  streamStored,
  turnsOf,
} from './stored.ts'

/**
 * Maximum time in ms for which a cancel request waits for the end of the response. If the response ends in this time,
 * then the answer shows the terminal state.
 */
const CANCEL_WAIT_MS = 2_000
const PAGE = { usual: 20, max: 100 }

/**
 * GET /v1/responses/{id} (docs/guides/responses.md, Stored responses): returns the current state of the response. With
 * `?stream=true`, all events of the response are streamed.
 */
export async function getResponse(context: IngressContext, call: Call): Promise<void> {
  const { reply, query, method } = call
  const job = await find(context, call)
  const after = queryNumber(call, 'starting_after', Number.MAX_SAFE_INTEGER)
  if (!readFlag(query.stream)) return await reply.whole(storedResponseObject(await readStoredResponse(context, job)))
  requireStreamable(job, after)
  if (method === 'HEAD') return reply.open('events')
  const end = context.limits.beginFollow(call.key)
  const kept = await readStoredResponse(context, job)
  await streamStored(context, call, kept, { after: after ?? -1, isBackground: true }).finally(end)
}

export async function deleteResponse(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant } = await find(context, call)
  await requireJobs(context).erase(tenant, id)
  await call.reply.whole({ id: responseIdOf({ id }), object: 'response', deleted: true })
}

/**
 * POST /v1/responses/{id}/cancel: cancels a background response. A response that has already ended is returned
 * unchanged.
 */
export async function cancelResponse(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  const job = await find(context, call)
  const { encode } = await readStoredResponse(context, job)
  if (encode.responses?.shown.background !== true) {
    const message =
      'Only responses that run in the background can be cancelled. To cancel another response, close its connection.'
    throw new ServiceError('invalid_request', message, { param: 'id' })
  }
  await jobs.cancel(job.tenant, job.id, 'final').catch((error: unknown) => {
    if (ServiceError.from(error).code !== 'job_already_finished') throw error
  })
  const { job: ended } = await waitFor(call, jobs, job, CANCEL_WAIT_MS)
  await call.reply.whole(storedResponseObject(await readStoredResponse(context, ended)))
}

/** GET /v1/responses/{id}/input_items: lists the items of the prompt except instructions, newest first by default. */
export async function listInputItems(context: IngressContext, call: Call): Promise<void> {
  const limit = queryNumber(call, 'limit', PAGE.max) ?? PAGE.usual
  if (limit === 0) throw new ServiceError('invalid_value', 'limit must be at least 1; got 0.', { param: 'limit' })
  const order = call.query.order ?? 'desc'
  if (order !== 'asc' && order !== 'desc') {
    throw new ServiceError('invalid_value', "'order' must be 'asc' or 'desc'.", { param: 'order' })
  }
  const kept = await readStoredResponse(context, await find(context, call))
  const turns = turnsOf(kept, await kept.fetchRequest())
  const items = await runYielding(itemsOfTurns(turns, kept.encode.call_id))
  if (order === 'desc') items.reverse()
  const from = startOf(items, call.query.after)
  const data = items.slice(from, from + limit)
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  const page = { object: 'list', data, first_id, last_id, has_more: from + limit < items.length }
  // The page is serialized with event-loop yields, because an item may be as large as a request body.
  await call.reply.whole(new JsonText(await runYielding(jsonTextIn(page))))
}

function startOf(items: readonly { readonly id: string }[], after: unknown): number {
  if (after === undefined) return 0
  const at = items.findIndex(({ id }) => id === after)
  if (at >= 0) return at + 1
  throw new ServiceError('invalid_value', "'after' is not the id of an item of this response.", { param: 'after' })
}

function find(context: IngressContext, call: Call): Promise<DurableJob> {
  return findResponse(context, projectIdOf(call.key), String(call.params.id))
}

function requireStreamable(job: DurableJob, after: number | undefined): void {
  if (!job.stream) {
    const message = "Only a response that was created with 'stream' set to true can be streamed."
    throw new ServiceError('invalid_value', message, { param: 'stream' })
  }
  if (after === undefined || after <= Math.max(1, job.last_seq)) return
  const more = hasEnded(job) ? '' : ' so far'
  const message = `starting_after must be at most ${job.last_seq}, the number of the last event${more}; got ${after}.`
  throw new ServiceError('invalid_value', message, { param: 'starting_after' })
}

function readFlag(value: unknown): boolean {
  return value === 'true' || value === 'True' || value === '1'
}

interface InputItem {
  readonly id: string
  readonly type: string
  readonly [field: string]: unknown
}

const PIECE_TURNS = 500

/**
 * Converts the turns of a stored prompt back to items (docs/guides/responses.md, Stored responses). Each item gets a
 * new id, because the original ids are not stored.
 *
 * @param callId Id of the response without its prefix
 */
function* itemsOfTurns(turns: readonly Turn[], callId: string): Pieces<InputItem[]> {
  const items: InputItem[] = []
  for (const [index, turn] of turns.entries()) {
    if (index % PIECE_TURNS === 0) yield
    for (const item of itemsOfTurn(turn)) {
      items.push({ id: `${PREFIXES[item.type] ?? 'item'}_${callId}_in_${items.length}`, ...item })
    }
  }
  return items
}

type Item = Omit<InputItem, 'id'> & { readonly type: string }

const PREFIXES: Readonly<Record<string, string>> = {
  message: 'msg',
  reasoning: 'rs',
  function_call: 'fc',
  function_call_output: 'fco',
  custom_tool_call: 'ctc',
  custom_tool_call_output: 'ctco',
}

function itemsOfTurn(turn: Turn): Item[] {
  const { role, parts } = turn
  if (role === 'tool') {
    const isText = parts.every(({ type }) => type === 'text')
    const output = isText ? parts.map((part) => ('text' in part ? part.text : '')).join('\n') : parts.flatMap(inputPart)
    const type = turn.custom ? 'custom_tool_call_output' : 'function_call_output'
    return [{ type, status: 'completed', call_id: turn.call_id, output }]
  }
  if (role === 'assistant') return assistantItems(parts)
  return [{ type: 'message', status: 'completed', role, content: parts.flatMap(inputPart) }]
}

function assistantItems(parts: readonly Part[]): Item[] {
  const items: Item[] = []
  let content: object[] | undefined
  for (const part of parts) {
    if (part.type === 'text') {
      const said = { type: 'output_text', text: part.text, annotations: [], logprobs: [] }
      if (content) content.push(said)
      else {
        content = [said]
        items.push({ type: 'message', status: 'completed', role: 'assistant', content })
      }
      continue
    }
    if (part.type === 'native' && !part.isItem) {
      if (content) content.push(part.value)
      else {
        content = [part.value]
        items.push({ type: 'message', status: 'completed', role: 'assistant', content })
      }
      continue
    }
    content = undefined
    if (part.type === 'native') items.push({ ...part.value, type: String(part.value.type) })
    if (part.type === 'reasoning') items.push(reasoningItem(part))
    if (part.type === 'tool_call') {
      const { id: call_id, name, arguments: text, custom } = part
      const call = custom
        ? { type: 'custom_tool_call', input: customInput(text) }
        : { type: 'function_call', arguments: text }
      items.push({ ...call, status: 'completed', call_id, name })
    }
  }
  return items
}

function reasoningItem({ text, signature, redacted }: Extract<Part, { type: 'reasoning' }>): Item {
  const sealed = sealReasoning({ signature, redacted })
  const content = text === '' ? [] : [{ type: 'reasoning_text', text }]
  return { type: 'reasoning', status: 'completed', summary: [], content, ...(sealed && { encrypted_content: sealed }) }
}

function inputPart(part: Part): object[] {
  switch (part.type) {
    case 'text':
      return [{ type: 'input_text', text: part.text }]
    case 'image':
      return [{ type: 'input_image', image_url: part.url, detail: part.detail ?? 'auto' }]
    case 'audio':
      return [{ type: 'input_audio', input_audio: { data: part.data, format: part.format } }]
    case 'file': {
      const content = part.data.startsWith('data:') ? { file_data: part.data } : { file_url: part.data }
      return [{ type: 'input_file', ...content, ...(part.filename && { filename: part.filename }) }]
    }
    case 'native':
      return [part.value]
    default:
      return []
  }
}
