import type { Call, IngressContext } from '#services/ingress/call.ts'
import { type Admission, admit } from '#services/ingress/callers/limits/admission.ts'
import { encodeContextOf, type JobEndpoint, type PreparedCall, takeBody } from '#services/ingress/endpoints/endpoint.ts'
import { JobOptions } from '#services/ingress/jobs/job-options.ts'
import { refusalOf, sendBytes, sendStream } from '#services/ingress/reply/reply.ts'
import { retryMsMaxOf } from '#services/ingress/reply/retry.ts'
import type { HeldBytes } from '#shared/byte-budget.ts'
import type { AttachedJob } from '#shared/jobs/attached/attached-job.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { writtenInTurns } from '#shared/protocols/encode.ts'
import { answerDurable } from './durable.ts'
import { readPreferences } from './prefer-header.ts'
import { CallUsage } from './usage.ts'

/** Most bytes of a character in memory. */
const CHAR_BYTES = 2
/** Most bytes of memory that a body holds which stays there while its call runs. */
const HELD_BYTES_MAX = 1024 * 1024

/**
 * Answers a call of an endpoint that makes jobs: check, submit, stream or collect. Attached to the call unless the endpoint's
 * jobs are durable or the caller asked for that in one of the ways of docs/design.md, Arbiters.
 *
 * @throws ServiceError When it is refused or fails, before or after output
 */
export function answerCall(context: IngressContext, call: Call, endpoint: JobEndpoint, body: unknown): Promise<void> {
  const { key, facts, headers, advice } = call
  const wishes = readPreferences(headers, body)
  const asked = JobOptions.of(headers, call.jobFields)
  const isDurable = wishes.isDurable || endpoint.isDurable === true || endpoint.isKept?.(context, body, call) === true
  if (!isDurable) asked.refuse(advice.durable)
  else if (!wishes.isAsync) asked.refuseWaiting(advice.async)
  // No async function: a suspended one would keep the body for as long as the answer takes.
  const preparing = Promise.resolve(endpoint.prepare(context, call, body))
  return preparing.then((prepared) => {
    facts.model = prepared.model
    facts.user_id = prepared.userId
    return context.limits.countUser(key, prepared.userId).then(() => {
      if (isDurable) return answerDurable(context, call, endpoint, prepared, body, wishes, asked)
      const { pool } = endpoint.kind
      const admitting = admit(context, key, { pool, model: prepared.model, body: prepared.body })
      if (!admitting) return answerInPlace(context, call, endpoint, prepared)
      return admitting.then((admission) => answerInPlace(context, call, endpoint, prepared, admission))
    })
  })
}

/** Answers in a place among the calls at once of its project. */
function answerInPlace(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  admission?: Admission,
): Promise<void> {
  const entering = context.places.enter(call.key)
  if (!entering) return answerAttached(context, call, endpoint, prepared, admission)
  return entering.then(
    (leave) => answerAttached(context, call, endpoint, prepared, admission).finally(leave),
    (error: unknown) => {
      admission?.release()
      throw error
    },
  )
}

async function answerAttached(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  admission: Admission | undefined,
): Promise<void> {
  const { reply, facts, requestId } = call
  if (reply.hasLeft) return admission?.release()
  const job = await submitJob(context, call, endpoint, prepared).catch((error: unknown) => {
    admission?.release()
    throw error
  })
  facts.job_id = job.id
  // A closed connection is the only way an SDK has to say stop (docs/protocol.md, Leaving).
  const cancel = () => context.jobs.cancel(job, refusalOf(reply.left)?.toBody())
  reply.left.addEventListener('abort', cancel, { once: true })
  if (reply.left.aborted) cancel()
  reply.accepted(job.id)
  const encode = encodeContextOf(prepared, requestId, job.id, job.envelope.created_at_ms)
  const answer = endpoint.kind.answer(endpoint.path)
  const stream = prepared.stream ? answer.open?.(encode) : undefined
  const usage = new CallUsage(context, call, endpoint.kind.pool, admission)
  const see = (event: unknown) => usage.see(event)
  let end: 'completed' | 'failed' = 'failed'
  try {
    if (stream) await sendStream(reply, job, stream, see)
    else if (prepared.isBytes && answer.bytes)
      await sendBytes(reply, job, answer.bytes.type(encode), answer.bytes.of, see)
    else {
      reply.open(prepared.isText ? 'text' : 'json')
      const events = await takeAll(job, see)
      if (!reply.hasLeft)
        await reply.whole(await writtenInTurns(await (answer.write?.(events, encode) ?? answer.whole(events, encode))))
    }
    end = 'completed'
  } finally {
    usage.end(reply.hasLeft ? 'cancelled' : end)
    noteJob(context, call, job)
    context.jobs.cancel(job)
  }
}

/** Submits the job. Once it is accepted its body is no longer the call's: it lies in a blob, or waits as the few bytes of its record. */
async function submitJob(
  context: IngressContext,
  { key, requestId, held, headers }: Call,
  { kind }: JobEndpoint,
  prepared: PreparedCall,
): Promise<AttachedJob> {
  const body = takeBody(prepared)
  const { name, pool, merge, isOutput } = kind
  const answerBytesMax = prepared.answerBytesMax ?? kind.answerBytesMax
  const tenant = projectIdOf(key)
  const heldBytes = mayHold(context, held) ? held.bytes : undefined
  const stream = prepared.stream || prepared.isBytes === true
  const spec = {
    ...prepared,
    stream,
    pool,
    kind: name,
    merge,
    isOutput,
    answerBytesMax,
    body,
    tenant,
    requestId,
    heldBytes,
  }
  const retryMsMax = retryMsMaxOf(headers['user-agent'])
  context.pace.noteCall()
  context.submits.noteCall(tenant)
  const job = await context.jobs.submit({ ...spec, traceparent: headers.traceparent?.toString(), retryMsMax })
  held.shrink(bytesOf(job.stored))
  return job
}

/** Whether a body may stay in memory as it is while its call runs here: not where large ones would fill the budget. */
function mayHold({ budget }: IngressContext, held: HeldBytes): boolean {
  return held.bytes <= HELD_BYTES_MAX && budget.held <= budget.bytesMax / 2
}

function bytesOf(stored: AttachedJob['stored']): number {
  if (!stored || 'blob' in stored) return 0
  return 'json' in stored ? stored.json.length * CHAR_BYTES : stored.bytes
}

/** To the very end: a failure that follows output is told after it. */
async function takeAll(job: AttachedJob, onEvent: (event: unknown) => void): Promise<unknown[]> {
  const all: unknown[] = []
  for (let events = await job.next(); events; events = await job.next()) {
    for (const event of events) {
      onEvent(event)
      all.push(event)
    }
  }
  return all
}

/** Notes when a job began and first said something, for the access log and the metrics. */
function noteJob(context: IngressContext, { facts }: Call, job: AttachedJob): void {
  const { created_at_ms, pool, model } = job.envelope
  facts.attempts = job.attempt
  if (job.startedAtMs !== undefined) {
    facts.queue_ms = job.startedAtMs - created_at_ms
    context.metrics.queueSeconds.observe({ pool }, facts.queue_ms / 1_000)
  }
  if (job.firstOutputAtMs !== undefined) {
    facts.first_output_ms = job.firstOutputAtMs - created_at_ms
    context.metrics.firstOutputSeconds.observe({ pool, model }, facts.first_output_ms / 1_000)
  }
}
