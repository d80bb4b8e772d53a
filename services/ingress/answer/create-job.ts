import type { DurableJob } from '#schemas/durable-job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { encodeOf, type JobEndpoint, type PreparedCall, takeBody } from '#services/ingress/endpoints/endpoint.ts'
import { idempotencyOf } from '#services/ingress/jobs/idempotency.ts'
import { requireJobs } from '#services/ingress/jobs/paths.ts'
import type { DurableWishes } from '#services/ingress/jobs/wishes.ts'
import { ServiceError } from '#shared/error.ts'
import { type DurableJobs, isSurelyUndone } from '#shared/jobs/durable/durable.ts'
import type { Created } from '#shared/store/store.ts'

/** As many jobs as may wait are watched for their tokens, some for days: nearly always their end is heard, not asked for. */
const TOKENS_POLL_MS = 600_000

/**
 * Accepts a job, or finds the one that an equal call made before with the same idempotency key (docs/protocol.md, Idempotency). What the
 * call holds of its body is given back then.
 *
 * @throws ServiceError `idempotency_key_reused`, `result_expired` when that job was deleted, `overloaded`
 */
export async function createJob(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  body: unknown,
  wishes: DurableWishes,
): Promise<{ job: DurableJob; isReplay: boolean }> {
  const jobs = requireJobs(context)
  const { idempotencyKey, isAsync, ...more } = wishes
  const spec = {
    ...prepared,
    pool: endpoint.kind.pool,
    kind: endpoint.kind.name,
    encode: encodeOf(prepared, call.requestId),
    metadata: prepared.metadata,
    ...definedOf(more),
    deadlineInMs: wishes.deadlineInMs,
    tenant: call.key.id,
    endpoint: endpoint.path,
    traceparent: call.headers.traceparent?.toString(),
  }
  const key = await idempotencyOf(idempotencyKey, call, body, context.config.jobRetentionMs)
  const created = await createWithUploads(call, prepared, async () => {
    const first = await jobs.create(spec, key)
    if (!key || isAsync || first.outcome !== 'exists' || !hasFreedKey(first.job)) return first
    // A failure that trying again may mend has freed the key (docs/protocol.md, Idempotency).
    return await jobs.create(spec, { ...key, replaces: first.job.id })
  })
  takeBody(prepared)
  call.held.release()
  const { job, isReplay } = acceptedOf(created)
  call.facts.job_id = job.id
  if (!isReplay && context.config.rateLimitTokens > 0) void spendTokens(context, jobs, job)
  return { job, isReplay }
}

/** Hands over what was uploaded to the job, unless there surely is none: it may hold them though nobody heard of it. */
async function createWithUploads(
  { uploads }: Call,
  { attachments = [] }: PreparedCall,
  create: () => Promise<Created>,
): Promise<Created> {
  try {
    const created = await create()
    if (created.outcome === 'created') for (const blob of attachments) uploads.delete(blob)
    return created
  } catch (error) {
    if (!isSurelyUndone(error)) for (const blob of attachments) uploads.delete(blob)
    throw error
  }
}

/** @throws ServiceError `idempotency_key_reused`, `result_expired` */
export function acceptedOf(created: Created): { job: DurableJob; isReplay: boolean } {
  const param = 'Idempotency-Key'
  if (created.outcome === 'conflict') {
    const message = 'This Idempotency-Key was used with another request. Use a new key for each new request.'
    throw new ServiceError('idempotency_key_reused', message, { param })
  }
  if (created.outcome === 'exists' && created.job.erased_at_ms !== null) {
    const message = 'The job of this Idempotency-Key was deleted. Use a new key to make the request again.'
    throw new ServiceError('result_expired', message, { param })
  }
  return { job: created.job, isReplay: created.outcome === 'exists' }
}

/** Expired, or failed with what is a 429 or 5xx. A cancel was wanted: it stays. */
function hasFreedKey({ state, error }: DurableJob): boolean {
  if (state === 'expired') return true
  if (state !== 'failed') return false
  const status = error ? ServiceError.fromBody(error).status : 500
  return status === 429 || status >= 500
}

/** Counts what a job used against its key's limit once it has ended. What runs on after a restart of this process is free. */
async function spendTokens(context: IngressContext, jobs: DurableJobs, { id, tenant }: DurableJob): Promise<void> {
  try {
    const { usage } = await jobs.waitForEnd(tenant, id, context.closing, TOKENS_POLL_MS)
    context.limits.spendTokens(tenant, tokensOf(usage))
  } catch (error) {
    context.log.info({ err: error, job_id: id }, 'tokens of a job not counted')
  }
}

/** Tokens of a usage, in either protocol's words. */
function tokensOf(usage: unknown): number {
  const { prompt_tokens, completion_tokens, input_tokens, output_tokens } = (usage ?? {}) as Record<string, number>
  return (prompt_tokens ?? input_tokens ?? 0) + (completion_tokens ?? output_tokens ?? 0)
}

function definedOf<T extends object>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Partial<T>
}
