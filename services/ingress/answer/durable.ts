import type { DurableJob } from '#schemas/durable-job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import {
  encodeOf,
  type JobEndpoint,
  type PreparedCall,
  type StoredAnswers,
  takeBody,
} from '#services/ingress/endpoints/endpoint.ts'
import { boundMetadata, type DurableOptions, type JobOptions } from '#services/ingress/jobs/job-options.ts'
import { jobObject } from '#services/ingress/jobs/object.ts'
import { requireJobs } from '#services/ingress/jobs/paths.ts'
import { sendStream, throwIfRefused } from '#services/ingress/reply/reply.ts'
import { HELD_PER_BYTE } from '#shared/byte-budget.ts'
import { ServiceError } from '#shared/error.ts'
import { type DurableJobs, isSurelyUndone } from '#shared/jobs/durable/durable.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import type { AwaitedJob } from '#shared/jobs/durable/wait.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import type { Created } from '#shared/store/store.ts'
import { idempotencyOf, type Preferences, prefersAsync } from './prefer-header.ts'
import { RecordedOutput, recordedStream, resultOf } from './recorded.ts'

/** When callers who poll may come back, in seconds. */
export const RETRY_AFTER_SECONDS = 2

/**
 * Answers a call whose job outlives it: 202 with the job, or the result as soon as it is there. The same call with the same key
 * is the same job, whichever way it comes.
 *
 * @throws ServiceError What the job failed with; `idempotency_key_in_use` after the job's id was told
 */
export function answerDurable(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  body: unknown,
  wishes: Preferences,
  asked: JobOptions,
): Promise<void> {
  boundMetadata(prepared.metadata)
  const { idempotencyKey, isAsync } = wishes
  if (!isAsync) context.submits.noteCall(projectIdOf(call.key))
  const deadlineInMs = isAsync ? context.config.jobDeadlineMs : prepared.timeoutMs
  // No async function: a suspended one would keep the body for as long as the answer takes.
  return asked
    .resolve(context, projectIdOf(call.key), deadlineInMs)
    .then((more) => {
      const wanted = { idempotencyKey, isAsync, ...more }
      return createJob(context, call, endpoint, prepared, asked.joinedWith(body), wanted)
    })
    .then((created) => answerCreated(context, call, endpoint, prepared, created, wishes))
}

async function answerCreated(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  { job, isReplay }: { job: DurableJob; isReplay: boolean },
  { isDurable, isAsync, waitMs }: Preferences,
): Promise<void> {
  const jobs = requireJobs(context)
  const { reply } = call
  const cancel = () => cancelJob(context, call, jobs, job, true)
  reply.accepted(job.id, () => cancelJob(context, call, jobs, job, false))
  // Durable by its endpoint alone: nobody was promised that it goes on without its caller.
  if (!isDurable) reply.left.addEventListener('abort', cancel, { once: true })
  if (!isDurable && reply.left.aborted) cancel()
  if (isReplay) reply.setHeader('idempotency-replayed', 'true')
  const kept = prefersAsync(call.headers) ? undefined : endpoint.kept
  if (isAsync && kept) {
    return await (prepared.stream ? kept.stream(context, call, job, true) : kept.accepted(context, call, job))
  }
  if (isAsync) {
    const { job: ended } = waitMs === 0 ? { job } : await waitFor(call, jobs, job, waitMs)
    if (waitMs === 0 || !TERMINAL.has(ended.state)) return await sendAccepted(jobs, call, ended)
  } else if (isReplay && !TERMINAL.has(job.state)) {
    const message = 'A request with this Idempotency-Key is still being processed. Its job can be followed.'
    throw new ServiceError('idempotency_key_in_use', message, { retryAfterMs: RETRY_AFTER_SECONDS * 1_000 })
  }
  if (prepared.stream) await (kept?.stream(context, call, job, false) ?? sendRecorded(call, jobs, job))
  else await sendResult(call, jobs, job, prepared, kept)
}

/** A client that cancels means the job; one that only leaves does not. @param isFinal Nobody is there for what it would still write */
function cancelJob(
  { log }: IngressContext,
  { requestId }: Call,
  jobs: DurableJobs,
  { tenant, id }: DurableJob,
  isFinal: boolean,
): void {
  jobs.cancel(tenant, id, isFinal ? 'final' : 'again').catch((error: unknown) => {
    // It may have ended in the meantime, which its events tell.
    if (ServiceError.from(error).code === 'job_already_finished') return
    log.warn({ err: error, job_id: id, request_id: requestId }, 'job not cancelled')
  })
}

