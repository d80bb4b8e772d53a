/*
 * Answers a call with a durable job: 202 with the job, or the result once the job has ended.
 *
 * 1. The number of jobs, the budget and the stored bytes are checked (gates a, b, 5 and c of `shared/capacity/capacity.ts`), and the job is created.
 *    While other projects make calls, a queue (`SubmitQueue`) delays the creation, so that submissions do not delay these calls.
 * 2. A call that repeats the idempotency key of an earlier call gets the earlier job. If the earlier job expired, or failed with 429 or 5xx, and the
 *    caller waits, then a new job replaces the earlier one. A waiting caller gets 409 `idempotency_key_in_use` until the earlier job has ended.
 * 3. With `Prefer: respond-async` or `background`, the answer is 202, at the latest after the requested wait. Otherwise the ingress follows the job
 *    and sends the recorded output or the result.
 * 4. If a waiting caller disconnects, then the job continues, and can be found by its id or idempotency key. If the endpoint instead of the caller
 *    required a durable job, then the job is cancelled.
 *
 * The invariant: the id of a job is sent only after the store has committed the job.
 */

import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import { formatOf } from '#services/ingress/body/body.ts'
import { HELD_PER_BYTE } from '#shared/capacity/byte-budgets.ts'
import { inputText } from '#shared/jobs/body.ts'
import { type DurableJobs, isDefinitelyUndone } from '#shared/jobs/durable/durable.ts'
import { type AwaitedJob, isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import { preparingText } from '#shared/jobs/peers.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { type AnswerStream, type Frame, frameOf } from '#shared/kinds/answer.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Created } from '#shared/store/store.ts'
import {
  type Call,
  type IngressContext,
  type JobEndpoint,
  type Output,
  type PreparedCall,
  type StoredAnswers,
  sendStream,
} from './call.ts'
import { CallBodies } from './call-bodies.ts'
import { encodeOf, takeBody } from './endpoint.ts'
import { jobObject, requireJobs } from './job-object.ts'
import {
  boundMetadata,
  type DurableOptions,
  idempotencyOf,
  type JobOptions,
  type Preferences,
  prefersAsync,
} from './job-options.ts'

/** Retry-After in answers about an unfinished job, in seconds. Clients should poll at this interval. */
export const RETRY_AFTER_SECONDS = 2

/**
 * Answers a call with a durable job.
 *
 * @throws ServiceError the failure of the job; `idempotency_key_in_use` if the job of an earlier call with the same key still runs. The answer then
 *   has the id of that job
 */
export function answerDurable(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  body: unknown,
  preferences: Preferences,
  options: JobOptions,
): Promise<void> {
  boundMetadata(prepared.metadata)
  const { idempotencyKey, isAsync } = preferences
  if (!isAsync) context.submitQueue.recordCall(projectIdOf(call.key))
  const deadlineInMs = isAsync ? context.config.jobDeadlineMs : prepared.timeoutMs
  // The body is passed through callbacks instead of a local variable. A suspended async function keeps its variables in memory until the answer is
  // complete.
  return options
    .resolve(context, projectIdOf(call.key), deadlineInMs)
    .then((more) => {
      const wanted = { idempotencyKey, isAsync, ...more }
      const creating = createJob(
        context,
        call,
        endpoint,
        prepared,
        { sent: body, whole: options.joinedWith(body) },
        wanted,
      )
      return creating.catch((error: unknown) => {
        CallBodies.refused(context, call, endpoint.kind, body)
        throw error
      })
    })
    .then((created) => answerCreated(context, call, endpoint, prepared, created, preferences))
}

async function answerCreated(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  { job, isReplay }: { job: DurableJob; isReplay: boolean },
  { isDurable, isAsync, waitMs }: Preferences,
): Promise<void> {
  const jobs = requireJobs(context)
  const { reply } = call
  const cancel = () => cancelJob(context, call, jobs, job, true)
  reply.accepted(job.id, () => cancelJob(context, call, jobs, job, false))
  // If the endpoint instead of the caller requires a durable job, then closing the connection cancels the job.
  if (!isDurable) reply.disconnected.addEventListener('abort', cancel, { once: true })
  if (!isDurable && reply.disconnected.aborted) cancel()
  if (isReplay) reply.setHeader('idempotency-replayed', 'true')
  const kept = prefersAsync(call.headers) ? undefined : endpoint.stored
  if (isAsync && kept) {
    return await (prepared.stream ? kept.stream(context, call, job, true) : kept.accepted(context, call, job))
  }
  if (isAsync) {
    const { job: ended } = waitMs === 0 ? { job } : await waitFor(call, jobs, job, waitMs)
    if (waitMs === 0 || !TERMINAL.has(ended.state)) return await sendAccepted(jobs, call, ended)
  } else if (isReplay && !TERMINAL.has(job.state)) {
    const message = `A request with this Idempotency-Key is still being processed. Retry later, or read the state of its job with GET /v1/jobs/${job.id}.`
    throw new ServiceError('idempotency_key_in_use', message, { retryAfterMs: RETRY_AFTER_SECONDS * 1_000 })
  }
  if (prepared.stream) await (kept?.stream(context, call, job, false) ?? sendRecorded(context, call, jobs, job))
  else await sendResult(call, jobs, job, prepared, kept)
}

/**
 * Cancels the job of a call after a cancel request. If the caller did not request a durable job, then its disconnect
 * also cancels the job.
 *
 * @param isFinal True if no partial result is needed, because the caller has disconnected
 */
function cancelJob(
  { log }: IngressContext,
  { requestId }: Call,
  jobs: DurableJobs,
  { tenant, id }: DurableJob,
  isFinal: boolean,
): void {
  jobs.cancel(tenant, id, isFinal ? 'final' : 'again').catch((error: unknown) => {
    // If the job ended before the cancel request, then nothing needs to be cancelled.
    if (ServiceError.from(error).code === 'job_already_finished') return
    log.warn({ err: error, job_id: id, request_id: requestId }, 'job could not be cancelled and continues to run')
  })
}

/**
 * Waits until a job has ended, the caller disconnects or `waitMs` have passed. Returns the job in its current state.
 *
 * @param onWait Called if the job has not ended yet
 * @throws ServiceError `job_not_found`. `invalid_api_key` if the key of the caller is revoked during the wait
 */
export async function waitFor(
  { reply }: Call,
  jobs: DurableJobs,
  { tenant, id }: Pick<DurableJob, 'tenant' | 'id'>,
  waitMs: number,
  onWait?: () => void,
): Promise<AwaitedJob> {
  const signal = AbortSignal.any([AbortSignal.timeout(waitMs), reply.disconnectedOrDraining])
  const ended = await jobs.waitForResult(tenant, id, signal, { onWait })
  if (reply.refusal) throw reply.refusal
  return ended
}

/**
 * Sends 202 with the job (docs/reference/compatibility.md, Submitting). If the job of a repeated call has already
 * completed, then the answer contains the result.
 */
export async function sendAccepted(jobs: DurableJobs, { reply }: Call, job: DurableJob): Promise<void> {
  const details =
    job.state === 'completed'
      ? { result: await jobs.result(job.tenant, job.id) }
      : { position: await jobs.positions.of(job) }
  reply.setHeader('location', `/v1/jobs/${job.id}`)
  reply.setHeader('preference-applied', 'respond-async')
  reply.setHeader('retry-after', String(RETRY_AFTER_SECONDS))
  await reply.whole(jobObject(job, details), 202)
}

async function sendResult(
  { reply }: Call,
  jobs: DurableJobs,
  job: DurableJob,
  prepared: PreparedCall,
  kept: StoredAnswers | undefined,
): Promise<void> {
  reply.open(prepared.isText ? 'text' : 'json')
  const { job: ended, result } = await jobs.waitForResult(job.tenant, job.id, reply.disconnectedOrDraining)
  if (reply.refusal) throw reply.refusal
  if (!TERMINAL.has(ended.state))
    throw new ServiceError('overloaded', `The server shut down; job ${job.id} continues.`, { reason: 'draining' })
  const answer = result ?? (await resultOf(jobs, job.tenant, ended))
  await reply.whole(kept ? kept.formatted(answer, prepared.encode ?? {}) : answer)
}

async function sendRecorded(
  context: IngressContext,
  { reply }: Call,
  jobs: DurableJobs,
  job: DurableJob,
): Promise<void> {
  await using output = new StoredOutput(jobs, job, reply.disconnectedOrDraining)
  const waitsFor = () => preparingText(context.jobs.presence.preparing(job.pool, job.model))
  await sendStream(reply, output, storedOutputStream(job.endpoint), { waitsFor })
}

interface AskedBody {
  /** Body of the call of the endpoint, which the job stores as its input. */
  readonly sent: unknown
  /** Body with the job options, for the fingerprint of the idempotency key. Default: `sent`. */
  readonly whole?: unknown
}

/**
 * Creates a job, or finds the job that an equal call created with the same idempotency key (docs/internals/protocol.md,
 * Idempotency). Afterwards, the memory reserved for the body is released.
 *
 * @throws ServiceError `idempotency_key_reused` if another call used the key. `result_expired` if the found job was
 * deleted. `overloaded` if the store is unreachable
 */
export async function createJob(
  context: IngressContext,
  call: Call,
  endpoint: Pick<JobEndpoint, 'path' | 'kind'>,
  prepared: PreparedCall,
  { sent, whole = sent }: AskedBody,
  options: DurableOptions,
): Promise<{ job: DurableJob; isReplay: boolean }> {
  const jobs = requireJobs(context)
  const { idempotencyKey, isAsync, ...more } = options
  const spec = {
    ...prepared,
    pool: endpoint.kind.pool,
    kind: endpoint.kind.name,
    encode: encodeOf(prepared, call.requestId),
    ...more,
    metadata: more.metadata ?? prepared.metadata,
    tenant: projectIdOf(call.key),
    keyId: call.key.id,
    bodyBytes: Math.ceil(call.held.bytes / HELD_PER_BYTE),
    attachmentBytes: call.storage.bytes,
    endpoint: endpoint.path,
    traceparent: call.traceparent,
    input: await inputText(sent),
  }
  const key = await idempotencyOf(idempotencyKey, call, whole, context.config.jobRetentionMs)
  const created = await createWithUploads(call, prepared, async () => {
    const first = await context.submitQueue.run(spec.tenant, () => jobs.create(spec, key), call.reply.disconnected)
    if (!key || isAsync || first.outcome !== 'exists' || !hasFreedKey(first.job)) return first
    // The found job failed with a retryable error and released its key, so a new job replaces it
    // (docs/internals/protocol.md, Idempotency).
    return await jobs.create(spec, { ...key, replaces: first.job.id })
  })
  takeBody(prepared)
  call.held.release()
  const { job, isReplay } = acceptedOf(created)
  call.facts.job_id = job.id
  if (!isReplay) {
    call.facts.job_created = true
    await prepared.onCreated?.(job).catch((error: unknown) => {
      cancelJob(context, call, jobs, job, true)
      throw error
    })
  }
  return { job, isReplay }
}

/**
 * Creates the job and transfers the uploads of the call to it. If the connection to the store is lost, then the outcome is unknown. The uploads are
 * then kept, because the job may need them.
 */
async function createWithUploads(
  { uploads, storage }: Call,
  { attachments = [] }: PreparedCall,
  create: () => Promise<Created>,
): Promise<Created> {
  try {
    const created = await create()
    if (created.outcome !== 'created') return created
    for (const blob of attachments) uploads.delete(blob)
    storage.stored()
    return created
  } catch (error) {
    if (!isDefinitelyUndone(error)) for (const blob of attachments) uploads.delete(blob)
    throw error
  }
}

export function acceptedOf(created: Created): { job: DurableJob; isReplay: boolean } {
  const param = 'Idempotency-Key'
  if (created.outcome === 'conflict') {
    const message =
      'This Idempotency-Key was used with another request. Use a new Idempotency-Key for each new request.'
    throw new ServiceError('idempotency_key_reused', message, { param })
  }
  if (created.outcome === 'exists' && created.job.erased_at_ms !== null) {
    const message = 'The job of this Idempotency-Key was deleted. Use a new key to make the request again.'
    throw new ServiceError('result_expired', message, { param })
  }
  return { job: created.job, isReplay: created.outcome === 'exists' }
}

/**
 * Whether the idempotency key of a failed job may be used for a new job. False for a cancelled job, because the
 * cancellation was intended.
 */
function hasFreedKey({ state, error }: DurableJob): boolean {
  if (state === 'expired') return true
  if (state !== 'failed') return false
  const status = error ? ServiceError.fromBody(error).status : 500
  return status === 429 || status >= 500
}

export async function resultOf(jobs: DurableJobs, tenant: string, job: DurableJob): Promise<unknown> {
  switch (job.state) {
    case 'completed':
      return await jobs.result(tenant, job.id)
    case 'failed':
      throw ServiceError.fromBody(job.error ?? { code: 'internal_error', message: 'The job failed.', param: null })
    case 'cancelled':
      throw new ServiceError('job_cancelled', 'The job was cancelled.')
    case 'expired':
      throw new ServiceError('job_expired', 'The job waited longer than its deadline allows and was not started.')
    default:
      throw new ServiceError('job_not_finished', 'The job has not ended yet.', { retryAfterMs: 2_000 })
  }
}

/**
 * Recorded output of one durable job, as an {@link Output} for {@link sendStream}. Must be disposed. Otherwise a reader
 * that stops early would stay subscribed to the events of the job.
 */
class StoredOutput implements Output, AsyncDisposable {
  firstOutputAtMs: number | undefined
  readonly #jobs: DurableJobs
  readonly #tenant: string
  readonly #id: string
  /**
   * Attempt that is running when the stream starts. Output of earlier attempts is skipped, because none of it was sent
   * to this caller.
   */
  readonly #attempt: number
  readonly #signal: AbortSignal
  readonly #events: AsyncGenerator<DurableEvent[]>
  #hasEnded = false
  #progress = 0

  /** @param signal Aborts when the reader stops. A ServiceError as the reason is thrown by `next` */
  constructor(jobs: DurableJobs, job: DurableJob, signal: AbortSignal) {
    this.#jobs = jobs
    this.#tenant = job.tenant
    this.#id = job.id
    this.#attempt = job.attempt
    this.#signal = signal
    this.#events = jobs.follow(job.tenant, job.id, 0, signal)
  }

  async next(): Promise<unknown[] | undefined> {
    for (;;) {
      const { value: events, done } = await this.#events.next()
      if (done) break
      const chunks: unknown[] = []
      for (const event of events) this.#take(event, chunks)
      if (chunks.length > 0) return chunks
    }
    const job = await this.#jobs.get(this.#tenant, this.#id)
    // If the reader stopped early, then it did not receive the whole output. `next` then fails, even if the job has ended in the meantime.
    if (!this.#hasEnded && this.#signal.aborted) throw disconnectError(this.#signal, job)
    await resultOf(this.#jobs, this.#tenant, job)
    return undefined
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#events.return(undefined)
  }

  #take(event: DurableEvent, chunks: unknown[]): void {
    const { type, data, attempt } = event
    if (isLast(event)) this.#hasEnded = true
    if (attempt < this.#attempt) return
    if (type === 'job.output.delta') {
      const { chunk } = data as { chunk: unknown }
      if (isOutput(chunk)) this.firstOutputAtMs ??= Date.now()
      if (this.#isNew(chunk)) chunks.push(chunk)
    } else if (type === 'job.retrying' && this.firstOutputAtMs !== undefined) {
      // Output that was already sent cannot be taken back, so the stream fails. The caller can read the new output from
      // the event stream of the job.
      throw new ServiceError(
        'worker_lost',
        'The job was started over, because its worker was lost. To receive the new output, follow the events of the job.',
      )
    }
  }

  /**
   * Whether a chunk was not sent before. An attempt that resumes a composed job repeats earlier progress events with
   * equal sequence numbers.
   */
  #isNew(chunk: unknown): boolean {
    const { research_progress: progress } = (chunk ?? {}) as { research_progress?: { sequence: number } }
    if (!progress) return true
    const isNew = progress.sequence > this.#progress
    if (isNew) this.#progress = progress.sequence
    return isNew
  }
}

/**
 * Returns the stream encoder for recorded chunks. The chunks are already in the format of the API, except for the event names
 * of the Anthropic format, which are added here.
 */
function storedOutputStream(endpoint: string): AnswerStream {
  const isNamed = formatOf(endpoint) === 'anthropic'
  return {
    push(chunk): Frame[] {
      return [frameOf(chunk, isNamed ? { event: (chunk as { type: string }).type } : {})]
    },
    end: () => [],
  }
}

function isOutput(chunk: unknown): boolean {
  const { choices } = (chunk ?? {}) as { choices?: unknown[] }
  return choices?.length !== 0
}

function disconnectError(signal: AbortSignal, { id }: DurableJob): ServiceError {
  if (signal.reason instanceof ServiceError) return signal.reason
  const message = `The server is shutting down. Job ${id} continues; repeat the request.`
  return new ServiceError('overloaded', message, { reason: 'draining' })
}
