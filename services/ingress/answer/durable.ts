import type { DurableJob } from '#schemas/durable-job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import type { JobEndpoint, PreparedCall } from '#services/ingress/endpoints/endpoint.ts'
import { jobObject } from '#services/ingress/jobs/object.ts'
import { requireJobs } from '#services/ingress/jobs/paths.ts'
import { boundMetadata, type JobWishes } from '#services/ingress/jobs/wishes.ts'
import { sendStream, throwIfRefused } from '#services/ingress/reply/reply.ts'
import { ServiceError } from '#shared/error.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { createJob } from './create-job.ts'
import { RecordedOutput, recordedStream, resultOf } from './recorded.ts'
import type { Wishes } from './wishes.ts'

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
  { isDurable, isAsync, waitMs }: Wishes,
): Promise<void> {
  const jobs = requireJobs(context)
  const { reply } = call
  const cancel = () => cancelJob(context, call, jobs, job)
  reply.accepted(job.id, cancel)
  // Durable by its endpoint alone: nobody was promised that it goes on without its caller.
  if (!isDurable) reply.left.addEventListener('abort', cancel, { once: true })
  if (!isDurable && reply.left.aborted) cancel()
  if (isReplay) reply.setHeader('idempotency-replayed', 'true')
  if (isAsync) {
    const ended = waitMs === 0 ? job : await waitFor(call, jobs, job, waitMs)
    if (waitMs === 0 || !TERMINAL.has(ended.state)) return await sendAccepted(jobs, call, ended)
  } else if (isReplay && !TERMINAL.has(job.state)) {
    const message = 'A request with this Idempotency-Key is still being processed. Its job can be followed.'
    throw new ServiceError('idempotency_key_in_use', message, { retryAfterMs: RETRY_AFTER_SECONDS * 1_000 })
  }
  if (prepared.stream) await sendRecorded(call, jobs, job)
  else await sendResult(call, jobs, job, prepared)
}

/** A client that cancels means the job; one that only leaves does not. */
function cancelJob({ log }: IngressContext, { requestId }: Call, jobs: DurableJobs, { tenant, id }: DurableJob): void {
  jobs.cancel(tenant, id).catch((error: unknown) => {
    // It may have ended in the meantime, which its events tell.
    if (ServiceError.from(error).code === 'job_already_finished') return
    log.warn({ err: error, job_id: id, request_id: requestId }, 'job not cancelled')
  })
}

/**
 * Waits for the end of a job, but not longer than its caller does. Gives the job as it is then.
 *
 * @throws ServiceError When the caller has lost the key meanwhile
 */
export async function waitFor(
  { reply }: Call,
  jobs: DurableJobs,
  job: DurableJob,
  waitMs: number,
): Promise<DurableJob> {
  const signal = AbortSignal.any([AbortSignal.timeout(waitMs), reply.leaving])
  const ended = await jobs.waitForEnd(job.tenant, job.id, signal)
  throwIfRefused(reply)
  return ended
}

/** Says 202 with the job (docs/protocol.md, Submitting). One that an equal call has made before may have completed: then its result is there. */
export async function sendAccepted(jobs: DurableJobs, { reply }: Call, job: DurableJob): Promise<void> {
  const details = job.state === 'completed' ? { result: await jobs.result(job.tenant, job.id) } : {}
  reply.setHeader('location', `/v1/jobs/${job.id}`)
  reply.setHeader('preference-applied', 'respond-async')
  reply.setHeader('retry-after', String(RETRY_AFTER_SECONDS))
  await reply.whole(jobObject(job, details), 202)
}

/** The result as soon as the job has ended. It goes on when its caller leaves: the same key, or its id, finds it again. */
async function sendResult({ reply }: Call, jobs: DurableJobs, job: DurableJob, prepared: PreparedCall): Promise<void> {
  reply.open(prepared.isText ? 'text' : 'json')
  const ended = await jobs.waitForEnd(job.tenant, job.id, reply.leaving)
  throwIfRefused(reply)
  if (!TERMINAL.has(ended.state)) throw new ServiceError('overloaded', `The server shut down; job ${job.id} goes on.`)
  await reply.whole(await resultOf(jobs, job.tenant, ended))
}

/** The output of the job, as the plain call would stream it. */
async function sendRecorded({ reply }: Call, jobs: DurableJobs, job: DurableJob): Promise<void> {
  await using output = new RecordedOutput(jobs, job, reply.leaving)
  await sendStream(reply, output, recordedStream(job.endpoint))
}
