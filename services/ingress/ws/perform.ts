import type { IncomingHttpHeaders } from 'node:http'
import type { Readable } from 'node:stream'
import type { CreateRequest, SubscribeJob } from '#schemas/ws.ts'
import { requireEndpoint, setLimitHeaders } from '#services/ingress/callers/keys.ts'
import { answerCall } from '#services/ingress/calls/answer.ts'
import type { Call, IngressContext, JobEndpoint, Outcome, Reply, ReplyForm } from '#services/ingress/calls/call.ts'
import { CallLog } from '#services/ingress/calls/call-log.ts'
import { isJobId, jobNotFound, requireJobs } from '#services/ingress/calls/job-object.ts'
import { jobFieldsOf } from '#services/ingress/calls/job-options.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import { followEvents } from '#services/ingress/jobs/events.ts'
import type { HeldBytes } from '#shared/capacity/byte-budgets.ts'
import { enterCall } from '#shared/capacity/capacity.ts'
import { jsonTextSoon } from '#shared/json/write.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { completedText, failedFrame, frameText, jobEventText, type Outbox, requestEventText } from './frames.ts'

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
 * Runs one `request.create` like a call over HTTP, with the same endpoints, rights, limits and checks in the same
 * order.
 *
 * @throws ServiceError if the request is refused or fails, before or after events
 */
export async function runRequest(
  context: IngressContext,
  asking: RequestOrigin,
  reply: SocketReply,
  frame: CreateRequest,
): Promise<void> {
  const { log } = reply
  const endpoint = endpointFor(context, log, frame)
  log.handling(endpoint.path, endpoint.kind.name, 'POST', asking.headers)
  log.noteModel(frame.body)
  try {
    await runCall(context, asking, reply, frame, endpoint)
  } finally {
    log.handled()
  }
}

function endpointFor(context: IngressContext, log: CallLog, { endpoint }: CreateRequest): JobEndpoint {
  try {
    return findEndpoint(context, endpoint)
  } catch (error) {
    log.refused(endpoint)
    throw error
  }
}

