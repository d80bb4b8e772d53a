import { ListMessageBatches } from '#schemas/batches/body.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { findMadeBatch, submitBatch } from '#services/ingress/batches/create.ts'
import { batchIdOf, findBatch, jobIdOfBatch } from '#services/ingress/batches/ids.ts'
import { type BatchDetails, batchDetails } from '#services/ingress/batches/object.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { getFile, requireFiles } from '#services/ingress/calls/files.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { messages } from '#services/ingress/endpoints/generate.ts'
import { parseVersion } from '#services/ingress/endpoints/messages/decode.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { BATCH_WRAP_UP_MS } from '#shared/kinds/batch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { UploadedRequests } from './upload.ts'

/** Path of Anthropic batches, and the endpoint that their jobs have in the store. */
export const MESSAGE_BATCHES = '/v1/messages/batches'

const PREFIX = 'msgbatch_'
const WINDOW_HOURS = 24
const HOUR_MS = 3_600_000

export async function createMessageBatch(context: IngressContext, call: Call, body: unknown): Promise<void> {
  parseVersion(call.headers)
  const { input, bytes, requests, sha256 } = body as UploadedRequests
  const { jobDeadlineMaxMs, fileRetentionMs: keepMs } = context.config
  const made = await findMadeBatch(context, call, { sha256 })
  if (made) return await say(context, call, made)
  const job = await submitBatch(context, call, {
    path: MESSAGE_BATCHES,
    dialect: 'messages',
    endpoint: messages.path,
    input,
    inputBytes: bytes,
    inputFileId: null,
    requests,
    window: `${WINDOW_HOURS}h`,
    windowMs: Math.min(WINDOW_HOURS * HOUR_MS, jobDeadlineMaxMs),
    keepMs,
    body: { sha256 },
  })
  await say(context, call, job)
}

/** GET /v1/messages/batches: the project's batches of messages, newest first. */
export async function listMessageBatches(context: IngressContext, call: Call): Promise<void> {
  const { limit, after_id, before_id } = parseBody(ListMessageBatches, { ...call.query }, 'messages')
  const isBack = before_id !== undefined && after_id === undefined
  const cursor = isBack ? before_id : after_id
  const page = await requireJobs(context).list(projectIdOf(call.key), {
    limit,
    endpoint: MESSAGE_BATCHES,
    order: isBack ? 'asc' : 'desc',
    ...(cursor !== undefined && { after: cursorOf(cursor, isBack ? 'before_id' : 'after_id') }),
  })
  const jobs = isBack ? page.jobs.toReversed() : page.jobs
  const data = await Promise.all(jobs.map(async (job) => messageBatchObject(job, await batchDetails(context, job))))
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  await call.reply.whole({ data, has_more: page.hasMore, first_id, last_id })
}

export async function retrieveMessageBatch(context: IngressContext, call: Call): Promise<void> {
  await say(context, call, await find(context, call))
}

export async function cancelMessageBatch(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant } = await find(context, call)
  // 'once': a second cancel would also stop the writing of partial results.
  await say(context, call, await requireJobs(context).cancel(tenant, id, 'once'))
}

/**
 * GET /v1/messages/batches/{id}/results: one line per request, in order.
 *
 * @throws ServiceError `job_not_finished`
 */
export async function messageBatchResults(context: IngressContext, call: Call): Promise<void> {
  const job = await find(context, call)
  if (!TERMINAL.has(job.state)) throw new ServiceError('job_not_finished', 'The batch has not ended yet.')
  const { result } = await batchDetails(context, job)
  if (!result?.output_file_id) throw new ServiceError('not_found', 'The batch has no results.')
  const { id, bytes } = await getFile(requireFiles(context), job.tenant, result.output_file_id)
  await call.reply.bytes(await context.blobs.open(id), { type: 'application/x-jsonl', length: bytes })
}

/**
 * DELETE /v1/messages/batches/{id}: deletes a batch that has ended, with its results.
 *
 * @throws ServiceError `job_not_finished`
 */
export async function deleteMessageBatch(context: IngressContext, call: Call): Promise<void> {
  const job = await find(context, call)
  const { result } = await batchDetails(context, job)
  await requireJobs(context).erase(job.tenant, job.id)
  if (result?.output_file_id) {
    await requireFiles(context).delete(job.tenant, result.output_file_id)
    await context.blobs.delete(result.output_file_id)
  }
  await call.reply.whole({ id: batchIdOf(job.id, PREFIX), type: 'message_batch_deleted' })
}

async function find(context: IngressContext, call: Call): Promise<DurableJob> {
  return await findBatch(context, call, MESSAGE_BATCHES, PREFIX)
}

async function say(context: IngressContext, call: Call, job: DurableJob): Promise<void> {
  await call.reply.whole(messageBatchObject(job, await batchDetails(context, job)))
}

function cursorOf(id: string, param: string): string {
  const jobId = jobIdOfBatch(id, PREFIX)
  if (jobId !== undefined) return jobId
  throw new ServiceError('invalid_value', `${param}: expected the id of a batch.`, { param })
}

function messageBatchObject(job: DurableJob, details: BatchDetails) {
  const id = batchIdOf(job.id, 'msgbatch_')
  const isOver = TERMINAL.has(job.state)
  const isCancelled = job.cancel_requested_at_ms !== null
  return {
    id,
    type: 'message_batch',
    processing_status: isOver ? 'ended' : isCancelled ? 'canceling' : 'in_progress',
    request_counts: countsOf(job, details),
    created_at: timeOf(job.created_at_ms),
    expires_at: timeOf(job.deadline_ms - BATCH_WRAP_UP_MS),
    ended_at: timeOf(job.finished_at_ms),
    cancel_initiated_at: timeOf(job.cancel_requested_at_ms),
    archived_at: null,
    // A relative URL, because the public address is unknown behind a proxy. SDKs add their base URL.
    results_url: details.result?.output_file_id ? `/v1/messages/batches/${id}/results` : null,
  }
}

function countsOf({ state }: DurableJob, { request, result }: BatchDetails) {
  const none = { processing: 0, succeeded: 0, errored: 0, canceled: 0, expired: 0 }
  const total = request.requests ?? 0
  if (!TERMINAL.has(state)) return { ...none, processing: total }
  if (!result) {
    const end = state === 'cancelled' ? 'canceled' : state === 'expired' ? 'expired' : 'errored'
    return { ...none, [end]: total }
  }
  const { completed, failed, cancelled, expired } = result.counts
  return { ...none, succeeded: completed, errored: failed, canceled: cancelled, expired }
}

function timeOf(ms: number): string

function timeOf(ms: number | null): string | null

function timeOf(ms: number | null): string | null {
  return ms === null ? null : new Date(ms).toISOString()
}
