import type { DurableJob } from '#schemas/durable-job.ts'
import { batchIdOf } from '#services/ingress/batches/ids.ts'
import type { BatchDetails } from '#services/ingress/batches/object.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { BATCH_WRAP_UP_MS } from '#shared/kinds/batch.ts'

export function messageBatchObject(job: DurableJob, details: BatchDetails) {
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
    // Relative, because the public address is unknown behind a proxy. SDKs prepend their base URL.
    results_url: details.result?.output_file_id ? `/v1/messages/batches/${id}/results` : null,
  }
}

/** Counts. As in Anthropic's API, all requests are processing until the batch has ended. */
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
