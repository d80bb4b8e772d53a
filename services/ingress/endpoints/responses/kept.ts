import type { DurableJob } from '#schemas/durable-job.ts'
import type { GenerateRequest, Turn } from '#schemas/generate.ts'
import type { EncodeContext, SharedHistory } from '#schemas/job.ts'
import type { ResponseObject } from '#schemas/responses/response.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { isJobId, requireJobs } from '#services/ingress/jobs/paths.ts'
import { ServiceError } from '#shared/error.ts'
import { fetchBody } from '#shared/jobs/body.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { readStored } from '#shared/jobs/records.ts'
import { RESPONSE_PREFIX, responseObject, responsesError, shownResponse } from '#shared/protocols/responses/response.ts'

/*
 * Kept responses: each is a durable job of this path, whose id names it. What a response repeats of its request is stored with the job.
 * Its prompt, in the internal form, names the segments of what was said before (`shared/jobs/durable/history.ts`): no chain is walked
 * to go on from one.
 */

/** The path whose jobs are responses. */
export const RESPONSES_PATH = '/v1/responses'

/** What is read of a kept response. */
export interface Kept {
  readonly job: DurableJob
  readonly encode: EncodeContext
  /** What a completed one said. */
  readonly result: ResponseObject | undefined
  /** Segments of its prompt that other responses may name as well. */
  readonly history: SharedHistory | undefined
  /** Fetches its prompt: it may lie in a blob. @throws ServiceError `internal_error` when that is gone */
  readonly fetchRequest: () => Promise<GenerateRequest>
}

/** The failure for an id that is no response of the caller's. */
export function responseNotFound(id: string, param = 'id'): ServiceError {
  return new ServiceError('not_found', `Response with id '${beginningOf(id, 64)}' not found.`, { param })
}

/** The job that stands for a response. @throws ServiceError `not_found`, also for those of others */
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

/** What is kept of a response. @throws ServiceError `not_found` when it is gone meanwhile */
export async function readKept(context: IngressContext, job: DurableJob): Promise<Kept> {
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

/** The id of the response that a job stands for. */
export function responseIdOf({ id }: Pick<DurableJob, 'id'>): string {
  return RESPONSE_PREFIX + id.slice('job_'.length)
}

/** A response as it is (docs/responses.md, Kept responses). */
export function keptObject({ job, encode, result }: Kept): ResponseObject {
  if (result) return shownResponse(result, encode)
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

/** Why a job gave no response. */
export function failureOf({ state, error }: DurableJob): ServiceError {
  if (error) return ServiceError.fromBody(error)
  const isExpired = state === 'expired'
  const message = isExpired ? 'The response waited longer than its deadline allows.' : 'The response failed.'
  return new ServiceError(isExpired ? 'job_expired' : 'internal_error', message)
}

/** The turns of a kept prompt that a next response takes over: all but its instructions. */
export function turnsOf({ encode }: Kept, request: GenerateRequest): readonly Turn[] {
  return encode.responses?.has_instructions ? request.turns.slice(1) : request.turns
}

/** Whether nothing more comes of a response. */
export function hasEnded({ state }: DurableJob): boolean {
  return TERMINAL.has(state)
}