async function runCall(
  context: IngressContext,
  asking: RequestOrigin,
  reply: SocketReply,
  frame: CreateRequest,
  endpoint: JobEndpoint,
): Promise<void> {
  const { key } = asking
  requireEndpoint(key, endpoint.path)
  if (context.jobs.isDraining) {
    throw new ServiceError('overloaded', 'This server is shutting down.', { retryAfterMs: 1_000, reason: 'draining' })
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
 * Runs one `job.subscribe`. The client receives the events of `GET /v1/jobs/{id}/events`, with the same limit on open
 * streams.
 *
 * @throws The errors of {@link followEvents}
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
 * Creates the call of a frame. The API version and the trace headers of the upgrade request apply to every call on the
 * connection. Options for a single call come only from its frame.
 */
function callOf(
  { storage }: IngressContext,
  { key, headers, held }: RequestOrigin,
  reply: SocketReply,
  frame: CreateRequest,
  { path, format }: JobEndpoint,
): Call {
  const own = Object.entries(headers).filter(([name]) => name !== 'prefer' && !name.startsWith('x-job-'))
  const { requestId, facts, traceparent } = reply.log
  return {
    ...{ method: 'POST', path, params: {}, query: {}, requestId, format, key, reply, facts, held, traceparent },
    headers: { ...Object.fromEntries(own), 'idempotency-key': frame.idempotency_key ?? undefined },
    jobFields: { ...jobFieldsOf(frame) },
    advice: ADVICE,
    uploads: new Set(),
    storage: storage.open(projectIdOf(key)),
  }
}

/**
 * Removes the body from its frame and returns it. Otherwise the body would stay in memory, because the session
 * references the frame until the request has ended. If the endpoint can stream, then streaming is the default on a
 * WebSocket.
 */
function takeBodyOf(frame: CreateRequest, endpoint: JobEndpoint): Record<string, unknown> {
  const { body } = frame
  frame.body = {}
  return endpoint.canStream?.(body) ? { ...body, stream: body.stream ?? true } : body
}

interface SocketReplyOptions {
  readonly id: string
  readonly kind: 'request' | 'subscription'
  readonly key: Call['key']
  readonly outbox: Outbox
  readonly held: HeldBytes
  readonly sessionId: string
  readonly path: string
  readonly route: string
  readonly headers: IncomingHttpHeaders
}

/**
 * The answer to one request or subscription on a WebSocket, which the client identifies by an id.
 *
 * If the client cancels or the connection closes, then attached jobs, which are not stored, are cancelled. Durable jobs
 * continue.
 */
export class SocketReply implements Reply {
  readonly kind: SocketReplyOptions['kind']
  readonly log: CallLog
  /** True while an attached job runs for the connection. A drain of the ingress waits for this job. */
  isAttached = false
  readonly #options: SocketReplyOptions
  readonly #left = new AbortController()
  readonly disconnected = this.#left.signal
  /** Undefined, because the session closes the whole connection if its key ends. */
  readonly refusal = undefined
  /**
   * True if the client cancelled before a job was accepted. A durable job that is accepted afterwards is cancelled at
   * once.
   */
  #isCancelled = false
  #hasLeft = false
  #askToCancel: (() => void) | undefined
  #sequence = 0
  #hasEnded = false
  /** Body of `request.completed`. Null if the answer was a stream. */
  #body = { status: 200, text: 'null' }

  constructor(context: ConstructorParameters<typeof CallLog>[0], options: SocketReplyOptions) {
    this.log = new CallLog(context)
    this.log.facts.key_id = options.key.id
    this.log.facts.project_id = projectIdOf(options.key)
    this.kind = options.kind
    this.#options = options
  }

  /** The signal does not abort when the process drains, because a draining process gives the calls of the connection time to end. */
  get disconnectedOrDraining(): AbortSignal {
    return this.disconnected
  }

  get isDisconnected(): boolean {
    return this.disconnected.aborted
  }

  cancel(): void {
    if (this.#askToCancel) return this.#askToCancel()
    this.#isCancelled = true
    this.#left.abort()
  }

  leave(): void {
    this.#hasLeft = true
    this.#left.abort()
  }

  setHeader(): void {}

  /**
   * Sets the job of the request. From then on, the client can only request the cancellation of a durable job, which may
   * still complete.
   */
  accepted(jobId: string, cancel?: () => void): void {
    this.log.facts.job_id = jobId
    if (this.#isCancelled) return cancel?.()
    this.#askToCancel = cancel
    this.isAttached = cancel === undefined
    const { id, outbox } = this.#options
    if (!this.isDisconnected) outbox.reply(frameText({ type: 'request.accepted', id, job_id: jobId }))
  }

  /** Has no effect, because the pings of the WebSocket are the keep-alives. */
  open(_form: ReplyForm): void {}

  frames(frames: readonly Frame[]): Promise<void> | undefined {
    const { outbox } = this.#options
    for (const [index, { data }] of frames.entries()) {
      if (outbox.isFull) return this.#framesInTime(frames.slice(index))
      if (this.isDisconnected) return undefined
      this.#send(data)
    }
    return undefined
  }

  /**
   * Stores the body until `request.completed` is sent. A large body waits for space in the send buffer, as other output
   * does.
   */
  async whole(value: unknown, status = 200): Promise<void> {
    this.#body = { status, text: await jsonTextSoon(value) }
    await this.#options.outbox.waitForSpace(this.disconnected)
  }

  async bytes(source: Readable): Promise<void> {
    source.destroy()
    throw new ServiceError(
      'invalid_request',
      'This endpoint returns binary data, which is not supported over a WebSocket. Use HTTP.',
    )
  }

  end(outcome: Outcome): void {
    if (this.#hasEnded) return
    this.#hasEnded = true
    const { id, held, outbox, path, route, sessionId, headers } = this.#options
    held.release()
    const error = outcome.type === 'failed' ? this.log.classify(outcome.thrown) : undefined
    const isCancelled = this.isDisconnected || error?.code === 'job_cancelled'
    const { status, text } = this.#body
    if (!this.#hasLeft) {
      if (isCancelled) outbox.reply(frameText({ type: 'request.cancelled', id }))
      else outbox.reply(error ? frameText(failedFrame(id, error)) : completedText(id, status, text))
    }
    if (error && !isCancelled) this.log.failed(error, error.status)
    const end = this.#hasLeft ? 'aborted' : isCancelled ? 'cancelled' : (error?.status ?? status)
    this.log.ended({ method: 'WS', path, route, status: end, headers, more: { session_id: sessionId } })
  }

  async #framesInTime(frames: readonly Frame[]): Promise<void> {
    const { outbox } = this.#options
    for (const { data } of frames) {
      if (outbox.isFull) await outbox.waitForSpace(this.disconnected)
      if (this.isDisconnected) return
      this.#send(data)
    }
  }

  #send(data: string): void {
    const { id, kind, outbox } = this.#options
    outbox.send(kind === 'request' ? requestEventText(id, ++this.#sequence, data) : jobEventText(id, data))
  }
}
