import type { DurableEvent } from '#schemas/durable-job.ts'
import type { ResponseObject } from '#schemas/responses/response.ts'
import { resultOf } from '#services/ingress/answer/recorded.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import type { StoredAnswers } from '#services/ingress/endpoints/endpoint.ts'
import { requireJobs } from '#services/ingress/jobs/paths.ts'
import { throwIfRefused } from '#services/ingress/reply/reply.ts'
import { ServiceError } from '#shared/error.ts'
import { isLast } from '#shared/jobs/durable/follow.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { openaiErrorBody } from '#shared/protocols/errors.ts'
import type { ItemEvent } from '#shared/protocols/responses/items.ts'
import { responseObject, shownResponse } from '#shared/protocols/responses/response.ts'
import { endOf, responsesFrame } from '#shared/protocols/responses/stream.ts'
import { hasEnded, type Kept, keptObject, readKept, responseNotFound } from './kept.ts'

/**
 * The stream of a kept response (docs/responses.md, Streams), read from the events of its job: so any replica can go on where
 * another stopped, and each event has the same number everywhere.
 *
 * An event of the job with output is an event of the stream with the same number, and so is its last one. The first,
 * `job.queued`, is `response.created` and `response.queued`, numbers 0 and 1; what else the job tells has no event, so that
 * numbers have gaps. Each attempt begins with `response.in_progress`, but where the service runs tools: there only the first.
 */

/** Numbers of what is told of a job that was accepted. */
const CREATED = 0
const QUEUED = 1
/** The number of the first `response.in_progress`: what comes after is output. */
const IN_PROGRESS = 3

/** Told here, wherever a worker has recorded them as well. */
const ENDS: ReadonlySet<string> = new Set(['response.created', 'response.completed', 'response.incomplete'])

/** How calls are answered whose response is kept. */
export const keptAnswers: StoredAnswers = {
  async accepted(context, { reply }, job) {
    await reply.whole(keptObject(await readKept(context, job)))
  },
  shown: (result, encode) => shownResponse(result as ResponseObject, encode),
  async stream(context, call, job, isBackground) {
    const kept = await readKept(context, job)
    await streamKept(context, call, kept, { after: -1, isBackground })
  },
}

/** Where a stream begins, and how. */
export interface StreamPosition {
  /** Number of the last event that the caller has; -1: none. */
  readonly after: number
  /** Its caller may leave: it is told of all that happens, a failure before any output included. */
  readonly isBackground: boolean
}

/**
 * Says the events of a kept response after a position, until it has ended.
 *
 * @throws ServiceError what a response failed with that nothing was said of yet, where nobody follows it in the background
 */
export async function streamKept(
  context: IngressContext,
  { reply }: Pick<Call, 'reply'>,
  kept: Kept,
  { after, isBackground }: StreamPosition,
): Promise<void> {
  const jobs = requireJobs(context)
  const { id, tenant } = kept.job
  const events = new RecordedEvents(kept, after, isBackground)
  reply.open('stream', (error) => events.failed(error))
  if (hasEnded(kept.job) && after >= kept.job.last_seq) return
  // A first event of the job is two of the stream: who has one of them is told the other.
  const from = after <= QUEUED ? 0 : after
  for await (const told of jobs.follow(tenant, id, from, reply.leaving)) {
    const last = told.find(isLast)
    const frames = told.flatMap((event) => events.framesOf(event))
    if (last) {
      const ended = await readKept(context, await jobs.get(tenant, id))
      if (!isBackground && !events.hasOutput) await resultOf(jobs, tenant, ended.job)
      frames.push(...events.ended(ended, last.seq))
    }
    await reply.frames(frames, isBackground || events.hasOutput || last !== undefined)
    if (last || reply.hasLeft) return
  }
  throwIfRefused(reply)
  if (!reply.leaving.aborted) throw responseNotFound(id)
  throw new ServiceError('overloaded', 'The server is shutting down. The response goes on: ask for its stream again.')
}

/** Numbers and picks what is told of a response. */
class RecordedEvents {
  /** Output was told, now or before the position. */
  hasOutput: boolean
  readonly #kept: Kept
  readonly #isBackground: boolean
  #last: number

  constructor(kept: Kept, after: number, isBackground: boolean) {
    this.#kept = kept
    this.#last = after
    this.#isBackground = isBackground
    this.hasOutput = after > IN_PROGRESS
  }

  /** @throws ServiceError `worker_lost` when output that was told is made again */
  framesOf(event: DurableEvent): Frame[] {
    const { type, seq, attempt } = event
    if (type === 'job.queued' && seq === 1) return this.#queued()
    if (type !== 'job.output.delta') return []
    const { chunk } = event.data as { chunk: ItemEvent }
    if (this.#kept.encode.responses?.is_hosting) return this.#goOn(chunk, seq)
    // Of output that was made again before anybody was told of it only the last counts.
    if (attempt < this.#kept.job.attempt) return []
    if (ENDS.has(chunk.type)) return []
    if (chunk.type !== 'response.in_progress') this.hasOutput = true
    else if (this.hasOutput) throw startedOver()
    return this.#say(chunk, seq)
  }

  /** Output of a response that runs tools is told once, by whichever of its attempts: each goes on where the one before was. */
  #goOn(chunk: ItemEvent, seq: number): Frame[] {
    if (ENDS.has(chunk.type)) return []
    if (chunk.type !== 'response.in_progress') this.hasOutput = true
    return this.#say(chunk, seq)
  }

  /** What ends the stream. */
  ended(kept: Kept, seq: number): Frame[] {
    return this.#say(endOf(keptObject(kept)), seq)
  }

  /** The last that is said where the response itself did not fail. */
  failed(error: ServiceError): Frame {
    const { message, param, code } = openaiErrorBody(error).error
    return responsesFrame({ type: 'error', code: code ?? error.code, message, param }, this.#last + 1)
  }

  #queued(): Frame[] {
    const { encode } = this.#kept
    const status = this.#isBackground ? 'queued' : 'in_progress'
    const response = responseObject(encode, { status })
    const created = this.#say({ type: 'response.created', response }, CREATED)
    return this.#isBackground ? [...created, ...this.#say({ type: 'response.queued', response }, QUEUED)] : created
  }

  #say(event: ItemEvent, number: number): Frame[] {
    if (number <= this.#last) return []
    this.#last = number
    return [responsesFrame(event, number)]
  }
}

function startedOver(): ServiceError {
  const message =
    'The output had to be started over. Stream the response again from its beginning, or wait for its end.'
  return new ServiceError('worker_lost', message)
}
