import { setImmediate as nextTurn } from 'node:timers/promises'
import { type BatchDialect, BatchRequest, BatchResult, CreateBatch, ListBatches } from '#schemas/batches/batch.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { requireEndpoint } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext, PreparedCall } from '#services/ingress/calls/call.ts'
import { childCountsOf, childCountsOfPage, waitingFor } from '#services/ingress/calls/child-counts.ts'
import { acceptedOf, createJob } from '#services/ingress/calls/durable.ts'
import { getFile, requireFiles } from '#services/ingress/calls/files.ts'
import { type ChildCounts, estimateOf, isJobId, requireJobs } from '#services/ingress/calls/job-object.ts'
import { boundMetadata, idempotencyOf, readIdempotencyKey } from '#services/ingress/calls/job-options.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { readStored } from '#shared/jobs/records.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { BATCH_WRAP_UP_MS, batch } from '#shared/kinds/batch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import { childJobId, newAttachmentKey, newJobId } from '#shared/store/jobs.ts'
import { isFileId } from '#shared/store/records.ts'
import { ALL_TENANTS, type Scope } from '#shared/store/store.ts'
import { FORM_KEY, TABLE_FILE_KEY } from '#shared/tables/answers.ts'
import { NANOS_PER_USD } from '#shared/usage/usage.ts'
import { countInput } from './files.ts'

export const BATCHES = '/v1/batches'

const UNITS_MS = { s: 1_000, m: 60_000, h: 3_600_000 } as const

/**
 * POST /v1/batches: creates a batch from the requests in a file. The batch has its own copy of the file, so the caller
 * may delete the file at once.
 */
export async function createBatch(context: IngressContext, call: Call, body: unknown): Promise<void> {
  refuseUnknown(CreateBatch, body)
  const asked = parseBody(CreateBatch, body, 'openai')
  const { path } = findEndpoint(context, asked.endpoint)
  requireEndpoint(call.key, path)
  const made = await findEarlierBatch(context, call, body)
  if (made) return await call.reply.whole(await currentBatchObject(context, made))
  const file = await getFile(requireFiles(context), projectIdOf(call.key), asked.input_file_id, 'input_file_id')
  if (file.purpose !== 'batch') {
    const message = `The file has the purpose '${file.purpose}'. Upload the file again with the purpose 'batch'.`
    throw new ServiceError('invalid_value', message, { param: 'input_file_id' })
  }
  const input = newAttachmentKey(newJobId())
  call.uploads.add(input)
  await call.storage.over(context.blobs).copy(file.id, input)
  const windowMs = windowOf(context, asked.completion_window)
  const keepMs = (asked.output_expires_after?.seconds ?? 0) * 1_000 || context.config.fileRetentionMs
  const table = asked.metadata?.[TABLE_FILE_KEY] ?? ''
  // The CSV of the results has the columns of the table. The table is therefore stored as long as the result files, whose
  // retention begins when the batch ends.
  if (isFileId(table)) {
    await requireFiles(context).refer(projectIdOf(call.key), [table], windowMs + BATCH_WRAP_UP_MS + keepMs)
  }
  const job = await submitBatch(context, call, {
    path: BATCHES,
    dialect: 'requests',
    endpoint: path,
    input,
    inputBytes: file.bytes,
    inputFileId: file.id,
    window: asked.completion_window,
    windowMs,
    keepMs,
    metadata: asked.metadata ?? undefined,
    body,
  })
  await call.reply.whole(await currentBatchObject(context, job))
}

export async function listBatches(context: IngressContext, call: Call): Promise<void> {
  const { limit, after } = parseBody(ListBatches, { ...call.query }, 'openai')
  const page = await requireJobs(context).list(projectIdOf(call.key), {
    limit,
    endpoint: BATCHES,
    ...(after !== undefined && { after: cursorOf(after) }),
  })
  const data = await batchObjectsOfPage(context, page.jobs)
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  await call.reply.whole({ object: 'list', data, first_id, last_id, has_more: page.hasMore })
}

