import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import { leaveOf, requireJobs } from '#services/ingress/answer/durable.ts'
import { endWithin, framePieces, writePieces } from '#services/ingress/answer/slow-reader.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { ServiceError } from '#shared/error.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import { openaiErrorBody } from '#shared/protocols/errors.ts'
import { eventObject } from './object.ts'
import { findJob, queryNumber } from './paths.ts'
import { wholeJob } from './read.ts'

/** When an EventSource comes back after a cut, in milliseconds. */
const RECONNECT_MS = 3_000
/** Silence after which a stream says that it lives. */
const KEEP_ALIVE_MS = 15_000

/**
 * GET /v1/jobs/{id}/events (docs/jobs.md, Follow it): every event after a position, numbered, until the job has ended;
 * then the server closes. Any replica can go on where another stopped, since all read the same history.
 */
export async function streamEvents(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  const { after, param } = positionOf(call)
  const job = await findJob(jobs, call)
  // An EventSource stops to reconnect when it is told that there is no content.
  if (TERMINAL.has(job.state) && after >= job.last_seq) return void call.res.status(204).end()
  if (after > job.last_seq) {
    const message = `The job has ${job.last_seq} events so far; ${after} is not one of them.`
    throw new ServiceError('invalid_value', message, { param })
  }
  const { res } = call
  // Express answers HEAD here as well, which must not wait for a body it will not get.
  const isHead = call.req.method === 'HEAD'
  const end = isHead ? () => {} : context.limits.beginFollow(call.key.id)
  res.writeHead(200, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no',
  })
  if (isHead) return void res.end()
  res.write(`retry: ${RECONNECT_MS}\n\n`)
  const keepAlive = setInterval(() => {
    if (!res.writableNeedDrain && !res.writableEnded) res.write(': keep-alive\n\n')
  }, KEEP_ALIVE_MS)
  try {
    await sendEvents(context, call, jobs, job, after)
  } catch (error) {
    context.log.info({ err: error, job_id: job.id, request_id: call.requestId }, 'event stream cut')
    call.noteFailure(ServiceError.from(error))
    if (call.revoked.aborted) endWithin(res, context.config.slowReaderMs, errorFrame(call.revoked.reason))
    // The head is out: the reader comes back with its position and is told then.
    else res.destroy()
  } finally {
    clearInterval(keepAlive)
    end()
  }
}

/** `Last-Event-ID` is set by a client that reconnects, so it is the fresher of the two. */
function positionOf(call: Call): { after: number; param: string } {
  const header = call.req.get('last-event-id')
  if (!header) {
    const param = 'starting_after'
    return { after: queryNumber(call, param, Number.MAX_SAFE_INTEGER) ?? 0, param }
  }
  const param = 'Last-Event-ID'
  if (/^\d{1,15}$/.test(header)) return { after: Number(header), param }
  throw new ServiceError('invalid_value', 'Last-Event-ID must be the number of an event.', { param })
}

async function sendEvents(
  context: IngressContext,
  call: Call,
  jobs: DurableJobs,
  job: DurableJob,
  after: number,
): Promise<void> {
  const { res } = call
  const signal = leaveOf(context, call)
  let seq = after
  for await (const events of jobs.follow(call.key.id, job.id, after, signal)) {
    if (events[0] && events[0].seq > seq + 1) await send(context, call, await snapshotOf(jobs, call, job.id))
    for (const event of events) await send(context, call, await frameOf(jobs, call, job, event))
    seq = events.at(-1)?.seq ?? seq
    if (res.destroyed) return
  }
  call.revoked.throwIfAborted()
  endWithin(res, context.config.slowReaderMs, '', call.noteFailure)
}

async function send(context: IngressContext, call: Call, frame: string): Promise<void> {
  await writePieces(call.res, framePieces(frame), context.config.slowReaderMs)
}

/** Not of the history, so without a number: an EventSource that comes back after it is refused for good. */
function errorFrame(error: ServiceError): string {
  return `event: error\ndata: ${JSON.stringify({ type: 'error', ...openaiErrorBody(error) })}\n\n`
}

/** Said first when the events that follow the position are not stored any more. */
async function snapshotOf(jobs: DurableJobs, call: Call, id: string): Promise<string> {
  const job = await wholeJob(jobs, call, await jobs.get(call.key.id, id))
  return `event: job.snapshot\ndata: ${JSON.stringify({ type: 'job.snapshot', job })}\n\n`
}

async function frameOf(jobs: DurableJobs, call: Call, job: DurableJob, event: DurableEvent): Promise<string> {
  const whole = isLast(event) ? await wholeJob(jobs, call, await jobs.get(call.key.id, job.id)) : undefined
  const data = eventObject(event, job.pool, whole)
  return `id: ${event.seq}\nevent: ${event.type}\ndata: ${JSON.stringify(data)}\n\n`
}
