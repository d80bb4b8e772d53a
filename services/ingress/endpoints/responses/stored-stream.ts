import type { DurableEvent } from '#schemas/durable-job.ts'
import type { ResponseObject } from '#schemas/responses/response.ts'
import { type Call, type IngressContext, sendFrames, throwIfRefused } from '#services/ingress/calls/call.ts'
import { resultOf } from '#services/ingress/calls/durable.ts'
import type { StoredAnswers } from '#services/ingress/calls/endpoint.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { isLast } from '#shared/jobs/durable/follow.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { openaiErrorBody } from '#shared/protocols/errors.ts'
import type { ItemEvent } from '#shared/protocols/responses/items.ts'
import { responseObject, responseView } from '#shared/protocols/responses/response.ts'
import { endOf, responsesFrame } from '#shared/protocols/responses/stream.ts'
import {
  hasEnded,
  readStoredResponse,
  responseNotFound,
  type StoredResponse,
  storedResponseObject,
} from './stored-response.ts'

/*
 * Stream of a stored response (docs/guides/responses.md, Streams), derived from the recorded events of its job. Any
 * ingress can therefore continue a stream, and an event has the same number everywhere.
 *
 * Numbers: output events of the job and its last event keep their number in the stream. The first event of the job,
 * `job.queued`, becomes `response.created` (0) and `response.queued` (1). Other events of the job are not part of the
 * stream, so numbers have gaps.
 *
 * Each attempt begins with `response.in_progress`. With hosted tools, only the first attempt does, because later
 * attempts resume it.
 */

/** Numbers of the first two events of a stream. */
const CREATED = 0
const QUEUED = 1
/** Number of the first `response.in_progress`. All later events are output. */
const IN_PROGRESS = 3

/** Events that are created here from the state of the job. Their recorded versions are skipped. */
const ENDS: ReadonlySet<string> = new Set(['response.created', 'response.completed', 'response.incomplete'])

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

/** Where a stream begins. */
export interface StreamPosition {
  /** Number of the last event that the caller has; -1 for none. */
  readonly after: number
  /**
   * True if the response runs in the background. A failure before any output is then an event of the stream, not an
   * HTTP error.
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
  // The first event of the job becomes two events of the stream. A caller that received only the first still needs the
  // second.
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
  throwIfRefused(reply)
  if (!reply.disconnectedOrDraining.aborted) throw responseNotFound(id)
  throw new ServiceError('overloaded', 'The server is shutting down. The response continues; request its stream again.')
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

  /** @throws ServiceError `worker_lost` if a new attempt generates output again that was already sent */
  framesOf(event: DurableEvent): Frame[] {
    const { type, seq, attempt } = event
    if (type === 'job.queued' && seq === 1) return this.#queued()
    if (type !== 'job.output.delta') return []
    const { chunk } = event.data as { chunk: ItemEvent }
    if (this.#kept.encode.responses?.is_hosting) return this.#resumed(chunk, seq)
    // Output of an earlier attempt is skipped: none of it was sent on this stream.
    if (attempt < this.#kept.job.attempt) return []
    if (ENDS.has(chunk.type)) return []
    if (chunk.type !== 'response.in_progress') this.hasOutput = true
    else if (this.hasOutput) throw startedOver()
    return this.#numbered(chunk, seq)
  }

  /** Output of a response with hosted tools. Each attempt resumes the previous one, so all of its output is new. */
  #resumed(chunk: ItemEvent, seq: number): Frame[] {
    if (ENDS.has(chunk.type)) return []
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
    'The output was started over, because a worker was lost. Stream the response again from its beginning, or wait for its end.'
  return new ServiceError('worker_lost', message)
}
