import type { DurableJob } from '#schemas/durable-job.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { isJobId, requireJobs } from '#services/ingress/calls/job-object.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Prefix of the id of a batch in the API. The rest equals the rest of the id of its job. */
export type BatchPrefix = 'batch_' | 'msgbatch_'

export function batchIdOf(jobId: string, prefix: BatchPrefix): string {
  return jobId.replace('job_', prefix)
}

export function jobIdOfBatch(id: string, prefix: BatchPrefix): string | undefined {
  const jobId = id.replace(prefix, 'job_')
  return id.startsWith(prefix) && isJobId(jobId) ? jobId : undefined
}

/**
 * Returns the job of a batch of the caller's project.
 *
 * @throws ServiceError `not_found`
 */
export async function findBatch(
  context: IngressContext,
  call: Call,
  endpoint: string,
  prefix: BatchPrefix,
): Promise<DurableJob> {
  const id = String(call.params.id)
  const notFound = () => new ServiceError('not_found', `No batch with the id '${beginningOf(id, 64)}'.`)
  const jobId = jobIdOfBatch(id, prefix)
  if (jobId === undefined) throw notFound()
  const job = await requireJobs(context)
    .get(projectIdOf(call.key), jobId)
    .catch((error: unknown) => {
      throw ServiceError.from(error).code === 'job_not_found' ? notFound() : error
    })
  if (job.endpoint === endpoint && job.depth === 0) return job
  throw notFound()
}
