import type { DurableJob } from '#schemas/durable-job.ts'
import {
  acceptedObject,
  boundMetadata,
  createJob,
  RETRY_AFTER_SECONDS,
  requireJobs,
} from '#services/ingress/answer/durable.ts'
import { RecordedOutput, resultOf } from '#services/ingress/answer/durable-respond.ts'
import type { Wishes } from '#services/ingress/answer/wishes.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import type { JobEndpoint, PreparedCall } from '#services/ingress/endpoints/endpoint.ts'
import type { JobWishes } from '#services/ingress/jobs/wishes.ts'
import { ServiceError } from '#shared/error.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { CANCELLED, type Ending, type Exchange, STREAMED } from './exchange.ts'

/**
 * Runs a request whose job outlives its connection, as `answerDurable` does over HTTP. The same call with the same key is
 * the same job, whichever way it comes.
 *
 * @throws ServiceError What the job failed with; `idempotency_key_in_use` after the job's id was told
 */
export function runDurable(
  context: IngressContext,
  exchange: Exchange,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  body: unknown,
  wishes: Wishes,
  wanted: JobWishes,
): Promise<Ending> {
  if (context.jobs.isDraining) {
    throw new ServiceError('overloaded', 'This server is shutting down.', { retryAfterMs: 1_000 })
  }
  boundMetadata(prepared.metadata)
  const { idempotencyKey, isAsync } = wishes
  const deadlineInMs = isAsync ? context.config.jobDeadlineMs : prepared.timeoutMs
  const { key, requestId, facts, held, headers } = exchange
  const call = { key, requestId, facts, held, req: { method: 'POST', path: endpoint.path, headers } }
  // No async function: a suspended one would keep the body for as long as the answer takes.
  return wanted
    .resolve(context, key.id, deadlineInMs)
    .then((more) => {
      const asked = { idempotencyKey, isAsync, ...more }
      return createJob(context, call, endpoint, prepared, wanted.joinedWith(body), asked)
    })
    .then((created) => runCreated(context, exchange, prepared, created, isAsync))
}

async function runCreated(
  context: IngressContext,
  exchange: Exchange,
  prepared: PreparedCall,
  { job, isReplay }: { job: DurableJob; isReplay: boolean },
  isAsync: boolean,
): Promise<Ending> {
  const jobs = requireJobs(context)
  // Cancelled while it was being accepted.
  if (exchange.isCancelled) {
    cancelJob(context, exchange, jobs, job.id)
    return CANCELLED
  }
  exchange.accept(job.id)
  if (isAsync)
    return { type: 'completed', status: 202, body: JSON.stringify(await acceptedObject(jobs, exchange.key.id, job)) }
  if (isReplay && !TERMINAL.has(job.state)) {
    const message = 'A request with this idempotency key is still being processed. Subscribe to its job instead.'
    throw new ServiceError('idempotency_key_in_use', message, { retryAfterMs: RETRY_AFTER_SECONDS * 1_000 })
  }
  exchange.deferCancel(() => cancelJob(context, exchange, jobs, job.id))
  if (!prepared.stream) return await takeResult(exchange, jobs, job.id)
  await using output = new RecordedOutput(jobs, exchange, job, exchange.stopped)
  return await sendRecorded(exchange, output)
}

/** A client that cancels means the job; one that only leaves does not. */
function cancelJob(context: IngressContext, exchange: Exchange, jobs: DurableJobs, id: string): void {
  jobs.cancel(exchange.key.id, id).catch((error: unknown) => {
    // It may have ended in the meantime, which its events tell.
    if (ServiceError.from(error).code === 'job_already_finished') return
    context.log.warn({ err: error, job_id: id, request_id: exchange.requestId }, 'job not cancelled')
  })
}

async function takeResult(exchange: Exchange, jobs: DurableJobs, id: string): Promise<Ending> {
  const tenant = exchange.key.id
  const ended = await jobs.waitForEnd(tenant, id, exchange.stopped)
  return { type: 'completed', status: 200, body: JSON.stringify(await resultOf(jobs, tenant, ended)) }
}

async function sendRecorded(exchange: Exchange, output: RecordedOutput): Promise<Ending> {
  for (;;) {
    const chunks = await output.next()
    if (!chunks || exchange.isStopped) return STREAMED
    for (const chunk of chunks) await exchange.sendEvent(JSON.stringify(chunk))
  }
}
