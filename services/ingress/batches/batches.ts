import { CreateBatch, ListBatches } from '#schemas/batches/body.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { requireEndpoint } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { getFile, requireFiles } from '#services/ingress/calls/files.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newAttachmentKey, newJobId } from '#shared/store/job-id.ts'
import { findMadeBatch, submitBatch } from './create.ts'
import { findBatch, jobIdOfBatch } from './ids.ts'
import { batchObject, currentBatchObject } from './object.ts'

export const BATCHES = '/v1/batches'

const UNITS_MS = { s: 1_000, m: 60_000, h: 3_600_000 } as const

/**
 * POST /v1/batches: creates a batch from the requests in a file. The batch copies the file, so the file may be deleted
 * at once.
 */
export async function createBatch(context: IngressContext, call: Call, body: unknown): Promise<void> {
  refuseUnknown(CreateBatch, body)
  const asked = parseBody(CreateBatch, body, 'openai')
  const { path } = findEndpoint(asked.endpoint)
  requireEndpoint(call.key, path)
  const made = await findMadeBatch(context, call, body)
  if (made) return await call.reply.whole(await currentBatchObject(context, made))
  const file = await getFile(requireFiles(context), projectIdOf(call.key), asked.input_file_id, 'input_file_id')
  if (file.purpose !== 'batch') {
    const message = `The file was uploaded for '${file.purpose}'. Upload it with the purpose 'batch'.`
    throw new ServiceError('invalid_value', message, { param: 'input_file_id' })
  }
  const input = newAttachmentKey(newJobId())
  call.uploads.add(input)
  await call.storage.over(context.blobs).copy(file.id, input)
  const job = await submitBatch(context, call, {
    path: BATCHES,
    dialect: 'requests',
    endpoint: path,
    input,
    inputBytes: file.bytes,
    inputFileId: file.id,
    window: asked.completion_window,
    windowMs: windowOf(context, asked.completion_window),
    keepMs: (asked.output_expires_after?.seconds ?? 0) * 1_000 || context.config.fileRetentionMs,
    metadata: asked.metadata ?? undefined,
    body,
  })
  await call.reply.whole(await batchObject(context, job))
}

/** GET /v1/batches: the project's batches, newest first. */
export async function listBatches(context: IngressContext, call: Call): Promise<void> {
  const { limit, after } = parseBody(ListBatches, { ...call.query }, 'openai')
  const page = await requireJobs(context).list(projectIdOf(call.key), {
    limit,
    endpoint: BATCHES,
    ...(after !== undefined && { after: cursorOf(after) }),
  })
  const data = await Promise.all(page.jobs.map((job) => batchObject(context, job)))
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  await call.reply.whole({ object: 'list', data, first_id, last_id, has_more: page.hasMore })
}

export async function retrieveBatch(context: IngressContext, call: Call): Promise<void> {
  await call.reply.whole(await currentBatchObject(context, await findBatch(context, call, BATCHES, 'batch_')))
}

/**
 * POST /v1/batches/{id}/cancel: cancels a batch. Results of requests that have ended are written to its files.
 *
 * @throws ServiceError `job_already_finished`
 */
export async function cancelBatch(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant } = await findBatch(context, call, BATCHES, 'batch_')
  // 'once': a second cancel would also stop the writing of partial results.
  const job = await requireJobs(context).cancel(tenant, id, 'once')
  await call.reply.whole(await currentBatchObject(context, job))
}

/**
 * Converts `completion_window` to the maximum duration of the batch, in milliseconds.
 *
 * @throws ServiceError `integer_above_max_value`
 */
function windowOf({ config }: IngressContext, window: string): number {
  const ms = Number(window.slice(0, -1)) * UNITS_MS[window.slice(-1) as keyof typeof UNITS_MS]
  if (ms <= config.jobDeadlineMaxMs) return ms
  const message = `A batch may take at most ${Math.floor(config.jobDeadlineMaxMs / 1_000)} seconds here.`
  throw new ServiceError('integer_above_max_value', message, { param: 'completion_window' })
}

function cursorOf(after: string): string {
  const id = jobIdOfBatch(after, 'batch_')
  if (id !== undefined) return id
  throw new ServiceError('invalid_value', "Invalid 'after': expected the id of a batch.", { param: 'after' })
}
