import { BatchRequest, BatchResult } from '#schemas/batches/batch.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { countEnded, requireJobs, waitingFor } from '#services/ingress/calls/job-object.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { readStored } from '#shared/jobs/records.ts'
import { BATCH_WRAP_UP_MS } from '#shared/kinds/batch.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import { batchIdOf } from './ids.ts'

export interface BatchDetails {
  readonly request: BatchRequest
  /** Result of an ended batch. Undefined until then, and if the job ended without a result. */
  readonly result: BatchResult | undefined
  readonly begun: { readonly atMs: number; readonly requests: number } | undefined
  /** Phase and counts in the last progress event of the job. */
  readonly reported: { readonly phase: string; readonly completed: number; readonly failed: number }
}

export async function batchDetails(context: IngressContext, job: DurableJob): Promise<BatchDetails> {
  const { id, tenant, progress } = job
  const content = await context.store?.findContent(tenant, id)
  const steps = await requireJobs(context).stepsOf(job)
  const validated = steps.find(({ kind }) => kind === 'validate')
  const said = (progress as { progress?: { phase?: string; counts?: Record<string, number> } } | null)?.progress
  return {
    request: tolerant(BatchRequest).parse(readStored(content?.request).body),
    result: content?.result == null ? undefined : tolerant(BatchResult).parse(content.result),
    begun: validated && { atMs: validated.at_ms, requests: validated.cost.requests ?? 0 },
    reported: { phase: said?.phase ?? '', completed: said?.counts?.completed ?? 0, failed: said?.counts?.failed ?? 0 },
  }
}

/** A batch in the form of the OpenAI API. Reads the store once per unfinished part, so that the counts are exact. */
export async function currentBatchObject(context: IngressContext, job: DurableJob) {
  const details = await batchDetails(context, job)
  if (TERMINAL.has(job.state) || !details.begun || details.reported.phase === 'finalizing')
    return objectOf(job, details)
  const [ended, waiting_for] = await Promise.all([
    countEnded(context, job, details.reported),
    waitingFor(context, job, details.reported),
  ])
  return { ...objectOf(job, { ...details, reported: { ...details.reported, ...ended } }), waiting_for }
}

/** A batch with the counts in its last progress event. Used in lists, because {@link currentBatchObject} costs more. */
export async function batchObject(context: IngressContext, job: DurableJob) {
  return objectOf(job, await batchDetails(context, job))
}

function objectOf(job: DurableJob, details: BatchDetails) {
  const { request, result, begun } = details
  const status = statusOf(job, details)
  const endedAt = (...statuses: string[]) => (statuses.includes(status) ? seconds(job.finished_at_ms) : null)
  return {
    id: batchIdOf(job.id, 'batch_'),
    object: 'batch',
    endpoint: request.endpoint,
    model: result?.model ?? null,
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
    request_counts: countsOf(details),
    usage: usageOf(result),
    metadata: job.metadata,
  }
}

function statusOf(job: DurableJob, { result, begun, reported: told }: BatchDetails): string {
  if (result) return result.status
  if (TERMINAL.has(job.state)) return job.state
  if (job.cancel_requested_at_ms !== null) return 'cancelling'
  if (!begun) return 'validating'
  return told.phase === 'finalizing' ? 'finalizing' : 'in_progress'
}

function countsOf({ result, begun, reported: told }: BatchDetails) {
  const total = begun?.requests ?? 0
  if (result?.status === 'failed') return { total, completed: 0, failed: 0 }
  if (!result) return { total, completed: told.completed, failed: told.failed }
  const { completed } = result.counts
  return { total, completed, failed: total - completed }
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
