import type { DurableJob } from '#schemas/durable-job.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { waitFor } from '#services/ingress/calls/durable.ts'
import { queryNumber, requireJobs } from '#services/ingress/calls/job-object.ts'
import { jsonTextIn } from '#shared/json/write.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { JsonText } from '#shared/protocols/encode.ts'
import {
  findResponse,
  hasEnded,
  readStoredResponse,
  responseIdOf,
  storedResponseObject,
  turnsOf,
} from './stored-response.ts'
import { streamStored } from './stored-stream.ts'
import { itemsOfTurns } from './turn-items.ts'

/** Maximum time that a cancel request waits for the response to end, so that the answer shows the terminal state. */
const CANCEL_WAIT_MS = 2_000
const PAGE = { usual: 20, max: 100 }

/**
 * GET /v1/responses/{id} (docs/guides/responses.md, Stored responses): the current state, or with `?stream=true` all of its
 * events.
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

/**
 * DELETE /v1/responses/{id}: deletes a response that has ended.
 *
 * @throws ServiceError `job_not_finished`
 */
export async function deleteResponse(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant } = await find(context, call)
  await requireJobs(context).erase(tenant, id)
  await call.reply.whole({ id: responseIdOf({ id }), object: 'response', deleted: true })
}

/**
 * POST /v1/responses/{id}/cancel: cancels a background response. If the response has ended, it is returned unchanged.
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

/** GET /v1/responses/{id}/input_items: items of the prompt except instructions, newest first by default. */
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
  // Serialized in pieces, because an item may be as large as a request body.
  await call.reply.whole(new JsonText(await runYielding(jsonTextIn(page))))
}

function startOf(items: readonly { readonly id: string }[], after: unknown): number {
  if (after === undefined) return 0
  const at = items.findIndex(({ id }) => id === after)
  if (at >= 0) return at + 1
  throw new ServiceError('invalid_value', "'after' is not an item of this response.", { param: 'after' })
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
  const message = `The last event of the response${more} has the number ${job.last_seq}; ${after} is not one of them.`
  throw new ServiceError('invalid_value', message, { param: 'starting_after' })
}

function readFlag(value: unknown): boolean {
  return value === 'true' || value === 'True' || value === '1'
}
