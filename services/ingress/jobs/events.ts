import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import { type Call, type IngressContext, type Reply, sendFrames } from '#services/ingress/calls/call.ts'
import { eventObject, findJob, jobNotFound, queryNumber, requireJobs } from '#services/ingress/calls/job-object.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import { readStored } from '#shared/jobs/records.ts'
import { frameOf } from '#shared/kinds/answer.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { jobWithDetails } from './jobs.ts'

/**
 * GET /v1/jobs/{id}/events (docs/guides/jobs.md, Follow it): streams every event of a job after a position, until the
 * job has ended. All ingresses read the same stored events, so a client can reconnect to any of them.
 */
export async function streamEvents(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  const position = positionOf(call)
  await followEvents(context, call, await findJob(jobs, call), position)
}

interface Position {
  readonly after: number
  readonly param: string
}

/**
 * Streams every event of a job after a position. If no event can follow, then the answer is 204, which prevents an
 * EventSource from reconnecting.
 *
 * @throws ServiceError `invalid_value` for a position beyond the last event; `job_not_found` if the job is deleted
 * while it is followed
 */
export async function followEvents(
  context: IngressContext,
  { reply, key, method }: Pick<Call, 'reply' | 'key' | 'method'>,
  job: DurableJob,
  { after, param }: Position,
): Promise<void> {
  if (TERMINAL.has(job.state) && after >= job.last_seq) return
  if (after > job.last_seq) {
    const message = `${param} must be at most ${job.last_seq}, the number of the last event of the job so far; got ${after}.`
    throw new ServiceError('invalid_value', message, { param })
  }
  if (method === 'HEAD') return reply.open('events')
  const end = context.limits.beginFollow(key)
  reply.open('events')
  await sendEvents(context, reply, job, after).finally(end)
}

async function sendEvents(context: IngressContext, reply: Reply, job: DurableJob, after: number): Promise<void> {
  const jobs = requireJobs(context)
  const wholeNow = async () => await jobWithDetails(context, await jobs.get(job.tenant, job.id))
  const { disconnectedOrDraining: leaving } = reply
  let seq = after
  for await (const events of jobs.follow(job.tenant, job.id, after, leaving)) {
    // The events directly after the position were deleted, so a snapshot of the job is sent in their place.
    const hasGap = events[0] !== undefined && events[0].seq > seq + 1
    if (hasGap)
      await sendFrames(reply, [frameOf({ type: 'job.snapshot', job: await wholeNow() }, { event: 'job.snapshot' })])
    for (const event of events) {
      const whole = isLast(event) ? await wholeNow() : undefined
      const position = event.type === 'job.queued' ? await positionNow(jobs, job, event) : null
      const object = eventObject(event, job.pool, whole, position)
      await sendFrames(reply, [frameOf(object, { event: String(object.type), id: event.seq })])
      if (whole || reply.isDisconnected) return
      seq = event.seq
    }
  }
  if (reply.refusal) throw reply.refusal
  if (!leaving.aborted) throw jobNotFound(job.id)
}

/**
 * Queue position of a waiting job. Null if an event followed `job.queued`, because the job then no longer waits.
 *
 * @param known The job as read before
 */
async function positionNow(jobs: DurableJobs, known: DurableJob, { seq }: DurableEvent): Promise<number | null> {
  if (known.last_seq > seq) return null
  const job = await jobs.get(known.tenant, known.id)
  return job.last_seq === seq ? await jobs.positions.of(job) : null
}

/**
 * Returns the position of the client. `Last-Event-ID` takes precedence over the query, because a reconnecting client
 * updates only the header.
 */
function positionOf(call: Call): Position {
  const header = call.headers['last-event-id']?.toString()
  if (!header) {
    const param = 'starting_after'
    return { after: queryNumber(call, param, Number.MAX_SAFE_INTEGER) ?? 0, param }
  }
  const param = 'Last-Event-ID'
  if (/^\d{1,15}$/.test(header)) return { after: Number(header), param }
  throw new ServiceError('invalid_value', 'Last-Event-ID must be the number of an event.', { param })
}

/**
 * GET /v1/jobs/{id}/input: the request as its caller sent it. Only the project of the job may read the input. The input is deleted together with
 * the job.
 *
 * @throws ServiceError `job_not_found`
 */
export async function getInput(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant, endpoint, model } = await findJob(requireJobs(context), call)
  const stored = await context.store?.findInput(tenant, id)
  if (!stored) throw jobNotFound(id)
  const { attachments = [] } = readStored(stored.request)
  const sent = stored.input ?? { input: null, input_cut: null }
  await call.reply.whole({ id, object: 'job.input', endpoint, model, ...sent, attachments: attachments.length })
}
