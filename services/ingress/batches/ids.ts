import type { DurableJob } from '#schemas/durable-job.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { isJobId, requireJobs } from '#services/ingress/jobs/paths.ts'
import { ServiceError } from '#shared/error.ts'
import { projectIdOf } from '#shared/keys/project.ts'

/** How batches are called on the wire: by the id of their job, under another name. */
export type BatchPrefix = 'batch_' | 'msgbatch_'

/** The id of a batch on the wire. */
export function batchIdOf(jobId: string, prefix: BatchPrefix): string {
  return jobId.replace('job_', prefix)
}

/** The id of the job of a batch; undefined for what can be none. */
export function jobIdOfBatch(id: string, prefix: BatchPrefix): string | undefined {
  const jobId = id.replace(prefix, 'job_')
  return id.startsWith(prefix) && isJobId(jobId) ? jobId : undefined
}

/** The job of a batch of the caller's. @throws ServiceError `not_found` */
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
