import type { DurableJob } from '#schemas/durable-job.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Durable jobs of this deployment.
 *
 * @throws ServiceError `jobs_unavailable` if there is no store
 */
export function requireJobs(context: IngressContext): DurableJobs {
  if (context.durable) return context.durable
  const message = 'Durable jobs are not available: the operator must set DATABASE_URL.'
  throw new ServiceError('jobs_unavailable', message)
}

/** Whether a text has the form of a job id. Checked before the store is read. */
export function isJobId(text: string): boolean {
  return /^job_[0-9A-Za-z_-]{8,64}$/.test(text)
}

/**
 * Job id in the path `/v1/jobs/{id}…`.
 *
 * @throws ServiceError `job_not_found` if the text is not a job id
 */
export function jobIdOf(call: Call): string {
  const id = String(call.params.id)
  if (isJobId(id)) return id
  throw jobNotFound(id)
}

export function jobNotFound(id: string): ServiceError {
  return new ServiceError('job_not_found', `No job with the id '${beginningOf(id, 64)}'.`)
}

/**
 * The job in the path, if it belongs to the project of the caller.
 *
 * @throws ServiceError `job_not_found`
 */
export function findJob(jobs: DurableJobs, call: Call): Promise<DurableJob> {
  return jobs.get(projectIdOf(call.key), jobIdOf(call))
}

/**
 * An integer in the query; undefined if absent.
 *
 * @throws ServiceError `invalid_value`
 */
export function queryNumber(call: Call, name: string, most: number): number | undefined {
  const text = call.query[name]
  if (text === undefined) return undefined
  const value = /^\d{1,15}$/.test(String(text)) ? Number(text) : Number.NaN
  if (value <= most) return value
  const message = `Invalid '${name}': expected a whole number from 0 to ${most}.`
  throw new ServiceError('invalid_value', message, { param: name })
}