export async function retrieveBatch(context: IngressContext, call: Call): Promise<void> {
  await call.reply.whole(await currentBatchObject(context, await findBatch(context, call, BATCHES, 'batch_')))
}

/**
 * POST /v1/batches/{id}/cancel: cancels a batch. The results of requests that have already ended are still written to
 * the result files.
 *
 * @throws ServiceError `job_already_finished` if the batch has ended
 */
export async function cancelBatch(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant } = await findBatch(context, call, BATCHES, 'batch_')
  // With the mode 'once', a second cancel has no effect. Otherwise the second cancel would end the job before partial
  // results are written.
  const job = await requireJobs(context).cancel(tenant, id, 'once')
  await call.reply.whole(await currentBatchObject(context, job))
}

function windowOf({ config }: IngressContext, window: string): number {
  const ms = Number(window.slice(0, -1)) * UNITS_MS[window.slice(-1) as keyof typeof UNITS_MS]
  if (ms <= config.jobDeadlineMaxMs) return ms
  const message = `completion_window must be at most ${Math.floor(config.jobDeadlineMaxMs / 1_000)} seconds; got '${window}'.`
  throw new ServiceError('integer_above_max_value', message, { param: 'completion_window' })
}

function cursorOf(after: string): string {
  const id = jobIdOfBatch(after, 'batch_')
  if (id !== undefined) return id
  throw new ServiceError('invalid_value', "Invalid 'after': expected the id of a batch.", { param: 'after' })
}

const HEADERS = ['anthropic-version', 'anthropic-beta'] as const

interface NewBatch {
  readonly path: string
  readonly dialect: BatchDialect
  readonly endpoint: string
  /** Key of the blob with the uploaded requests. The batch keeps the blob. If no batch is created, then the blob is deleted. */
  readonly input: string
  readonly inputBytes: number
  readonly inputFileId: string | null
  /** Number of requests. Undefined if the requests are not validated yet. */
  readonly requests?: number
  readonly window: string
  readonly windowMs: number
  readonly keepMs: number
  readonly metadata?: Record<string, string> | undefined
  /** Content for the fingerprint of the Idempotency-Key. Repeated calls must have equal content. */
  readonly body: unknown
}

/**
 * Finds the batch that an equal call created with the same Idempotency-Key.
 *
 * Must be called before any other check, because a repeated call could fail such a check. For example, the input file
 * may have been deleted, or the quota may have no space for a second copy.
 *
 * @throws ServiceError `idempotency_key_reused`, `result_expired`
 */
export async function findEarlierBatch(
  context: IngressContext,
  call: Call,
  body: unknown,
): Promise<DurableJob | undefined> {
  const header = readIdempotencyKey(call.headers['idempotency-key'])
  const key = await idempotencyOf(header, call, body, context.config.jobRetentionMs)
  const made = key && (await context.store?.findMade(projectIdOf(call.key), key))
  if (!made) return undefined
  const { job } = acceptedOf(made)
  call.facts.job_id = job.id
  call.reply.setHeader('idempotency-replayed', 'true')
  return job
}

export async function submitBatch(context: IngressContext, call: Call, asked: NewBatch): Promise<DurableJob> {
  const { path, dialect, endpoint, input, windowMs } = asked
  const metadata = boundMetadata(asked.metadata)
  const { key, headers } = call
  const request: BatchRequest = {
    dialect,
    endpoint,
    input,
    rights: {
      key_id: key.id,
      ...(key.endpoints && { endpoints: key.endpoints }),
      ...(key.models && { models: key.models }),
    },
    headers: Object.fromEntries(
      HEADERS.flatMap((name) => (headers[name] === undefined ? [] : [[name, String(headers[name])]])),
    ),
    input_file_id: asked.inputFileId,
    completion_window: asked.window,
    requests: asked.requests ?? null,
    keep_ms: asked.keepMs,
    ...(metadata?.[FORM_KEY] !== undefined && { answer_form: metadata[FORM_KEY] }),
  }
  const prepared: PreparedCall = {
    model: 'batch',
    body: request,
    attachments: [input],
    stream: false,
    timeoutMs: windowMs,
    partialMs: BATCH_WRAP_UP_MS,
  }
  const submitted = { sent: asked.body }
  const tenant = projectIdOf(key)
  await countInput(context, tenant, { input, bytes: asked.inputBytes, windowMs })
  call.storage.stored()
  try {
    const { job, isReplay } = await createJob(context, call, { path, kind: batch }, prepared, submitted, {
      idempotencyKey: readIdempotencyKey(headers['idempotency-key']),
      isAsync: true,
      deadlineInMs: windowMs + BATCH_WRAP_UP_MS,
      priority: 'low',
      metadata,
    })
    if (isReplay) call.reply.setHeader('idempotency-replayed', 'true')
    return job
  } finally {
    if (call.uploads.has(input)) await requireFiles(context).delete(tenant, input)
  }
}

