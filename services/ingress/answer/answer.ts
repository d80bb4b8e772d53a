import type { GenerateEvent } from '#schemas/generate.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { encodeContextOf, type JobEndpoint, type PreparedCall, takeBody } from '#services/ingress/endpoints/endpoint.ts'
import { JobWishes } from '#services/ingress/jobs/wishes.ts'
import type { AttachedJob } from '#shared/jobs/attached/attached-job.ts'
import { answerDurable } from './durable.ts'
import { respondStream, respondWhole } from './respond.ts'
import { UsageCount } from './usage-count.ts'
import { readWishes } from './wishes.ts'

/** Most bytes of a character in memory. */
const CHAR_BYTES = 2

const MAKE_DURABLE =
  "Send it with 'Prefer: respond-async' or an 'Idempotency-Key', or hand the call over to POST /v1/jobs."
const MAKE_ASYNC = "Send it with 'Prefer: respond-async', or hand the call over to POST /v1/jobs."

/**
 * Answers a call of an endpoint that makes jobs: check, submit, stream or collect. Attached to the connection unless the
 * caller asked for durability in one of the ways of docs/design.md, Arbiters.
 *
 * @throws ServiceError as long as nothing was sent
 */
export function answerCall(context: IngressContext, call: Call, endpoint: JobEndpoint, body: unknown): Promise<void> {
  const wishes = readWishes(call.req.headers, body)
  const asked = JobWishes.of(call.req.headers, call.jobFields)
  if (!wishes.isDurable) asked.refuse(MAKE_DURABLE)
  else if (!wishes.isAsync) asked.refuseWaiting(MAKE_ASYNC)
  const { key, requestId } = call
  // No async function: a suspended one would keep the body for as long as the answer takes.
  const preparing = Promise.resolve(endpoint.prepare(context, { key, requestId, headers: call.req.headers }, body))
  return preparing.then((prepared) => {
    call.facts.model = prepared.model
    call.facts.user_id = prepared.userId
    return context.limits.countUser(key.id, prepared.userId).then(() => {
      if (wishes.isDurable) return answerDurable(context, call, endpoint, prepared, body, wishes, asked)
      return answerAttached(context, call, endpoint, prepared)
    })
  })
}

async function answerAttached(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
): Promise<void> {
  const job = await submitAttached(context, call, endpoint, prepared)
  const encode = encodeContextOf(prepared, call.requestId, job.id, job.envelope.created_at_ms)
  const answer = endpoint.kind.answer(endpoint.path)
  const usage = new UsageCount(context, call)
  try {
    if (prepared.stream && answer.open) {
      const onDelta = (delta: unknown) => usage.see(delta as GenerateEvent)
      await respondStream(call, job, answer.open(encode), onDelta, context.config.slowReaderMs)
    } else {
      const encodeAll = (deltas: unknown[]) => {
        for (const delta of deltas) usage.see(delta as GenerateEvent)
        return answer.write?.(deltas, encode) ?? answer.whole(deltas, encode)
      }
      await respondWhole(call, job, encodeAll, context.config.slowReaderMs, prepared.isText !== true)
    }
  } finally {
    usage.end()
    noteJob(context, call, job)
    context.jobs.cancel(job)
  }
}

async function submitAttached(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
): Promise<AttachedJob> {
  const job = await submitJob(context, call, endpoint, prepared, call.req.get('traceparent'))
  call.facts.job_id = job.id
  // A closed connection is the only way an SDK has to say stop (docs/protocol.md, Leaving).
  const onClose = () => context.jobs.cancel(job)
  call.res.once('close', onClose)
  if (call.res.destroyed) onClose()
  const onRevoked = () => context.jobs.cancel(job, call.revoked.reason.toBody())
  call.revoked.addEventListener('abort', onRevoked)
  if (call.revoked.aborted) onRevoked()
  return job
}

/**
 * Submits the job of a call that waits for it. Once it is accepted its body is no longer the call's: it lies in a blob, or
 * waits as the few bytes of its record.
 */
export async function submitJob(
  context: IngressContext,
  call: Pick<Call, 'key' | 'requestId' | 'held'>,
  { kind }: JobEndpoint,
  prepared: PreparedCall,
  traceparent: string | undefined,
): Promise<AttachedJob> {
  const { key, requestId, held } = call
  const body = takeBody(prepared)
  const { name, pool, merge, isOutput } = kind
  const answerBytesMax = prepared.answerBytesMax ?? kind.answerBytesMax
  const spec = { ...prepared, pool, kind: name, merge, isOutput, answerBytesMax, body, tenant: key.id }
  const job = await context.jobs.submit({ ...spec, requestId, traceparent })
  held.shrink(job.stored && 'json' in job.stored ? job.stored.json.length * CHAR_BYTES : 0)
  return job
}

/** Notes when a job began and first said something, for the access log and the metrics. */
export function noteJob(context: IngressContext, call: Pick<Call, 'facts'>, job: AttachedJob): void {
  const { created_at_ms, pool, model } = job.envelope
  call.facts.attempts = job.attempt
  if (job.startedAtMs !== undefined) {
    call.facts.queue_ms = job.startedAtMs - created_at_ms
    context.metrics.queueSeconds.observe({ pool }, call.facts.queue_ms / 1_000)
  }
  if (job.firstOutputAtMs !== undefined) {
    call.facts.first_output_ms = job.firstOutputAtMs - created_at_ms
    context.metrics.firstOutputSeconds.observe({ pool, model }, call.facts.first_output_ms / 1_000)
  }
}
