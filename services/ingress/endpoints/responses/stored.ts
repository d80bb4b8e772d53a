import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import type { EncodeContext, SharedHistory } from '#schemas/job.ts'
import type { GenerateRequest, Turn } from '#schemas/kinds/generate.ts'
import type { ResponsesRequest } from '#schemas/responses/request.ts'
import type { ResponseObject, ResponsesForm } from '#schemas/responses/response.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { type Call, type IngressContext, type StoredAnswers, sendFrames } from '#services/ingress/calls/call.ts'
import { resultOf } from '#services/ingress/calls/durable.ts'
import { isJobId, requireJobs } from '#services/ingress/calls/job-object.ts'
import { fetchBody } from '#shared/jobs/body.ts'
import { isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import { readStored } from '#shared/jobs/records.ts'
import { isSmall } from '#shared/json/write.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { openaiErrorBody } from '#shared/kinds/errors.ts'
import type { ItemEvent } from '#shared/kinds/generate/responses/items.ts'
import {
  RESPONSE_PREFIX,
  responseObject,
  responsesError,
  responseView,
} from '#shared/kinds/generate/responses/output.ts'
import { endOf, responsesFrame } from '#shared/kinds/generate/responses/stream.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { shownTools } from './decode.ts'

/*
 * Stored responses. Each is a durable job of this endpoint, and the response id is derived from the job id. Request
 * fields that a response repeats are stored with the job.
 *
 * The prompt refers to the segments (blobs of earlier turns) of the conversation (`shared/jobs/durable/history.ts`). The
 * chain of previous responses is therefore not read when a response is continued.
 */

export const RESPONSES_PATH = '/v1/responses'

interface StoredResponse {
  readonly job: DurableJob
  readonly encode: EncodeContext
  readonly result: ResponseObject | undefined
  /** Segments of the prompt, to which later responses of the conversation may store references. */
  readonly history: SharedHistory | undefined
  /**
   * Returns the prompt, which may be in a blob.
   *
   * @throws ServiceError `internal_error` if the blob is missing
   */
  readonly fetchRequest: () => Promise<GenerateRequest>
}

function responseNotFound(id: string, param = 'id'): ServiceError {
  return new ServiceError('not_found', `Response with id '${beginningOf(id, 64)}' not found.`, { param })
}

/**
 * Returns the job of a response.
 *
 * @throws ServiceError `not_found`, also for responses of other projects
 */
export async function findResponse(
  context: IngressContext,
  tenant: string,
  id: string,
  param?: string,
): Promise<DurableJob> {
  const jobs = requireJobs(context)
  const jobId = id.startsWith(RESPONSE_PREFIX) ? `job_${id.slice(RESPONSE_PREFIX.length)}` : ''
  if (!isJobId(jobId)) throw responseNotFound(id, param)
  const job = await jobs.get(tenant, jobId).catch((error: unknown) => {
    throw ServiceError.from(error).code === 'job_not_found' ? responseNotFound(id, param) : error
  })
  if (job.endpoint !== RESPONSES_PATH) throw responseNotFound(id, param)
  return job
}

export async function readStoredResponse(context: IngressContext, job: DurableJob): Promise<StoredResponse> {
  const content = await context.store?.findContent(job.tenant, job.id)
  const stored = content?.request ? readStored(content.request) : undefined
  if (!stored) throw responseNotFound(responseIdOf(job))
  const { encode } = stored
  return {
    job,
    encode: { ...encode, created_at: Math.floor(job.created_at_ms / 1_000) },
    result: job.state === 'completed' ? ((content?.result as ResponseObject | null) ?? undefined) : undefined,
    history: stored.history,
    fetchRequest: async () => (await fetchBody(stored, context.blobs)) as GenerateRequest,
  }
}

export function responseIdOf({ id }: Pick<DurableJob, 'id'>): string {
  return RESPONSE_PREFIX + id.slice('job_'.length)
}

export function storedResponseObject({ job, encode, result }: StoredResponse): ResponseObject {
  if (result) return responseView(result, encode)
  const known = { model: job.model, metadata: job.metadata }
  const completed_at = null
  switch (job.state) {
    case 'failed':
    case 'expired':
      return responseObject(encode, { ...known, status: 'failed', completed_at, error: responsesError(failureOf(job)) })
    case 'cancelled':
      return responseObject(encode, { ...known, status: 'cancelled', completed_at })
    default:
      return responseObject(encode, { ...known, status: job.attempt > 0 ? 'in_progress' : 'queued' })
  }
}

export function failureOf({ state, error }: DurableJob): ServiceError {
  if (error) return ServiceError.fromBody(error)
  const isExpired = state === 'expired'
  const message = isExpired ? 'The response waited longer than its deadline allows.' : 'The response failed.'
  return new ServiceError(isExpired ? 'job_expired' : 'internal_error', message)
}

export function turnsOf({ encode }: StoredResponse, request: GenerateRequest): readonly Turn[] {
  return encode.responses?.has_instructions ? request.turns.slice(1) : request.turns
}

export function hasEnded({ state }: DurableJob): boolean {
  return TERMINAL.has(state)
}

/*
 * Stream of a stored response (docs/guides/responses.md, Streams), derived from the recorded events of its job. Any
 * ingress can therefore continue a stream, and an event has the same number in every stream.
 *
 * Output events of the job and its last event keep their number in the stream. The first event of the job,
 * `job.queued`, becomes `response.created` (0) and `response.queued` (1). Other events of the job are not part of the
 * stream, so numbers have gaps.
 *
 * Each attempt begins with `response.in_progress`. With hosted tools, only the first attempt begins with this event,
 * because later attempts resume the first one.
 */

const CREATED = 0
const QUEUED = 1
/** Number of the first `response.in_progress`. All events after it are output. */
const IN_PROGRESS = 3

/**
 * Types of events that are created from the state of the job when the stream is read, so their recorded versions are
 * skipped.
 */
const DERIVED_EVENTS: ReadonlySet<string> = new Set(['response.created', 'response.completed', 'response.incomplete'])

export const storedAnswers: StoredAnswers = {
  async accepted(context, { reply }, job) {
    await reply.whole(storedResponseObject(await readStoredResponse(context, job)))
  },
  formatted: (result, encode) => responseView(result as ResponseObject, encode),
  async stream(context, call, job, isBackground) {
    const kept = await readStoredResponse(context, job)
    await streamStored(context, call, kept, { after: -1, isBackground })
  },
}

interface StreamPosition {
  /** Number of the last event that the caller has received. -1 for none. */
  readonly after: number
  /**
   * True if the response runs in the background. If it fails before any output, then the failure is an event of the
   * stream instead of an HTTP error.
   */
  readonly isBackground: boolean
}

/**
 * Streams the events of a stored response after a position, until the response has ended.
 *
 * @throws ServiceError if a response that does not run in the background failed without output
 */
export async function streamStored(
  context: IngressContext,
  { reply }: Pick<Call, 'reply'>,
  kept: StoredResponse,
  { after, isBackground }: StreamPosition,
): Promise<void> {
  const jobs = requireJobs(context)
  const { id, tenant } = kept.job
  const events = new StoredEvents(kept, after, isBackground)
  reply.open('stream', (error) => events.failed(error))
  if (hasEnded(kept.job) && after >= kept.job.last_seq) return
  // The first event of the job becomes two events of the stream. If a caller received only one of the two events, then
  // reading starts at the first event of the job.
  const from = after <= QUEUED ? 0 : after
  for await (const recorded of jobs.follow(tenant, id, from, reply.disconnectedOrDraining)) {
    const last = recorded.find(isLast)
    const frames = recorded.flatMap((event) => events.framesOf(event))
    if (last) {
      const ended = await readStoredResponse(context, await jobs.get(tenant, id))
      if (!isBackground && !events.hasOutput) await resultOf(jobs, tenant, ended.job)
      frames.push(...events.ended(ended, last.seq))
    }
    await sendFrames(reply, frames, isBackground || events.hasOutput || last !== undefined)
    if (last || reply.isDisconnected) return
  }
  if (reply.refusal) throw reply.refusal
  if (!reply.disconnectedOrDraining.aborted) throw responseNotFound(id)
  throw new ServiceError(
    'overloaded',
    'The server is shutting down. The response continues; request its stream again.',
    { reason: 'draining' },
  )
}

class StoredEvents {
  hasOutput: boolean
  readonly #kept: StoredResponse
  readonly #isBackground: boolean
  #last: number

  constructor(kept: StoredResponse, after: number, isBackground: boolean) {
    this.#kept = kept
    this.#last = after
    this.#isBackground = isBackground
    this.hasOutput = after > IN_PROGRESS
  }

  /**
   * Returns the frames of an event.
   *
   * @throws ServiceError `worker_lost` if a new attempt repeats output that was already sent
   */
  framesOf(event: DurableEvent): Frame[] {
    const { type, seq, attempt } = event
    if (type === 'job.queued' && seq === 1) return this.#queued()
    if (type !== 'job.output.delta') return []
    const { chunk } = event.data as { chunk: ItemEvent }
    if (this.#kept.encode.responses?.is_hosting) return this.#resumed(chunk, seq)
    // Output of an earlier attempt is skipped, because none of it was sent on this stream.
    if (attempt < this.#kept.job.attempt) return []
    if (DERIVED_EVENTS.has(chunk.type)) return []
    if (chunk.type !== 'response.in_progress') this.hasOutput = true
    else if (this.hasOutput) throw startedOver()
    return this.#numbered(chunk, seq)
  }

  /**
   * Returns the frames of a response with hosted tools. Each attempt continues where the previous attempt ended, so no
   * output is repeated.
   */
  #resumed(chunk: ItemEvent, seq: number): Frame[] {
    if (DERIVED_EVENTS.has(chunk.type)) return []
    if (chunk.type !== 'response.in_progress') this.hasOutput = true
    return this.#numbered(chunk, seq)
  }

  ended(kept: StoredResponse, seq: number): Frame[] {
    return this.#numbered(endOf(storedResponseObject(kept)), seq)
  }

  failed(error: ServiceError): Frame {
    const { message, param, code } = openaiErrorBody(error).error
    return responsesFrame({ type: 'error', code: code ?? error.code, message, param }, this.#last + 1)
  }

  #queued(): Frame[] {
    const { encode } = this.#kept
    const status = this.#isBackground ? 'queued' : 'in_progress'
    const response = responseObject(encode, { status })
    const created = this.#numbered({ type: 'response.created', response }, CREATED)
    return this.#isBackground ? [...created, ...this.#numbered({ type: 'response.queued', response }, QUEUED)] : created
  }

  #numbered(event: ItemEvent, number: number): Frame[] {
    if (number <= this.#last) return []
    this.#last = number
    return [responsesFrame(event, number)]
  }
}

function startedOver(): ServiceError {
  const message =
    'The response was started over, because its worker was lost. Stream the response again from its beginning, or wait for its end.'
  return new ServiceError('worker_lost', message)
}

/**
 * Maximum bytes of JSON of request fields that the response repeats. The queue record contains these fields in addition
 * to a prompt of up to 64 KiB.
 */
const REPEATED_BYTES_MAX = 48 * 1024

/**
 * Returns the request fields that a response repeats, with defaults for missing fields (docs/guides/responses.md,
 * Answers).
 */
export function formOf(body: ResponsesRequest, request: GenerateRequest, isKept: boolean): ResponsesForm {
  const format = body.text?.format ?? { type: 'text' }
  const within = fitting(REPEATED_BYTES_MAX)
  return {
    shown: {
      background: body.background ?? false,
      conversation: conversationIdOf(body) === undefined ? null : { id: conversationIdOf(body) },
      frequency_penalty: body.frequency_penalty ?? 0,
      instructions: within(body.instructions, null),
      max_output_tokens: body.max_output_tokens ?? null,
      max_tool_calls: body.max_tool_calls ?? null,
      metadata: body.metadata ?? {},
      parallel_tool_calls: body.parallel_tool_calls ?? true,
      presence_penalty: body.presence_penalty ?? 0,
      previous_response_id: body.previous_response_id ?? null,
      prompt_cache_key: within(body.prompt_cache_key, null),
      reasoning: { effort: body.reasoning?.effort ?? null, summary: summaryOf(body) },
      safety_identifier: within(body.safety_identifier, null),
      service_tier: 'default',
      store: isKept,
      temperature: body.temperature ?? 1,
      text: { format: within(format, { type: format.type }), verbosity: body.text?.verbosity ?? 'medium' },
      tool_choice: within(body.tool_choice, 'auto'),
      tools: within(shownTools(body.tools), []),
      top_logprobs: body.top_logprobs ?? 0,
      top_p: body.top_p ?? 1,
      truncation: body.truncation ?? 'disabled',
      user: within(body.user, null),
    },
    summarizes: summaryOf(body) !== null,
    ...(request.hosted && { is_hosting: true }),
    ...(body.include?.length && { includes: body.include }),
    is_kept: isKept,
    has_instructions: Boolean(body.instructions),
  }
}

export function conversationIdOf({ conversation }: Pick<ResponsesRequest, 'conversation'>): string | undefined {
  return typeof conversation === 'string' ? conversation : conversation?.id
}

function summaryOf({ reasoning }: ResponsesRequest): string | null {
  return reasoning?.summary ?? reasoning?.generate_summary ?? null
}

function fitting(bytesMax: number) {
  let left = bytesMax
  return <T, U>(value: T | null | undefined, instead: U): T | U => {
    if (value === null || value === undefined || !isSmall(value)) return instead
    const bytes = Buffer.byteLength(JSON.stringify(value))
    if (bytes > left) return instead
    left -= bytes
    return value
  }
}