export interface BatchDetails {
  readonly request: BatchRequest
  readonly result: BatchResult | undefined
  readonly begun: { readonly atMs: number; readonly requests: number } | undefined
  /** Model of the first request, for a batch without a result. */
  readonly model: string | undefined
  readonly isFinalizing: boolean
}

export async function batchDetails(context: IngressContext, job: DurableJob): Promise<BatchDetails> {
  const { id, tenant, progress } = job
  const content = await context.store?.findContent(tenant, id)
  const steps = await requireJobs(context).stepsOf(job)
  const validated = steps.find(({ kind }) => kind === 'validate')
  const reported = (progress as { progress?: { phase?: string } } | null)?.progress
  const result = content?.result == null ? undefined : tolerant(BatchResult).parse(content.result)
  const firstLine = childJobId(childJobId(id, '0'), '1')
  const first = validated && !result ? await context.store?.find(tenant, firstLine) : undefined
  return {
    request: tolerant(BatchRequest).parse(readStored(content?.request).body),
    result,
    model: first?.model,
    begun: validated && { atMs: validated.at_ms, requests: validated.cost.requests ?? 0 },
    isFinalizing: reported?.phase === 'finalizing',
  }
}

/** A batch in the form of the OpenAI API, with the reason why its remaining requests wait. */
export async function currentBatchObject(context: IngressContext, job: DurableJob, counted?: ChildCounts) {
  const details = await batchDetails(context, job)
  const counts = counted ?? (await childCountsOf(context, job))
  const isRunning = !TERMINAL.has(job.state) && details.begun && !details.isFinalizing && counts
  const waiting_for = isRunning ? await waitingFor(context, job, counts) : null
  return { ...batchObject(job, details, counts), ...(isRunning && { waiting_for }) }
}

/**
 * Returns the batches of a page, in order. Embedded stores do not yield to the event loop, so this function yields after each batch. The reason why
 * a running batch waits takes many reads.
 */
export async function batchObjectsOfPage(context: IngressContext, jobs: readonly DurableJob[]) {
  const counts = await childCountsOfPage(context, jobs)
  const objects: Awaited<ReturnType<typeof currentBatchObject>>[] = []
  for (const job of jobs) {
    objects.push(await currentBatchObject(context, job, counts.get(job.id)))
    await nextTurn()
  }
  return objects
}

function batchObject(job: DurableJob, details: BatchDetails, counts: ChildCounts | undefined) {
  const { request, result, begun, model } = details
  const status = statusOf(job, details)
  const endedAt = (...statuses: string[]) => (statuses.includes(status) ? seconds(job.finished_at_ms) : null)
  return {
    id: batchIdOf(job.id, 'batch_'),
    object: 'batch',
    endpoint: request.endpoint,
    model: result?.model ?? model ?? null,
    errors: errorsOf(job, result),
    input_file_id: request.input_file_id,
    completion_window: request.completion_window,
    status,
    output_file_id: result?.output_file_id ?? null,
    error_file_id: result?.error_file_id ?? null,
    created_at: seconds(job.created_at_ms),
    in_progress_at: result?.status === 'failed' ? null : seconds(begun?.atMs ?? null),
    expires_at: seconds(job.deadline_ms - BATCH_WRAP_UP_MS),
    finalizing_at: seconds(result?.finalizing_at_ms ?? null),
    completed_at: endedAt('completed'),
    failed_at: endedAt('failed'),
    expired_at: endedAt('expired'),
    cancelling_at: seconds(job.cancel_requested_at_ms),
    cancelled_at: endedAt('cancelled'),
    request_counts: countsOf(details, counts),
    invalid_answers: result?.counts.invalid ?? null,
    progress: progressOf(status, counts),
    usage: usageOf(result),
    cost_usd: result?.cost_nanos == null ? null : result.cost_nanos / NANOS_PER_USD,
    metadata: job.metadata,
  }
}

