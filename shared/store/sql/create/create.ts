import { jobOf } from '#shared/store/sql/rows.ts'
import type { Params, Row, SqlDatabase } from '#shared/store/sql/sql.ts'
import { FIND, FIND_KEY, type Statement } from '#shared/store/sql/statements.ts'
import { resultOf } from '#shared/store/sql/writes.ts'
import type { Created, IdempotencyKey, NewJob } from '#shared/store/store.ts'
import { CREATE } from './inserts.ts'

/** Accepts a job, or finds the job that an earlier copy of the request created (see `JobTransitions.create`). */
export async function createJob(db: SqlDatabase, job: NewJob, key: IdempotencyKey | undefined): Promise<Created> {
  const params = { ...newJobParams(job), ...keyParams(key) }
  const [row] = await db.insert(CREATE, params, key !== undefined)
  if (row) return { outcome: 'created', ...resultOf(row) }
  return await findCreated(db, job, params, key)
}

const FIND_HELD: Statement = {
  name: 'find_held_key',
  sql: `${FIND_KEY.sql} AND expires_at_ms > now_ms()`,
}

export async function findByKey(db: SqlDatabase, tenant: string, key: IdempotencyKey): Promise<Created | undefined> {
  const [held] = await db.run(FIND_HELD, { tenant, key_scope: key.scope, key: key.key })
  return held && (await heldJob(db, tenant, held, key))
}

async function findCreated(
  db: SqlDatabase,
  job: NewJob,
  params: Params,
  key: IdempotencyKey | undefined,
): Promise<Created> {
  const [held] = key ? await db.run(FIND_KEY, params) : []
  return await heldJob(db, job.tenant, held ?? { job_id: job.id, fingerprint: key?.fingerprint }, key)
}

async function heldJob(db: SqlDatabase, tenant: string, held: Row, key: IdempotencyKey | undefined): Promise<Created> {
  const jobId = String(held.job_id)
  if (held.fingerprint !== key?.fingerprint) return { outcome: 'conflict', jobId }
  const [found] = await db.run(FIND, { id: jobId, tenant })
  // The job was purged before its key, which happens only if its retention is shorter.
  return found ? { outcome: 'exists', job: jobOf(found) } : { outcome: 'conflict', jobId }
}

function newJobParams(job: NewJob): Params {
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

function keyParams(key: IdempotencyKey | undefined): Params {
  if (!key) return {}
  return {
    key_scope: key.scope,
    key: key.key,
    fingerprint: key.fingerprint,
    key_keep_ms: key.keepMs,
    replaces: key.replaces ?? null,
  }
}
