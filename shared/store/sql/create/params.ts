import type { Params } from '#shared/store/sql/sql.ts'
import type { IdempotencyKey, NewJob } from '#shared/store/store.ts'

export function newJobParams(job: NewJob): Params {
  const request = JSON.stringify(job.request ?? null)
  return {
    id: job.id,
    tenant: job.tenant,
    parent_id: job.parentId ?? null,
    pool: job.pool,
    kind: job.kind,
    endpoint: job.endpoint,
    model: job.model,
    priority: job.priority ?? 'normal',
    stream: job.stream ?? false,
    run_at_ms: job.runAtMs ?? null,
    start_in_ms: Math.min(job.startInMs ?? job.deadlineInMs, job.deadlineInMs),
    deadline_in_ms: job.deadlineInMs,
    retention_ms: job.retentionMs,
    metadata: JSON.stringify(job.metadata ?? {}),
    webhook_url: job.webhook?.url ?? null,
    webhook_events: JSON.stringify(job.webhook?.events ?? []),
    request_id: job.requestId ?? null,
    traceparent: job.traceparent ?? null,
    request,
    request_bytes: Buffer.byteLength(request) + (job.blobBytes ?? 0),
    key_id: job.keyId ?? null,
    partial_ms: job.partialMs === undefined ? null : Math.ceil(job.partialMs),
    reserved_nanos: job.reservedNanos ? Math.ceil(job.reservedNanos) : null,
  }
}

export function keyParams(key: IdempotencyKey | undefined): Params {
  if (!key) return {}
  return {
    key_scope: key.scope,
    key: key.key,
    fingerprint: key.fingerprint,
    key_keep_ms: key.keepMs,
    replaces: key.replaces ?? null,
  }
}