/**
 * Waits for the end of a job, but not longer than its caller does. Gives the job as it is then.
 *
 * @param onWait Called where it has not ended.
 * @throws ServiceError `job_not_found`; when the caller has lost the key meanwhile
 */
export async function waitFor(
  { reply }: Call,
  jobs: DurableJobs,
  { tenant, id }: Pick<DurableJob, 'tenant' | 'id'>,
  waitMs: number,
  onWait?: () => void,
): Promise<AwaitedJob> {
  const signal = AbortSignal.any([AbortSignal.timeout(waitMs), reply.leaving])
  const ended = await jobs.waitForResult(tenant, id, signal, { onWait })
  throwIfRefused(reply)
  return ended
}

/** Says 202 with the job (docs/protocol.md, Submitting). One that an equal call has made before may have completed: then its result is there. */
export async function sendAccepted(jobs: DurableJobs, { reply }: Call, job: DurableJob): Promise<void> {
  const details =
    job.state === 'completed'
      ? { result: await jobs.result(job.tenant, job.id) }
      : { position: await jobs.positions.of(job) }
  reply.setHeader('location', `/v1/jobs/${job.id}`)
  reply.setHeader('preference-applied', 'respond-async')
  reply.setHeader('retry-after', String(RETRY_AFTER_SECONDS))
  await reply.whole(jobObject(job, details), 202)
}

/** The result as soon as the job has ended. It goes on when its caller leaves: the same key, or its id, finds it again. */
async function sendResult(
  { reply }: Call,
  jobs: DurableJobs,
  job: DurableJob,
  prepared: PreparedCall,
  kept: StoredAnswers | undefined,
): Promise<void> {
  reply.open(prepared.isText ? 'text' : 'json')
  const { job: ended, result } = await jobs.waitForResult(job.tenant, job.id, reply.leaving)
  throwIfRefused(reply)
  if (!TERMINAL.has(ended.state)) throw new ServiceError('overloaded', `The server shut down; job ${job.id} goes on.`)
  const told = result ?? (await resultOf(jobs, job.tenant, ended))
  await reply.whole(kept ? kept.shown(told, prepared.encode ?? {}) : told)
}

/** The output of the job, as the plain call would stream it. */
async function sendRecorded({ reply }: Call, jobs: DurableJobs, job: DurableJob): Promise<void> {
  await using output = new RecordedOutput(jobs, job, reply.leaving)
  await sendStream(reply, output, recordedStream(job.endpoint))
}

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
  wishes: DurableOptions,
): Promise<{ job: DurableJob; isReplay: boolean }> {
  const jobs = requireJobs(context)
  const { idempotencyKey, isAsync, ...more } = wishes
  const spec = {
    ...prepared,
    pool: endpoint.kind.pool,
    kind: endpoint.kind.name,
    encode: encodeOf(prepared, call.requestId),
    ...more,
    metadata: more.metadata ?? prepared.metadata,
    tenant: projectIdOf(call.key),
    keyId: call.key.id,
    bodyBytes: Math.ceil(call.held.bytes / HELD_PER_BYTE),
    attachmentBytes: call.storage.bytes,
    endpoint: endpoint.path,
    traceparent: call.headers.traceparent?.toString(),
  }
  const key = await idempotencyOf(idempotencyKey, call, body, context.config.jobRetentionMs)
  const created = await createWithUploads(call, prepared, async () => {
    const first = await context.submits.take(spec.tenant, () => jobs.create(spec, key), call.reply.left)
    if (!key || isAsync || first.outcome !== 'exists' || !hasFreedKey(first.job)) return first
    // A failure that trying again may mend has freed the key (docs/protocol.md, Idempotency).
    return await jobs.create(spec, { ...key, replaces: first.job.id })
  })
  takeBody(prepared)
  call.held.release()
  const { job, isReplay } = acceptedOf(created)
  call.facts.job_id = job.id
  if (!isReplay) {
    await prepared.onCreated?.(job).catch((error: unknown) => {
      cancelJob(context, call, jobs, job, true)
      throw error
    })
  }
  return { job, isReplay }
}

/** Hands over what was uploaded to the job, unless there surely is none: it may hold them though nobody heard of it. */
async function createWithUploads(
  { uploads, storage }: Call,
  { attachments = [] }: PreparedCall,
  create: () => Promise<Created>,
): Promise<Created> {
  try {
    const created = await create()
    if (created.outcome !== 'created') return created
    for (const blob of attachments) uploads.delete(blob)
    storage.stored()
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
