import type { GenerateEvent } from '#schemas/generate.ts'
import type { CreateRequest } from '#schemas/ws.ts'
import { noteJob, submitJob } from '#services/ingress/answer/answer.ts'
import { UsageCount } from '#services/ingress/answer/usage-count.ts'
import { readWishes } from '#services/ingress/answer/wishes.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { requireEndpoint } from '#services/ingress/callers/auth.ts'
import { encodeContextOf, type JobEndpoint, type PreparedCall } from '#services/ingress/endpoints/endpoint.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import { JobWishes, jobFieldsOf } from '#services/ingress/jobs/wishes.ts'
import type { AttachedJob } from '#shared/jobs/attached/attached-job.ts'
import type { AnswerStream } from '#shared/kinds/answer.ts'
import { jsonTextOf } from '#shared/protocols/json-text.ts'
import { runDurable } from './durable.ts'
import { CANCELLED, type Ending, type Exchange, STREAMED } from './exchange.ts'

/** Limits tell what is left in headers, which frames do not have. */
const NO_HEADERS = { setHeader: () => undefined }

const MAKE_DURABLE = 'Give the frame an "idempotency_key", or its body "background": true.'
const MAKE_ASYNC = 'Give the body "background": true.'

/**
 * Runs one `request.create`, as `answerCall` runs a call over HTTP: the same endpoints, rights, limits and checks, in the
 * same order.
 *
 * @throws ServiceError When it is refused or fails, before or after events
 */
export async function runRequest(context: IngressContext, exchange: Exchange, frame: CreateRequest): Promise<Ending> {
  const { key } = exchange
  const endpoint = findEndpoint(frame.endpoint)
  requireEndpoint(key, endpoint.path)
  const end = context.limits.begin(key.id)
  try {
    await context.limits.count(key.id, endpoint.format, NO_HEADERS)
    return await perform(context, exchange, endpoint, frame)
  } finally {
    end()
  }
}

/** No async function: a suspended one would keep the body for as long as the answer takes. */
function perform(
  context: IngressContext,
  exchange: Exchange,
  endpoint: JobEndpoint,
  frame: CreateRequest,
): Promise<Ending> {
  const { key, requestId, headers } = exchange
  const body = bodyOf(frame, endpoint)
  // The session knows the frame until the request has ended.
  frame.body = {}
  const wishes = readWishes({ 'idempotency-key': frame.idempotency_key ?? undefined }, body)
  const wanted = JobWishes.of({}, jobFieldsOf(frame))
  if (!wishes.isDurable) wanted.refuse(MAKE_DURABLE)
  else if (!wishes.isAsync) wanted.refuseWaiting(MAKE_ASYNC)
  const preparing = Promise.resolve(endpoint.prepare(context, { key, requestId, headers }, body))
  return preparing.then((prepared) => {
    exchange.facts.model = prepared.model
    exchange.facts.user_id = prepared.userId
    return context.limits.countUser(key.id, prepared.userId).then(() => {
      if (exchange.isStopped) return CANCELLED
      if (wishes.isDurable) return runDurable(context, exchange, endpoint, prepared, body, wishes, wanted)
      return runAttached(context, exchange, endpoint, prepared)
    })
  })
}

/** Who opens a WebSocket wants streams: here they are the default, where the endpoint has them. */
function bodyOf({ body }: CreateRequest, endpoint: JobEndpoint): Record<string, unknown> {
  return endpoint.canStream?.(body) ? { ...body, stream: body.stream ?? true } : body
}

async function runAttached(
  context: IngressContext,
  exchange: Exchange,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
): Promise<Ending> {
  exchange.isAttached = true
  const job = await submitJob(context, exchange, endpoint, prepared, exchange.headers.traceparent?.toString())
  const cancel = () => context.jobs.cancel(job)
  exchange.stopped.addEventListener('abort', cancel, { once: true })
  if (exchange.isStopped) cancel()
  exchange.accept(job.id)
  const usage = new UsageCount(context, exchange)
  try {
    const encode = encodeContextOf(prepared, exchange.requestId, job.id, job.envelope.created_at_ms)
    const answer = endpoint.kind.answer(endpoint.path)
    if (prepared.stream && answer.open) return await sendStream(exchange, job, answer.open(encode), usage)
    const all = await takeAll(job, usage)
    const body = await (answer.write?.(all, encode) ?? answer.whole(all, encode))
    return { type: 'completed', status: 200, body: jsonTextOf(body) }
  } finally {
    usage.end()
    noteJob(context, exchange, job)
    cancel()
  }
}

/** Takes the next output only when the last was sent: the job's own buffer pauses its worker. */
async function sendStream(
  exchange: Exchange,
  job: AttachedJob,
  answer: AnswerStream,
  usage: UsageCount,
): Promise<Ending> {
  for (;;) {
    const deltas = await job.next()
    if (exchange.isStopped) return CANCELLED
    if (!deltas) break
    for (const delta of deltas) {
      usage.see(delta as GenerateEvent)
      for (const { data } of answer.push(delta)) await exchange.sendEvent(data)
    }
  }
  for (const { data } of answer.end()) await exchange.sendEvent(data)
  return STREAMED
}

async function takeAll(job: AttachedJob, usage: UsageCount): Promise<unknown[]> {
  const all: unknown[] = []
  // Until undefined, since a failure comes after the deltas before it.
  for (let deltas = await job.next(); deltas; deltas = await job.next()) {
    for (const delta of deltas) {
      usage.see(delta as GenerateEvent)
      all.push(delta)
    }
  }
  return all
}
