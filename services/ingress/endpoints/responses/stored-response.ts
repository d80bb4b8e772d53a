import type { DurableJob } from '#schemas/durable-job.ts'
import type { GenerateRequest, Turn } from '#schemas/generate.ts'
import type { EncodeContext, SharedHistory } from '#schemas/job.ts'
import type { ResponseObject } from '#schemas/responses/response.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { isJobId, requireJobs } from '#services/ingress/calls/job-object.ts'
import { fetchBody } from '#shared/jobs/body.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { readStored } from '#shared/jobs/records.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { RESPONSE_PREFIX, responseObject, responsesError, responseView } from '#shared/protocols/responses/response.ts'

/*
 * Stored responses. Each is a durable job of this endpoint, and the job id determines the response id. The request
 * fields that a response repeats are stored with the job.
 *
 * The prompt refers to segments of the earlier conversation (`shared/jobs/durable/history.ts`). Continuing a response
 * therefore follows no chain of responses.
 */

export const RESPONSES_PATH = '/v1/responses'

export interface StoredResponse {
  readonly job: DurableJob
  readonly encode: EncodeContext
  /** Undefined until the response has completed. */
  readonly result: ResponseObject | undefined
  /** Segments of the prompt. Later responses of the conversation may refer to them. */
  readonly history: SharedHistory | undefined
  /**
   * Fetches the prompt, which may be in a blob.
   *
   * @throws ServiceError `internal_error` if the blob is missing
   */
  readonly fetchRequest: () => Promise<GenerateRequest>
}

export function responseNotFound(id: string, param = 'id'): ServiceError {
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

/** The response object in its current state (docs/guides/responses.md, Stored responses). */
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

/** Error of a response that failed or expired. */
export function failureOf({ state, error }: DurableJob): ServiceError {
  if (error) return ServiceError.fromBody(error)
  const isExpired = state === 'expired'
  const message = isExpired ? 'The response waited longer than its deadline allows.' : 'The response failed.'
  return new ServiceError(isExpired ? 'job_expired' : 'internal_error', message)
}

/** Turns of a stored prompt that the next response continues: all except the instructions. */
export function turnsOf({ encode }: StoredResponse, request: GenerateRequest): readonly Turn[] {
  return encode.responses?.has_instructions ? request.turns.slice(1) : request.turns
}

export function hasEnded({ state }: DurableJob): boolean {
  return TERMINAL.has(state)
}
