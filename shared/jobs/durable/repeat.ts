import type { DurableJob } from '#schemas/durable-job.ts'
import type { EncodeContext } from '#schemas/job.ts'

export function repeatOf(job: DurableJob, body: unknown, encode: EncodeContext) {
  const { webhook_url: url, webhook_events: events, traceparent, created_at_ms, deadline_ms, partial_ms } = job
  const webhook = url === null ? undefined : { url, events }
  const deadlineInMs = deadline_ms - created_at_ms
  const more = { webhook, traceparent: traceparent ?? undefined, partialMs: partial_ms ?? undefined }
  return { ...job, body, encode, deadlineInMs, parentId: job.id, ...more }
}