function statusOf(job: DurableJob, { result, begun, isFinalizing }: BatchDetails): string {
  if (result) return result.status
  if (TERMINAL.has(job.state)) return job.state
  if (job.cancel_requested_at_ms !== null) return 'cancelling'
  if (!begun) return 'validating'
  return isFinalizing ? 'finalizing' : 'in_progress'
}

function countsOf({ result, begun }: BatchDetails, counts: ChildCounts | undefined) {
  const total = begun?.requests ?? 0
  if (result?.status === 'failed') return { total, completed: 0, failed: 0 }
  if (!result) return { total, completed: counts?.completed ?? 0, failed: counts?.failed ?? 0 }
  const { completed } = result.counts
  return { total, completed, failed: total - completed }
}

/** Rate and estimated end while the requests run. Null before and after. */
function progressOf(status: string, counts: ChildCounts | undefined): object | null {
  if (status !== 'in_progress' || !counts) return null
  return estimateOf(counts)
}

function errorsOf({ state, error }: DurableJob, result: BatchResult | undefined): object | null {
  if (result && result.problems.length > 0) return { object: 'list', data: result.problems }
  if (state !== 'failed' || error === null) return null
  return { object: 'list', data: [{ code: error.code, message: error.message, param: error.param, line: null }] }
}

function usageOf(result: BatchResult | undefined): object | null {
  if (!result) return null
  const { input_tokens, cached_tokens, output_tokens, reasoning_tokens } = result.usage
  return {
    input_tokens,
    input_tokens_details: { cached_tokens },
    output_tokens,
    output_tokens_details: { reasoning_tokens },
    total_tokens: input_tokens + output_tokens,
  }
}

function seconds(ms: number | null): number | null {
  return ms === null ? null : Math.floor(ms / 1_000)
}

/**
 * Prefix of the id of a batch in the API. The job `job_X` has the batch id `batch_X` or, for an Anthropic batch,
 * `msgbatch_X`.
 */
type BatchPrefix = 'batch_' | 'msgbatch_'

export function batchIdOf(jobId: string, prefix: BatchPrefix): string {
  return jobId.replace('job_', prefix)
}

export function jobIdOfBatch(id: string, prefix: BatchPrefix): string | undefined {
  const jobId = id.replace(prefix, 'job_')
  return id.startsWith(prefix) && isJobId(jobId) ? jobId : undefined
}

export async function findBatch(
  context: IngressContext,
  call: Call,
  endpoint: string,
  prefix: BatchPrefix,
  scope: Scope = projectIdOf(call.key),
): Promise<DurableJob> {
  const id = String(call.params.id)
  const notFound = () => {
    const list = scope === ALL_TENANTS ? '/v1/admin/batches' : endpoint
    return new ServiceError(
      'not_found',
      `No batch with the id '${beginningOf(id, 64)}'. GET ${list} lists the batches.`,
    )
  }
  const jobId = jobIdOfBatch(id, prefix)
  if (jobId === undefined) throw notFound()
  const job = await requireJobs(context)
    .get(scope, jobId)
    .catch((error: unknown) => {
      throw ServiceError.from(error).code === 'job_not_found' ? notFound() : error
    })
  if (job.endpoint === endpoint && job.depth === 0) return job
  throw notFound()
}
