import type { IncomingHttpHeaders } from 'node:http'
import type { CreateRequest, SubscribeJob } from '#schemas/ws.ts'
import { requireEndpoint } from '#services/ingress/callers/keys.ts'
import { setLimitHeaders } from '#services/ingress/callers/limit-headers.ts'
import { answerCall } from '#services/ingress/calls/answer.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import type { JobEndpoint } from '#services/ingress/calls/endpoint.ts'
import { isJobId, jobNotFound, requireJobs } from '#services/ingress/calls/job-object.ts'
import { jobFieldsOf } from '#services/ingress/calls/job-options.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import { followEvents } from '#services/ingress/jobs/events.ts'
import type { SocketReply } from '#services/ingress/reply/websocket.ts'
import type { HeldBytes } from '#shared/capacity/byte-budgets.ts'
import { enterCall } from '#shared/capacity/capacity.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'

const ADVICE = {
  durable: 'Add "idempotency_key" to the frame, or "background": true to its body.',
  async: 'Add "background": true to the body.',
}

export interface RequestOrigin {
  readonly key: Call['key']
  readonly headers: IncomingHttpHeaders
  readonly held: HeldBytes
}

/**
 * Runs one `request.create` like a call over HTTP: the same endpoints, rights, limits and checks, in the same order.
 *
 * @throws ServiceError if the request is refused or fails, before or after events
 */
export async function runRequest(
  context: IngressContext,
  asking: RequestOrigin,
  reply: SocketReply,
  frame: CreateRequest,
): Promise<void> {
  const { key } = asking
  const endpoint = findEndpoint(frame.endpoint)
  requireEndpoint(key, endpoint.path)
  if (context.jobs.isDraining) {
    throw new ServiceError('overloaded', 'This server is shutting down.', { retryAfterMs: 1_000 })
  }
  const isJob = frame.idempotency_key !== undefined
  const end = await enterCall(context, key, isJob, (left) => setLimitHeaders(reply, endpoint.format, left))
  try {
    const call = callOf(context, asking, reply, frame, endpoint)
    using _storage = call.storage
    await answerCall(context, call, endpoint, takeBodyOf(frame, endpoint))
  } finally {
    end()
  }
}

/**
 * Runs one `job.subscribe`: the events of `GET /v1/jobs/{id}/events`, with the same limit.
 *
 * @throws ServiceError as {@link followEvents}
 */
export async function runSubscription(
  context: IngressContext,
  { key }: RequestOrigin,
  reply: SocketReply,
  frame: SubscribeJob,
): Promise<void> {
  const jobs = requireJobs(context)
  if (!isJobId(frame.job_id)) throw jobNotFound(frame.job_id)
  const job = await jobs.get(projectIdOf(key), frame.job_id)
  reply.log.facts.job_id = job.id
  reply.log.facts.model = job.model
  const position = { after: frame.starting_after ?? 0, param: 'starting_after' }
  await followEvents(context, { reply, key, method: 'GET' }, job, position)
}

/**
 * Creates the call of a frame. API version and trace headers of the upgrade request apply to every call. Options of a
 * single call are in its frame.
 */
function callOf(
  { storage }: IngressContext,
  { key, headers, held }: RequestOrigin,
  reply: SocketReply,
  frame: CreateRequest,
  { path, format }: JobEndpoint,
): Call {
  const own = Object.entries(headers).filter(([name]) => name !== 'prefer' && !name.startsWith('x-job-'))
  const { requestId, facts } = reply.log
  return {
    ...{ method: 'POST', path, params: {}, query: {}, requestId, format, key, reply, facts, held },
    headers: { ...Object.fromEntries(own), 'idempotency-key': frame.idempotency_key ?? undefined },
    jobFields: { ...jobFieldsOf(frame) },
    advice: ADVICE,
    uploads: new Set(),
    storage: storage.open(projectIdOf(key)),
  }
}

/**
 * Removes the body from its frame, because the session references the frame until the request has ended. If the
 * endpoint can stream, then streaming is the default on a WebSocket.
 */
function takeBodyOf(frame: CreateRequest, endpoint: JobEndpoint): Record<string, unknown> {
  const { body } = frame
  frame.body = {}
  return endpoint.canStream?.(body) ? { ...body, stream: body.stream ?? true } : body
}
