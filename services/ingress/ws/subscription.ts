import type { DurableJob } from '#schemas/durable-job.ts'
import type { SubscribeJob } from '#schemas/ws.ts'
import { requireJobs } from '#services/ingress/answer/durable.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { eventObject } from '#services/ingress/jobs/object.ts'
import { isJobId } from '#services/ingress/jobs/paths.ts'
import { wholeJob } from '#services/ingress/jobs/read.ts'
import { ServiceError } from '#shared/error.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import { CANCELLED, type Ending, type Exchange, STREAMED } from './exchange.ts'

/**
 * Runs one `job.subscribe`: every event after a position, numbered, until the job has ended. What `GET
 * /v1/jobs/{id}/events` says, with the same bound.
 *
 * @throws ServiceError `job_not_found`, `invalid_value` for a position that the job has not reached
 */
export async function runSubscription(
  context: IngressContext,
  exchange: Exchange,
  frame: SubscribeJob,
): Promise<Ending> {
  const end = context.limits.beginFollow(exchange.key.id)
  try {
    const jobs = requireJobs(context)
    if (!isJobId(frame.job_id)) throw notFound(frame.job_id)
    const job = await jobs.get(exchange.key.id, frame.job_id)
    exchange.facts.job_id = job.id
    exchange.facts.model = job.model
    const after = frame.starting_after ?? 0
    if (TERMINAL.has(job.state) && after >= job.last_seq) return STREAMED
    if (after > job.last_seq) {
      const message = `The job has ${job.last_seq} events so far; ${after} is not one of them.`
      throw new ServiceError('invalid_value', message, { param: 'starting_after' })
    }
    return await sendEvents(exchange, jobs, job, after)
  } finally {
    end()
  }
}

async function sendEvents(exchange: Exchange, jobs: DurableJobs, job: DurableJob, after: number): Promise<Ending> {
  const wholeNow = async () => await wholeJob(jobs, exchange, await jobs.get(exchange.key.id, job.id))
  let seq = after
  for await (const events of jobs.follow(exchange.key.id, job.id, after, exchange.stopped)) {
    // What follows the position is not stored any more.
    const hasGap = events[0] !== undefined && events[0].seq > seq + 1
    if (hasGap) await exchange.sendJobEvent({ type: 'job.snapshot', job: await wholeNow() })
    for (const event of events) {
      const whole = isLast(event) ? await wholeNow() : undefined
      await exchange.sendJobEvent(eventObject(event, job.pool, whole))
      if (exchange.isStopped) return CANCELLED
      if (whole) return STREAMED
      seq = event.seq
    }
  }
  if (exchange.isStopped) return CANCELLED
  throw notFound(job.id)
}

function notFound(id: string): ServiceError {
  return new ServiceError('job_not_found', `No job with the id '${id.slice(0, 64)}'.`)
}
