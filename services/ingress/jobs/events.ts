import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { type Reply, throwIfRefused } from '#services/ingress/reply/reply.ts'
import { ServiceError } from '#shared/error.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { eventObject } from './object.ts'
import { findJob, jobNotFound, queryNumber, requireJobs } from './paths.ts'
import { wholeJob } from './read.ts'

/**
 * GET /v1/jobs/{id}/events (docs/jobs.md, Follow it): every event after a position, numbered, until the job has ended;
 * then the server closes. Any replica can go on where another stopped, since all read the same history.
 */
export async function streamEvents(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  const position = positionOf(call)
  await followEvents(context, call, await findJob(jobs, call), position)
}

/** Where in a history to begin, and how the caller said so. */
interface Position {
  readonly after: number
  readonly param: string
}

/**
 * Says every event of a job after a position. Nothing at all when there is none to come: an EventSource stops to reconnect when
 * it is told that there is no content.
 *
 * @throws ServiceError `invalid_value` for a position that the job has not reached; `job_not_found` when it is gone meanwhile
 */
export async function followEvents(
  context: IngressContext,
  { reply, key, method }: Pick<Call, 'reply' | 'key' | 'method'>,
  job: DurableJob,
  { after, param }: Position,
): Promise<void> {
  if (TERMINAL.has(job.state) && after >= job.last_seq) return
  if (after > job.last_seq) {
    const message = `The job has ${job.last_seq} events so far; ${after} is not one of them.`
    throw new ServiceError('invalid_value', message, { param })
  }
  if (method === 'HEAD') return reply.open('events')
  const end = context.limits.beginFollow(key)
  reply.open('events')
  await sendEvents(context, reply, job, after).finally(end)
}

async function sendEvents(context: IngressContext, reply: Reply, job: DurableJob, after: number): Promise<void> {
  const jobs = requireJobs(context)
  const wholeNow = async () => await wholeJob(context, await jobs.get(job.tenant, job.id))
  const { leaving } = reply
  let seq = after
  for await (const events of jobs.follow(job.tenant, job.id, after, leaving)) {
    // What follows the position is not stored any more.
    const hasGap = events[0] !== undefined && events[0].seq > seq + 1
    if (hasGap) await reply.frames([frameOf({ type: 'job.snapshot', job: await wholeNow() })])
    for (const event of events) {
      const whole = isLast(event) ? await wholeNow() : undefined
      const position = event.type === 'job.queued' ? await positionNow(jobs, job, event) : null
      await reply.frames([frameOf(eventObject(event, job.pool, whole, position), event.seq)])
      if (whole || reply.hasLeft) return
      seq = event.seq
    }
  }
  throwIfRefused(reply)
  if (!leaving.aborted) throw jobNotFound(job.id)
}

/** Where a job stands that nothing has happened to since it was queued. @param known As it was, be it long ago */
async function positionNow(jobs: DurableJobs, known: DurableJob, { seq }: DurableEvent): Promise<number | null> {
  // Something has happened since: the store is not asked for what is told of the past.
  if (known.last_seq > seq) return null
  const job = await jobs.get(known.tenant, known.id)
  return job.last_seq === seq ? await jobs.positions.of(job) : null
}

function frameOf(object: Record<string, unknown>, id?: number): Frame {
  const frame = { event: String(object.type), data: JSON.stringify(object) }
  return id === undefined ? frame : { ...frame, id }
}

/** `Last-Event-ID` is set by a client that reconnects, so it is the fresher of the two. */
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
