import type { BatchDialect, BatchRequest } from '#schemas/batches/batch.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { acceptedOf, createJob } from '#services/ingress/calls/durable.ts'
import type { JobEndpoint, PreparedCall } from '#services/ingress/calls/endpoint.ts'
import { requireFiles } from '#services/ingress/calls/files.ts'
import { boundMetadata } from '#services/ingress/calls/job-options.ts'
import { idempotencyOf, readIdempotencyKey } from '#services/ingress/calls/prefer-header.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { BATCH_WRAP_UP_MS, batch } from '#shared/kinds/batch.ts'
import { countInput } from './input.ts'

const HEADERS = ['anthropic-version', 'anthropic-beta'] as const

export interface NewBatch {
  readonly path: string
  readonly dialect: BatchDialect
  readonly endpoint: string
  /** Blob key of the uploaded requests. The blob then belongs to the batch. */
  readonly input: string
  readonly inputBytes: number
  readonly inputFileId: string | null
  /** Number of requests; undefined if the requests are not validated yet. */
  readonly requests?: number
  readonly window: string
  readonly windowMs: number
  readonly keepMs: number
  readonly metadata?: Record<string, string> | undefined
  /** Content that is equal in repeated calls with one Idempotency-Key. */
  readonly body: unknown
}

/**
 * Finds the batch that an equal call created with the same Idempotency-Key. Must be called before any other check. On a
 * repeated call, the input file may be deleted, and the quota may have no space for a second copy.
 *
 * @throws ServiceError `idempotency_key_reused`, `result_expired`
 */
export async function findMadeBatch(
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
  }
  const prepared: PreparedCall = {
    model: 'batch',
    body: request,
    attachments: [input],
    stream: false,
    timeoutMs: windowMs,
    partialMs: BATCH_WRAP_UP_MS,
  }
  const row: JobEndpoint = { path, format: call.format, kind: batch, prepare: () => prepared }
  const tenant = projectIdOf(key)
  await countInput(context, tenant, { input, bytes: asked.inputBytes, windowMs })
  call.storage.stored()
  try {
    const { job, isReplay } = await createJob(context, call, row, prepared, asked.body, {
      idempotencyKey: readIdempotencyKey(headers['idempotency-key']),
      isAsync: true,
      deadlineInMs: windowMs + BATCH_WRAP_UP_MS,
      priority: 'low',
      metadata,
    })
    if (isReplay) call.reply.setHeader('idempotency-replayed', 'true')
    return job
  } finally {
    // Deletes the upload unless it now belongs to a batch.
    if (call.uploads.has(input)) await requireFiles(context).delete(tenant, input)
  }
}
