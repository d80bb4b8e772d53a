import type { DurableJob } from '#schemas/durable-job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { encodeOf, type JobEndpoint, type PreparedCall, takeBody } from '#services/ingress/endpoints/endpoint.ts'
import { idempotencyOf } from '#services/ingress/jobs/idempotency.ts'
import { jobObject } from '#services/ingress/jobs/object.ts'
import type { JobWishes } from '#services/ingress/jobs/wishes.ts'
import { ServiceError } from '#shared/error.ts'
import { type DurableJobs, isSurelyUndone } from '#shared/jobs/durable/durable.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import type { Created } from '#shared/store/store.ts'
import { respondRecorded, respondResult } from './durable-respond.ts'
import type { Wishes } from './wishes.ts'

/** When callers who poll may come back, in seconds. */
export const RETRY_AFTER_SECONDS = 2

/** As many jobs as may wait are watched for their tokens, some for days: nearly always their end is heard, not asked for. */
const TOKENS_POLL_MS = 600_000

/** What a durable job may be asked beside its call. */
export interface DurableWishes {
  readonly idempotencyKey: string | undefined
  /** The answer is the job itself, which an idempotency key keeps however the job ends. */
  readonly isAsync?: boolean | undefined
  readonly deadlineInMs: number
  readonly startInMs?: number | undefined
  readonly runAtMs?: number | undefined
  readonly priority?: 'normal' | 'low' | undefined
  readonly parentId?: string | undefined
  readonly metadata?: Record<string, string> | undefined
  readonly webhook?: { url: string; events: string[] } | undefined
}

/** Pairs of metadata a job keeps: every list shows them. */
const METADATA_PAIRS_MAX = 16

/** Metadata that may be kept. @throws ServiceError `invalid_value` for too many pairs */
export function boundMetadata(metadata: Record<string, string> | undefined): Record<string, string> | undefined {
  if (metadata === undefined || Object.keys(metadata).length <= METADATA_PAIRS_MAX) return metadata
  const message = `Invalid 'metadata': expected at most ${METADATA_PAIRS_MAX} pairs.`
  throw new ServiceError('invalid_value', message, { param: 'metadata' })
}

/** The durable jobs of this deployment. @throws ServiceError `jobs_unavailable` where there is no store */
export function requireJobs(context: IngressContext): DurableJobs {
  if (context.durable) return context.durable
  const message = 'This deployment keeps no durable jobs: its operator must set DATABASE_URL.'
  throw new ServiceError('jobs_unavailable', message)
}

/**
 * Answers a call whose job outlives its connection: 202 with the job, or the result as soon as it is there.
 *
 * @throws ServiceError as long as nothing was sent
 */
export function answerDurable(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  body: unknown,
  wishes: Wishes,
  asked: JobWishes,
): Promise<void> {
  boundMetadata(prepared.metadata)
  const { idempotencyKey, isAsync } = wishes
  const deadlineInMs = isAsync ? context.config.jobDeadlineMs : prepared.timeoutMs
  // No async function: a suspended one would keep the body for as long as the answer takes.
  return asked
    .resolve(context, call.key.id, deadlineInMs)
    .then((more) => {
      const wanted = { idempotencyKey, isAsync, ...more }
      return createJob(context, call, endpoint, prepared, asked.joinedWith(body), wanted)
    })
    .then((created) => answerCreated(context, call, prepared, created, wishes))
}

async function answerCreated(
  context: IngressContext,
  call: Call,
  prepared: PreparedCall,
  { job, isReplay }: { job: DurableJob; isReplay: boolean },
  { isAsync, waitMs }: Wishes,
): Promise<void> {
  const jobs = requireJobs(context)
  call.res.setHeader('x-job-id', job.id)
  if (isReplay) call.res.setHeader('idempotency-replayed', 'true')
  if (!isAsync) return await answerWaiting(context, call, jobs, prepared, job, isReplay)
  if (waitMs === 0) return await sendAccepted(jobs, call, job)
  const left = AbortSignal.any([AbortSignal.timeout(waitMs), leaveOf(context, call)])
  const ended = await jobs.waitForEnd(call.key.id, job.id, left)
  call.revoked.throwIfAborted()
  if (call.res.destroyed) return
  if (!TERMINAL.has(ended.state)) return await sendAccepted(jobs, call, ended)
  await respondEnd(context, call, jobs, prepared, ended)
}

/**
 * Accepts a job, or finds the one that an equal call made before with the same idempotency key (docs/protocol.md,
 * Idempotency). What the call holds of its body is given back then.
 *
 * @throws ServiceError `idempotency_key_reused`, `result_expired` when that job was deleted, `overloaded`
 */
export async function createJob(
  context: IngressContext,
  call: Pick<Call, 'key' | 'requestId' | 'facts' | 'held'> & {
    readonly req: Pick<Call['req'], 'method' | 'path' | 'headers'>
    readonly uploads?: Set<string>
  },
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
    traceparent: call.req.headers.traceparent?.toString(),
  }
  const key = await idempotencyOf(idempotencyKey, call.req, body, context.config.jobRetentionMs)
  const created = await createWithUploads(call, prepared, async () => {
    const first = await jobs.create(spec, key)
    if (!key || isAsync || first.outcome !== 'exists' || !hasFreedKey(first.job)) return first
    // A failure that trying again may mend has freed the key.
    return await jobs.create(spec, { ...key, replaces: first.job.id })
  })
  takeBody(prepared)
  call.held.release()
  const { job, isReplay } = acceptedOf(created)
  call.facts.job_id = job.id
  if (!isReplay && context.config.tokensPerMinute > 0) void spendTokens(context, jobs, job)
  return { job, isReplay }
}

/** Hands over what was uploaded to the job, unless there surely is none: it may hold them though nobody heard of it. */
async function createWithUploads(
  { uploads }: { readonly uploads?: Set<string> },
  { attachments = [] }: PreparedCall,
  create: () => Promise<Created>,
): Promise<Created> {
  try {
    const created = await create()
    if (created.outcome === 'created') for (const blob of attachments) uploads?.delete(blob)
    return created
  } catch (error) {
    if (!isSurelyUndone(error)) for (const blob of attachments) uploads?.delete(blob)
    throw error
  }
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

/** Says 202 with the job (docs/jobs.md, Submit). */
export async function sendAccepted(jobs: DurableJobs, call: Pick<Call, 'res' | 'key'>, job: DurableJob): Promise<void> {
  const { res } = call
  const accepted = await acceptedObject(jobs, call.key.id, job)
  res.status(202)
  res.setHeader('location', `/v1/jobs/${job.id}`)
  res.setHeader('preference-applied', 'respond-async')
  res.setHeader('retry-after', String(RETRY_AFTER_SECONDS))
  res.json(accepted)
}

/** A job as its 202 shows it: one that an equal call has made before may have completed, and then its result is there. */
export async function acceptedObject(jobs: DurableJobs, tenant: string, job: DurableJob): Promise<object> {
  return jobObject(job, job.state === 'completed' ? { result: await jobs.result(tenant, job.id) } : {})
}

/** The job goes on when its caller leaves: the same key, or its id, finds it again. */
async function answerWaiting(
  context: IngressContext,
  call: Call,
  jobs: DurableJobs,
  prepared: PreparedCall,
  job: DurableJob,
  isReplay: boolean,
): Promise<void> {
  if (isReplay && !TERMINAL.has(job.state)) {
    const message = 'A request with this Idempotency-Key is still being processed.'
    throw new ServiceError('idempotency_key_in_use', message, { retryAfterMs: RETRY_AFTER_SECONDS * 1_000 })
  }
  await respondEnd(context, call, jobs, prepared, job)
}

/** What the plain call would answer, in its form. */
async function respondEnd(
  context: IngressContext,
  call: Call,
  jobs: DurableJobs,
  prepared: PreparedCall,
  job: DurableJob,
): Promise<void> {
  if (prepared.stream) await respondRecorded(context, call, jobs, job)
  else await respondResult(context, call, jobs, job, prepared.isText !== true)
}

/** Aborts when nobody is waited for any more: the caller has left, or lost the key, or the process drains. */
export function leaveOf({ closing }: IngressContext, { res, revoked }: Pick<Call, 'res' | 'revoked'>): AbortSignal {
  const closed = new AbortController()
  if (res.destroyed) closed.abort()
  else res.once('close', () => closed.abort())
  return AbortSignal.any([revoked, closing, closed.signal])
}

function definedOf<T extends object>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Partial<T>
}
